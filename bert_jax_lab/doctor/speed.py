"""Checks by doing: the steps compile and run, the run takes so long, and saves keep up with it."""

import math
import threading
import time
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from bert_jax.config import TrainConfig
from bert_jax.memory.fit import require_memory
from bert_jax.progress import duration
from bert_jax.registry import OBJECTIVES
from bert_jax.training import device_feed, preflight
from bert_jax.update.flops import peak_flops
from bert_jax.update.state import TrainState
from bert_jax.update.step import compile_lowered, lower_train_step
from bert_jax_lab.doctor.checked_run import Case, Timing
from bert_jax_lab.doctor.finding import Finding, passed, warned

# Of each phase; the first one warms up.
_STEPS = 3


def steps(case: Case) -> Finding:
    """The step of each phase compiles, fits into memory by the compiler's figure, and runs; as far
    as time allows.
    """
    errors: list[Exception] = []

    def work(config: TrainConfig, mesh: Mesh) -> None:
        try:
            time_steps(config, mesh, case.timings)
        except Exception as error:
            errors.append(error)

    # Nothing ends a compilation: one that takes too long is left behind.
    thread = threading.Thread(target=work, args=(case.config, case.mesh), daemon=True)
    began = time.monotonic()
    thread.start()
    thread.join(max(case.ends_at - began, 1.0))
    case.is_unfinished = thread.is_alive()
    if errors:
        raise errors[0]
    timings = [*case.timings]
    if not timings:
        return warned(
            f"the step of phase 0 still compiles after {time.monotonic() - began:.0f} s",
            "none, if you can wait; set compute.layers=scan compiles sooner, and with "
            "JAX_COMPILATION_CACHE_DIR later starts find what was compiled",
        )
    deadline = case.config.deadline_seconds
    slowest = max(timing.step_seconds or 0 for timing in timings)
    if slowest > deadline / 2:
        return warned(
            f"a step takes {slowest:.0f} s, and a process that makes no progress for {deadline:g} "
            "s is ended",
            f"set deadline_seconds={math.ceil(10 * slowest)}, or take faster devices",
        )
    lines = [_describe(number, timing) for number, timing in enumerate(timings)]
    if len(timings) < len(case.config.phases):
        lines.append(f"there was no time for phase {len(timings)}")
    return passed("; ".join(lines))


def _describe(phase: int, timing: Timing) -> str:
    step = (
        "no step in time" if timing.step_seconds is None else f"{timing.step_seconds:.3g} s a step"
    )
    return f"phase {phase} compiles in {timing.compile_seconds:.1f} s, {step}"


def time_steps(config: TrainConfig, mesh: Mesh, timings: list[Timing]) -> None:
    """Compiles and runs each phase's step on rows of ones, and adds what that took to `timings`."""
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


def hours(case: Case) -> Finding:
    """How long the run takes, without evaluations, saves and interruptions."""
    seconds = _step_seconds(case)
    total = sum(phase.steps * each for phase, each in zip(case.config.phases, seconds, strict=True))
    steps = f"{case.config.total_steps:,} steps on {case.mesh.size} device(s)"
    if _is_measured(case):
        return passed(f"about {duration(total)} for {steps}, without evaluations and saves")
    text = f"more than {duration(total)} for {steps}: by its matrix products"
    return passed(f"{text}; no step was measured")


def saving(case: Case) -> Finding:
    """A save is whole before the next one is due."""
    fixed, for_a_byte = case.save_seconds
    save = fixed + for_a_byte * case.state_bytes
    step = min(_step_seconds(case))
    config = case.config.checkpoint
    interval = 60 * config.every_minutes or config.every_steps * step
    due = (
        f"{config.every_minutes:g} minutes"
        if config.every_minutes
        else f"{config.every_steps:,} steps or {_short(interval)}"
    )
    text = f"a save takes about {_short(save)}, and is due every {due}"
    if not _is_measured(case):
        return passed(f"{text}, or more: by the run's matrix products, for no step was measured")
    if save > interval:
        remedy = (
            f"checkpoint.every_minutes={math.ceil(2 * save / 60)}"
            if config.every_minutes
            else f"checkpoint.every_steps={2 * math.ceil(save / step)}"
        )
        return warned(
            f"{text}: training would wait for it", f"set {remedy}, or take a faster `workdir`"
        )
    return passed(text)


def _short(seconds: float) -> str:
    return f"{seconds:.2g} s" if seconds < 90 else duration(seconds)


def _is_measured(case: Case) -> bool:
    return bool(case.timings) and case.timings[0].step_seconds is not None


def _step_seconds(case: Case) -> list[float]:
    """Returns the seconds of a step of each phase: measured, or by its FLOPs at the rate of those
    that were measured, else at that of a matrix product.
    """
    known = dict(enumerate(timing.step_seconds for timing in case.timings))
    expected = preflight.step_seconds(case.config, _rate(case))
    return [known.get(i) or seconds for i, seconds in enumerate(expected)]


def _rate(case: Case) -> float:
    """Returns FLOP/s: of the first phase's step where that was measured, else of a product."""
    first = case.timings[0].step_seconds if case.timings else None
    if first is None:
        return peak_flops(case.config.compute.dtype)
    return preflight.step_seconds(case.config, 1.0)[0] / first
