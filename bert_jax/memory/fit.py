"""Fits the steps of a run into device memory, based on the compiler's report for each program.

`require_memory` checks a compiled step. `settle` searches for settings that fit: it increases the
number of microbatches until the compiled program fits.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh

from bert_jax import config_loader
from bert_jax.config import TrainConfig, flatten, replaced
from bert_jax.errors import UsageError
from bert_jax.memory.free import free_bytes
from bert_jax.model import sharding
from bert_jax.progress import note, ticking
from bert_jax.runtime import distributed, host_allocator
from bert_jax.update.state import TrainState
from bert_jax.update.step import compile_lowered, temporary_bytes
from bert_jax.workdir import checkpoint, run_directory

# The fields that `settle` chooses. Only the first one changes the results of a run, by rounding.
MICROBATCHES, EVALUATION_ROWS = "optimizer.gradient_accumulation_steps", "evaluation.batch_size"
# Maximum number of compilations per step.
MOST_COMPILATIONS = 4
_GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class Demand:
    """The programs of a run: each function lowers the step of a phase for a config."""

    training: Callable[[TrainConfig, int], Any]
    evaluation: Callable[[TrainConfig, int], Any]


class Settled(NamedTuple):
    """The config to run."""

    config: TrainConfig
    # Fields that may differ from those of the run in the workdir.
    allowed: Sequence[str]
    # Phase -> its train step, if it was compiled.
    programs: Mapping[int, Any] = {}


def room_beside_state(config: TrainConfig, mesh: Mesh) -> int | None:
    """Returns the bytes per device that a step may use before the state of a run is allocated.

    The memory of the state and of the copy that a save writes is subtracted. The process with the
    least free memory decides. None if a device does not report its memory.
    """
    devices = mesh.local_devices
    # All CPU devices share the memory of the host.
    is_cpu = devices[0].platform == "cpu"
    free = free_bytes(devices[0])
    free = distributed.smallest(None if free is None else free // (len(devices) if is_cpu else 1))
    state = TrainState.abstract(config, mesh)
    known = sharding.bytes_per_device((state.params, state.opt_state)) + saved_bytes(state, is_cpu)
    return None if free is None else free - known


def saved_bytes(state: TrainState, is_cpu: bool) -> int:
    """Returns the bytes per device of the copy that a background save writes.

    The copy is in host memory, which only CPU devices share with the steps.
    """
    return sharding.bytes_per_device(state) if is_cpu else 0


def require_memory(
    program: Any, *, config: TrainConfig, phase: int, state: Any, mesh: Mesh
) -> None:
    """Raises UsageError, with the fix, if a compiled step needs more memory than is free.

    The arrays of `state` are already allocated.
    """
    devices = mesh.local_devices
    sizes, free = program.memory_analysis(), free_bytes(devices[0])
    if sizes is None or free is None:
        return
    is_cpu = devices[0].platform == "cpu"
    sharing = len(devices) if is_cpu else 1
    needed = (temporary_bytes(sizes) + saved_bytes(state, is_cpu)) * sharing
    if is_cpu and 2 * needed > free:
        # Otherwise freed memory kept by the allocator may double the size of the process.
        host_allocator.map_large_blocks()
    if needed <= free:
        return
    factor = _factor(needed, free)
    smaller = with_microbatches(config.in_phase(phase), factor, shards=sharding.row_shards(mesh))
    raise UsageError(
        f"phase {phase}: a step and a save need {needed / _GIB:.1f} GiB in addition to the state, "
        f"but only {free / _GIB:.1f} GiB are free: {_fix(config, smaller)}"
    )


def _fix(config: TrainConfig, smaller: TrainConfig | None) -> str:
    if smaller is not None:
        number = smaller.optimizer.gradient_accumulation_steps
        return (
            f"let `fit_memory` choose (pretrain: with `allow_change` {MICROBATCHES} if the run has "
            f"a checkpoint), or set {MICROBATCHES}={number}"
        )
    more = "" if config.compute.remat == "full" else "set compute.remat=full, or "
    return f"{more}use a smaller batch or model, more devices or more memory"


# --- the search ----------------------------------------------------------------------------------


def with_microbatches(config: TrainConfig, factor: int, *, shards: int) -> TrainConfig | None:
    """Returns the config with at least `factor` times the microbatches, or as many as possible.

    Every microbatch has at least one row per shard. None if the number is already the maximum.
    """
    rows = [phase.global_batch_size // shards for phase in config.phases]
    now = config.optimizer.gradient_accumulation_steps
    numbers = [n for n in range(now + 1, min(rows) + 1) if all(r % n == 0 for r in rows)]
    if not numbers:
        return None
    number = next((n for n in numbers if n >= factor * now), numbers[-1])
    optimizer = dataclasses.replace(config.optimizer, gradient_accumulation_steps=number)
    return dataclasses.replace(config, optimizer=optimizer)


def with_fewer_rows(config: TrainConfig, factor: int, *, devices: int) -> TrainConfig | None:
    """Returns the config with smaller evaluation batches of at least one row per device."""
    rows = math.ceil(config.evaluation.batch_size / devices)
    if rows == 1:
        return None
    smaller = max(rows // factor, 1) * devices
    evaluation = dataclasses.replace(config.evaluation, batch_size=smaller)
    return dataclasses.replace(config, evaluation=evaluation)


def search(
    config: TrainConfig,
    *,
    needed: Callable[[TrainConfig], float],
    smaller: Callable[[TrainConfig, int], TrainConfig | None],
    room: float,
    tries: int = MOST_COMPILATIONS,
) -> tuple[TrainConfig, float] | None:
    """Returns the first config with a step that needs at most `room` bytes, and these bytes.

    `needed` compiles a step, `smaller` divides it by a factor: the power of two that the last size
    requires, or without limit in the last of the `tries`. None if no step fits.
    """
    for left in range(tries - 1, -1, -1):
        size = needed(config)
        if size <= room:
            return config, size
        found = smaller(config, _factor(size, room) if left > 1 else 2**30)
        if found is None or not left:
            return None
        config = found
    return None


def _factor(size: float, room: float) -> int:
    """Returns the smallest power of two, from 2, by which a size must be divided to fit."""
    if room <= 0 or not math.isfinite(size):
        return 2
    return 2 ** max(math.ceil(math.log2(size / room)), 1)


# --- before a run --------------------------------------------------------------------------------


def settle(
    config: TrainConfig,
    demand: Demand,
    *,
    mesh: Mesh,
    directory: Path,
    choose: bool,
    allowed: Sequence[str] = (),
) -> Settled:
    """Returns the config to run.

    `choose` searches for a number of microbatches and an evaluation batch size that fit. A run with
    a checkpoint keeps its settings, unless `allowed` names the number of microbatches, or these
    devices cannot share its batches. Raises UsageError if no step fits.
    """
    has_steps = (directory / run_directory.CONFIG).is_file() and bool(checkpoint.steps(directory))
    if not has_steps:
        allowed = (*allowed, MICROBATCHES)  # no checkpoint depends on it yet
    if not choose:
        return Settled(config, allowed)
    if MICROBATCHES not in allowed and (begun := _as_begun(config, directory, mesh)) is not None:
        return Settled(begun, allowed)
    chosen, programs = _choose(config, demand, mesh)
    return Settled(chosen, (*allowed, MICROBATCHES), programs)


def _as_begun(config: TrainConfig, directory: Path, mesh: Mesh) -> TrainConfig | None:
    """Returns the config with the settings chosen for the run in a directory; None if these devices
    cannot share its batches then.
    """
    stored = flatten(config_loader.load_config_json(directory / run_directory.CONFIG))
    begun = replaced(config, {name: stored[name] for name in (MICROBATCHES, EVALUATION_ROWS)})
    kept = _difference(config, begun) or "the config is unchanged"
    for number, phase in enumerate(begun.phases):
        pieces = begun.in_phase(number).optimizer.gradient_accumulation_steps
        if phase.global_batch_size % (sharding.row_shards(mesh) * pieces):
            note(f"`fit_memory`: these devices cannot share the batches of this run ({kept}); "
                 "choosing new settings")  # fmt: skip
            return None
    note(f"`fit_memory`: keeping the settings of this run: {kept} (pretrain chooses again "
         f"with `allow_change` {MICROBATCHES})")  # fmt: skip
    return begun


def _choose(config: TrainConfig, demand: Demand, mesh: Mesh) -> tuple[TrainConfig, dict[int, Any]]:
    """Returns a config that fits, and its train steps that were compiled on the way."""
    given, room = config, room_beside_state(config, mesh)
    if room is None:
        note("`fit_memory`: these devices do not report their free memory; no settings changed")
        return config, {}
    shards, largest = sharding.row_shards(mesh), 0.0
    programs: dict[int, tuple[TrainConfig, Any]] = {}

    def fitted(name: str, lower: Callable, smaller: Callable, phase: int) -> TrainConfig:
        nonlocal largest

        def needed(config: TrainConfig) -> float:
            with ticking(f"`fit_memory`: compiling {name}"):
                program, size = _compiled(lower(config, phase))
            programs[phase] = config, program
            # The same in all processes, as a number of MiB, which has at most 31 bits.
            mebibytes = 2**30 if math.isinf(size) else math.ceil(size / 2**20)
            agreed = distributed.largest(mebibytes)
            return math.inf if agreed == 2**30 else agreed * 2**20

        found = search(config, needed=needed, smaller=smaller, room=room)
        if found is None:
            raise UsageError(
                f"{name} needs more than the {max(room, 0) / _GIB:.1f} GiB per device that are "
                f"free in addition to the state and its save: {_fix(config, None)}"
            )
        largest = max(largest, found[1])
        return found[0]

    def of_evaluation(config: TrainConfig, factor: int) -> TrainConfig | None:
        return with_fewer_rows(config, factor, devices=mesh.size)

    def of_training(config: TrainConfig, factor: int) -> TrainConfig | None:
        return with_microbatches(config, factor, shards=shards)

    # The largest batch first: it decides, and the other phases are compiled only once.
    sizes = [phase.global_batch_size * phase.sequence_length for phase in config.phases]
    phases = sorted(range(len(sizes)), key=lambda phase: -sizes[phase])
    with jax.set_mesh(mesh):
        for phase in phases:
            name = f"the evaluation step of phase {phase}"
            config = fitted(name, demand.evaluation, of_evaluation, phase)
        for phase in phases:
            config = fitted(f"the step of phase {phase}", demand.training, of_training, phase)
    note(
        f"`fit_memory`: {_difference(given, config) or 'no settings changed'}: a step needs "
        f"{largest / _GIB:.2f} of {room / _GIB:.2f} GiB that are free per device"
    )
    return config, {phase: program for phase, (of, program) in programs.items() if of == config}


def _compiled(lowered: Any) -> tuple[Any, float]:
    """Returns a program and its bytes per device in addition to its arguments: infinite if the
    compiler rejects it for its size, 0 if it reports none.
    """
    try:
        program = compile_lowered(lowered)
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        return None, math.inf
    sizes = program.memory_analysis()
    return program, 0 if sizes is None else temporary_bytes(sizes)


def _difference(config: TrainConfig, changed: TrainConfig) -> str:
    """Returns the changes from one config to the other, such as "set A=1 set B=2"."""
    old, new = flatten(config), flatten(changed)
    return " ".join(f"set {name}={new[name]}" for name in new if new[name] != old.get(name))
