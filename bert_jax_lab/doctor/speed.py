"""Checks by measurement: the steps compile and run, the hours of the run, and the save interval."""

import math
import threading
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from bert_jax.config import TrainConfig
from bert_jax.memory.fit import require_memory
from bert_jax.progress import ABANDONED, duration
from bert_jax.registry import OBJECTIVES
from bert_jax.training import device_feed, preflight
from bert_jax.update.flops import peak_flops
from bert_jax.update.state import TrainState
from bert_jax.update.step import compile_lowered, lower_train_step
from bert_jax_lab.doctor.finding import Finding, passed, warned
from bert_jax_lab.doctor.machine import DeviceMemory
from bert_jax_lab.doctor.storage import SaveTime

# Steps per phase; the first one warms up.
_STEPS = 3


class Timing(NamedTuple):
    """The measured step of one phase; `step_seconds` is None if no step was finished."""

    compile_seconds: float
    step_seconds: float | None = None


def steps(
    config: TrainConfig, mesh: Mesh, memory: DeviceMemory, *, seconds: float
) -> tuple[Finding, list[Timing]]:
    """Each phase's step compiles, fits into memory, and runs, as far as the time permits."""
    timings: list[Timing] = []
    errors: list[Exception] = []

    def work() -> None:
        try:
            time_steps(config, mesh, timings)
        except Exception as error:
            errors.append(error)

    # A compilation cannot be stopped: one that takes too long is abandoned.
    thread = threading.Thread(target=work, daemon=True, name=ABANDONED)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    known = [*timings]
    return _judge(config, known, seconds), known


def _judge(config: TrainConfig, timings: Sequence[Timing], seconds: float) -> Finding:
    if not timings:
        return warned(
            f"the step of phase 0 still compiles after {seconds:.0f} s",
            "wait, or set compute.layer_loop=scan, which compiles faster; with "
            "JAX_COMPILATION_CACHE_DIR later starts reuse the compiled step",
        )
    deadline = config.deadline_seconds
    slowest = max(timing.step_seconds or 0 for timing in timings)
    if slowest > deadline / 2:
        return warned(
            f"a step takes {slowest:.0f} s, but a process without progress for {deadline:g} s is "
            "ended",
            f"set deadline_seconds={math.ceil(10 * slowest)}, or use faster devices",
        )
    lines = []
    for number in range(len(config.phases)):
        timing = timings[number] if number < len(timings) else None
        if timing is None or timing.step_seconds is None:
            lines.append(f"phase {number} had no time for a step")
        else:
            compiled, step = timing.compile_seconds, timing.step_seconds
            lines.append(f"phase {number} compiles in {compiled:.1f} s, {step:.3g} s per step")
    return passed("; ".join(lines))


def time_steps(config: TrainConfig, mesh: Mesh, timings: list[Timing]) -> None:
    """Compiles and runs each phase's step on rows of ones, and adds its timing to `timings`."""
    objective = OBJECTIVES[config.objective]
    with jax.set_mesh(mesh):
        state = TrainState.initial(config, mesh)
        for number, phase in enumerate(config.phases):
            shapes = device_feed.abstract_batch(phase, fields=objective.fields, mesh=mesh)
            began = time.monotonic()
            lowered = lower_train_step(config, state, shapes, objective=objective, phase=number)
            program = compile_lowered(lowered)
            timing = Timing(time.monotonic() - began)
            require_memory(program, config=config, phase=number, state=state, mesh=mesh)
            timings.append(timing)
            batch = jax.tree.map(_ones, shapes)
            for _ in range(_STEPS):
                began = time.monotonic()
                state, metrics = program(state, batch)
                jax.block_until_ready(metrics)
                seconds = time.monotonic() - began
                known = timings[-1].step_seconds
                timings[-1] = timing._replace(
                    step_seconds=seconds if known is None else min(seconds, known)
                )


def _ones(shape: jax.ShapeDtypeStruct) -> jax.Array:
    def part(index: Any) -> np.ndarray:
        return np.broadcast_to(np.ones((), shape.dtype), shape.shape)[index]

    return jax.make_array_from_callback(shape.shape, shape.sharding, part)


def hours(config: TrainConfig, mesh: Mesh, timings: Sequence[Timing]) -> Finding:
    """The time of the run, without evaluations, saves and interruptions."""
    seconds = _step_seconds(config, timings)
    total = sum(phase.steps * each for phase, each in zip(config.phases, seconds, strict=True))
    steps = f"{config.total_steps:,} steps on {mesh.size} device(s)"
    if _is_measured(timings):
        return passed(f"about {duration(total)} for {steps}, without evaluations and saves")
    return passed(f"more than {duration(total)} for {steps}, by its FLOPs; no step was measured")


def saving(
    config: TrainConfig, memory: DeviceMemory, save_time: SaveTime, timings: Sequence[Timing]
) -> Finding:
    """A save is complete before the next save is due."""
    save = save_time.fixed + save_time.per_byte * memory.state_bytes
    step = min(_step_seconds(config, timings))
    every = config.checkpoint
    interval = 60 * every.every_minutes or every.every_steps * step
    text = f"a save takes about {save:.2g} s, and is due every {interval:.3g} s"
    if not _is_measured(timings):
        return passed(f"{text}, or less often: by the run's FLOPs, since no step was measured")
    if save <= interval:
        return passed(text)
    remedy = (
        f"checkpoint.every_minutes={math.ceil(2 * save / 60)}"
        if every.every_minutes
        else f"checkpoint.every_steps={2 * math.ceil(save / step)}"
    )
    return warned(f"{text}: training would wait for it", f"set {remedy}, or use a faster `workdir`")


def _is_measured(timings: Sequence[Timing]) -> bool:
    return bool(timings) and timings[0].step_seconds is not None


def _step_seconds(config: TrainConfig, timings: Sequence[Timing]) -> list[float]:
    """Returns the seconds of a step per phase: measured, or estimated from its FLOPs and the rate
    of the measured first step, or of a matrix product.
    """
    first = timings[0].step_seconds if timings else None
    rate = (
        peak_flops(config.compute.dtype)
        if first is None
        else preflight.step_seconds(config, 1.0)[0] / first
    )
    known = dict(enumerate(timing.step_seconds for timing in timings))
    return [known.get(i) or each for i, each in enumerate(preflight.step_seconds(config, rate))]
