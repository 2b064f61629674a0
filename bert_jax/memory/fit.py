"""Finds settings with which the steps of a run fit into memory.

Three sources say what a step needs: the estimate, before anything is compiled (estimate.py); the
compiler of this machine (compiled.py); and that of TPUs that are not here (`bert-jax plan`). All
share the order in which changes are tried, and the search.

The estimate is within about a fifth of what the compiler says later. So by it only what is clearly
too much is refused, and what is chosen leaves as much room.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh

from bert_jax import config_loader
from bert_jax.config import ComputeConfig, TrainConfig, flatten, replaced
from bert_jax.errors import UsageError
from bert_jax.memory import estimate
from bert_jax.memory.free import free_bytes
from bert_jax.model import sharding
from bert_jax.progress import note
from bert_jax.runtime import distributed, host_allocator
from bert_jax.update.state import TrainState
from bert_jax.workdir import checkpoint, run_directory

# The only one of the fields that are chosen that defines the numbers of a run, by its rounding.
MICROBATCHES = "optimizer.gradient_accumulation_steps"
# The options that are chosen by the free memory.
_CHOSEN = (
    MICROBATCHES,
    "compute.remat",
    "compute.layers",
    "compute.gather",
    "evaluation.batch_size",
)
_POLICIES = ("none", "dots", "full")
# How far the estimate of what is not the state may be from the truth.
_MARGIN = 1.25
# Freed memory that is kept may double what a process takes.
_TWICE = 2
_GIB = 2**30

Change = tuple[str, TrainConfig]
Batch = Mapping[str, Any]


# --- the order in which changes are tried --------------------------------------------------------


def candidates(config: TrainConfig, *, shards: int, platform: str) -> Iterator[Change]:
    """Yields what makes a train step smaller, what costs least first, with its name.

    None of it changes the training beyond rounding: microbatches, down to one row for each of the
    `shards` of a batch; then the same with more rematerialisation, and weights gathered by layer.
    """
    rows = [phase.global_batch_size // shards for phase in config.phases]
    now = config.optimizer.gradient_accumulation_steps
    numbers = [n for n in range(now, min(rows) + 1) if all(r % n == 0 for r in rows)]
    for compute in _computes(config, shards=shards, platform=platform):
        for number in numbers:
            optimizer = dataclasses.replace(config.optimizer, gradient_accumulation_steps=number)
            changed = dataclasses.replace(config, compute=compute, optimizer=optimizer)
            if changed != config:
                yield _difference(config, changed), changed


def evaluation_candidates(config: TrainConfig, *, devices: int) -> Iterator[Change]:
    """Yields smaller batches of the evaluation: half as many rows each time."""
    rows = math.ceil(config.evaluation.batch_size / devices)
    while rows > 1:
        rows //= 2
        evaluation = dataclasses.replace(config.evaluation, batch_size=rows * devices)
        changed = dataclasses.replace(config, evaluation=evaluation)
        yield _difference(config, changed), changed


def _computes(config: TrainConfig, *, shards: int, platform: str) -> Iterator[ComputeConfig]:
    compute = config.compute
    yield compute
    in_effect = estimate.is_rematerialised(config, platform=platform)
    first = _POLICIES.index(compute.remat) + 1 if in_effect else 1
    # On a CPU it has an effect in a loop only.
    layers = "scan" if platform == "cpu" else compute.layers
    for policy in _POLICIES[first:]:
        compute = dataclasses.replace(compute, remat=policy, layers=layers)
        yield compute
    if shards > 1 and compute.gather == "per_step":
        yield dataclasses.replace(compute, gather="per_layer")


def _difference(config: TrainConfig, changed: TrainConfig) -> str:
    """Returns "set A=1 set B=2" for what leads from one config to the other."""
    old, new = flatten(config), flatten(changed)
    return " ".join(f"set {name}={new[name]}" for name in new if new[name] != old.get(name))


# --- the search ----------------------------------------------------------------------------------


class Fitting(NamedTuple):
    """A change that fits: its name, the changed config, and the bytes that this needs."""

    name: str
    config: TrainConfig
    needed: float


def first_that_fits(
    changes: Iterable[Change],
    *,
    room: float,
    expected: Callable[[TrainConfig], float],
    margin: float = 1.0,
    compiled: Callable[[TrainConfig], float] | None = None,
    tries: int | None = None,
) -> Fitting | None:
    """Returns the first change with which a step fits into `room` bytes; None if none does.

    `expected` returns what the step of a config may need, which is wrong by a factor of `margin` at
    most. Where no step surely fits, the smallest that may do is returned: the compiler will say.
    If it can be asked by `compiled`, its figure decides instead, of at most `tries` steps.
    """
    smallest, asked = None, 0
    for name, config in changes:
        needed = expected(config)
        if needed / margin > room:
            continue
        if compiled is not None:
            if asked == tries:
                break
            asked += 1
            note(f"does not fit; trying {name}")
            if (exact := compiled(config)) <= room:
                return Fitting(name, config, exact)
        elif needed * margin <= room:
            return Fitting(name, config, needed)
        elif smallest is None or needed < smallest.needed:
            smallest = Fitting(name, config, needed)
    return smallest


# --- before a run --------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Demand:
    """The global batches that a run with some config computes: arrays, or descriptions of them."""

    # One for each phase.
    training: Callable[[TrainConfig], Sequence[Batch]]
    evaluation: Callable[[TrainConfig], Sequence[Batch]]


class Settled(NamedTuple):
    """The config to run."""

    config: TrainConfig
    # Fields that may differ from those of the run that the directory holds.
    allowed: Sequence[str]
    # Bytes of one device: what the largest step needs, by the estimate, and what is free. None
    # where the devices do not say.
    needed: int | None = None
    room: int | None = None
    is_on_cpu: bool = False

    def set_up_allocator(self) -> None:
        """Lets large blocks go back to the host where keeping them could take more than is free.

        To be called before the run allocates its state.
        """
        if self.is_on_cpu and self.needed and self.room and _TWICE * self.needed > self.room:
            host_allocator.map_large_blocks()


def settle(
    config: TrainConfig,
    demand: Demand,
    *,
    mesh: Mesh,
    directory: Path,
    choose: bool,
    allowed: Sequence[str] = (),
) -> Settled:
    """Returns the config to run, with what its steps need.

    `choose` finds settings with which it fits. A run that has a checkpoint keeps its own, unless
    `allowed` names the number of microbatches, or a batch in as many does not divide over these
    devices; until then nothing hangs on them. Raises UsageError, with the remedy, if the run is
    clearly more than what is free.
    """
    planner = _MemoryPlanner(config, demand, mesh)
    is_kept = choose and _has_steps(directory) and MICROBATCHES not in allowed
    begun = _as_begun(config, directory, mesh) if is_kept else None
    if begun is not None:
        config = begun
    elif choose:
        config, allowed = planner.choose(config), (*allowed, MICROBATCHES)
    needed = planner.require_room(config)
    return Settled(config, allowed, needed, planner.room, planner.is_on_cpu)


def _as_begun(config: TrainConfig, directory: Path, mesh: Mesh) -> TrainConfig | None:
    """Returns the config with what was chosen for the run of a directory; None if its batches do
    not divide over these devices like that.
    """
    stored = flatten(config_loader.load_config_json(directory / run_directory.CONFIG))
    begun = replaced(config, {path: stored[path] for path in _CHOSEN})
    kept = _difference(config, begun) or "as the config says"
    for number, phase in enumerate(begun.phases):
        pieces = begun.in_phase(number).optimizer.gradient_accumulation_steps
        if phase.global_batch_size % (sharding.row_shards(mesh) * pieces):
            note(f"`fit_memory`: this run began with {kept}, which does not divide over these "
                 "devices: chosen anew")  # fmt: skip
            return None
    note(f"`fit_memory`: as this run began: {kept}")
    return begun


def _has_steps(directory: Path) -> bool:
    return (directory / run_directory.CONFIG).is_file() and bool(checkpoint.steps(directory))


class _MemoryPlanner:
    """Compares estimates with what is free for one device, in the process that has least."""

    def __init__(self, config: TrainConfig, demand: Demand, mesh: Mesh):
        devices = mesh.local_devices
        self._demand, self._mesh, self._platform = demand, mesh, devices[0].platform
        self.is_on_cpu = self._platform == "cpu"
        # The devices of a CPU take all of it from one host.
        sharing = len(devices) if self.is_on_cpu else 1
        free = free_bytes(devices[0])
        self.room = distributed.smallest(None if free is None else free // sharing, mesh=mesh)
        # What is known, and no change that is tried alters: the state, its copy while it is saved,
        # and what the process takes for itself.
        self._state = TrainState.abstract(config, mesh)
        self._known = sharding.bytes_per_device((self._state.params, self._state.opt_state))
        self._known += estimate.saved_bytes(self._state, platform=self._platform)
        self._known += estimate.process_bytes(platform=self._platform) // sharing

    def require_room(self, config: TrainConfig) -> int | None:
        """Returns the bytes that the largest step needs, None where nobody says what is free.

        Raises UsageError, with the remedy, if the run is clearly more than that.
        """
        if self.room is None:
            return None
        rest, name = self._largest(config)
        needed = self._known + rest
        if self._known + rest / _MARGIN <= self.room:
            return needed
        if wanted := self._search(config):
            remedy = f"let `fit_memory` choose, or {_difference(config, wanted)}"
        else:
            # A CPU computes bfloat16 in float32, for which it makes copies.
            dtype = "float32" if self.is_on_cpu else "bfloat16"
            other = f"set compute.dtype={dtype}, or " if config.compute.dtype != dtype else ""
            remedy = (
                f"neither microbatches nor rematerialisation are enough: {other}take a smaller "
                "batch or model, more devices or more memory"
            )
        raise UsageError(
            f"{name} would need about {needed / _GIB:.1f} GiB a device, the state and its save "
            f"included, and {self.room / _GIB:.1f} GiB are free: {remedy}"
        )

    def choose(self, config: TrainConfig) -> TrainConfig:
        """Returns the config with which the run fits, at the least cost, and says what it is.

        Where nothing is enough it comes back as it is.
        """
        if self.room is None:
            note("`fit_memory`: these devices do not say how much memory is free; nothing changes")
            return config
        found = self._search(config)
        if found is None:
            return config
        needed = self._known + self._largest(found)[0]
        note(
            f"`fit_memory`: {_difference(config, found) or 'nothing has to change'}: about "
            f"{needed / _GIB:.1f} GiB a device, of {self.room / _GIB:.1f} GiB that are free"
        )
        return found

    def _search(self, config: TrainConfig) -> TrainConfig | None:
        """Returns the first config that fits, or may do."""
        assert self.room is not None
        room, unchanged = self.room - self._known, [("", config)]
        options = {"shards": sharding.row_shards(self._mesh), "platform": self._platform}
        step = first_that_fits(
            itertools.chain(unchanged, candidates(config, **options)),
            room=room,
            expected=lambda c: max(self._training(c)),
            margin=_MARGIN,
        )
        evaluation = first_that_fits(
            itertools.chain(unchanged, evaluation_candidates(config, devices=self._mesh.size)),
            room=room,
            expected=lambda c: max(self._evaluation(c)),
            margin=_MARGIN,
        )
        if step is None or evaluation is None:
            return None
        return dataclasses.replace(step.config, evaluation=evaluation.config.evaluation)

    def _largest(self, config: TrainConfig) -> tuple[int, str]:
        """Returns the bytes beside the state of the largest step, and what it is called."""
        kinds = {"a step": self._training(config), "an evaluation step": self._evaluation(config)}
        return max(
            (rest, f"phase {i}: {name}")
            for name, found in kinds.items()
            for i, rest in enumerate(found)
        )

    def _training(self, config: TrainConfig) -> list[int]:
        return self._estimated(config, self._demand.training, estimate.of_train_step)

    def _evaluation(self, config: TrainConfig) -> list[int]:
        return self._estimated(config, self._demand.evaluation, estimate.of_evaluation_step)

    def _estimated(self, config: TrainConfig, batches: Callable, of: Callable) -> list[int]:
        """Returns the bytes beside the state that a step of each phase needs."""
        places = {"mesh": self._mesh, "platform": self._platform}
        with jax.set_mesh(self._mesh):
            return [
                of(config.in_phase(i), self._state, batch, **places).beside_state
                for i, batch in enumerate(batches(config))
            ]
