"""Says before anything is compiled whether a run fits into memory, and finds settings that do.

What is compared is an estimate (memory/estimate.py), which is within a fifth of what the
compiler says later (memory.py). So only what is clearly too much is refused here, and what is
chosen leaves as much room.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh

from bert_jax import config_loader
from bert_jax.config import ComputeConfig, TrainConfig, flatten
from bert_jax.errors import UsageError
from bert_jax.memory import estimate
from bert_jax.memory.free import free_bytes
from bert_jax.model import sharding
from bert_jax.progress import note
from bert_jax.runtime import distributed, host_allocator
from bert_jax.update.state import TrainState
from bert_jax.workdir import checkpoint, run_directory

# The fields that are chosen. Only the first one defines the numbers of a run, by its rounding.
MICROBATCHES = "optimizer.gradient_accumulation_steps"
FIELDS = (MICROBATCHES, "compute.remat", "compute.layers", "compute.gather",
          "evaluation.batch_size")  # fmt: skip
POLICIES = ("none", "dots", "full")
# How far the estimate of what is not the state may be from the truth.
_MARGIN = 1.25
# Freed memory that is kept may double what a process takes.
_TWICE = 2
_GIB = 2**30

Change = tuple[str, TrainConfig]
Batch = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Demand:
    """The global batches that a run with some config computes: arrays, or descriptions of them."""

    # One for each phase.
    training: Callable[[TrainConfig], Sequence[Batch]]
    evaluation: Callable[[TrainConfig], Sequence[Batch]]


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


def smaller_training_configs(
    config: TrainConfig, *, shards: int, platform: str
) -> Iterator[Change]:
    """Yields what changes the training: another type, and then the smallest batch."""
    options = {"shards": shards, "platform": platform}
    # A CPU computes bfloat16 in float32, for which it makes copies.
    dtype = "float32" if platform == "cpu" else "bfloat16"
    typed = dataclasses.replace(config, compute=dataclasses.replace(config.compute, dtype=dtype))
    fewest = typed
    for changed in (typed, *(changed for _, changed in candidates(typed, **options))):
        fewest = changed
        if typed != config:
            yield _difference(config, changed), changed
    # A sum over microbatches takes as much as the weights: without one, a row needs less.
    optimizer = dataclasses.replace(config.optimizer, gradient_accumulation_steps=1)
    most = max(phase.global_batch_size // shards for phase in config.phases)
    for halvings in range(1, most.bit_length()):
        phases = tuple(
            dataclasses.replace(
                phase,
                global_batch_size=max(phase.global_batch_size // shards >> halvings, 1) * shards,
            )
            for phase in config.phases
        )
        for like in (config, typed, fewest):
            changed = dataclasses.replace(like, optimizer=optimizer, phases=phases)
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
    first = POLICIES.index(compute.remat) + 1 if in_effect else 1
    # On a CPU it has an effect in a loop only.
    layers = "scan" if platform == "cpu" else compute.layers
    for policy in POLICIES[first:]:
        compute = dataclasses.replace(compute, remat=policy, layers=layers)
        yield compute
    if shards > 1 and compute.gather == "per_step":
        yield dataclasses.replace(compute, gather="per_layer")


def _difference(config: TrainConfig, changed: TrainConfig) -> str:
    """Returns "set A=1 set B=2" for what leads from one config to the other."""
    old, new = flatten(config), flatten(changed)
    return " ".join(f"set {name}={new[name]}" for name in new if new[name] != old.get(name))


# --- before a run --------------------------------------------------------------------------------


def settle(
    config: TrainConfig,
    demand: Demand,
    *,
    mesh: Mesh,
    directory: Path,
    choose: bool,
    allowed: Sequence[str] = (),
) -> tuple[TrainConfig, Sequence[str]]:
    """Returns the config to run, and what may differ in it from the run that `directory` holds.

    `choose` finds settings with which it fits. A run that has a checkpoint keeps its own, unless
    `allowed` names the number of microbatches; until then nothing hangs on them. Raises UsageError,
    with the remedy, if the run is clearly more than what is free.
    """
    desk = _MemoryPlanner(config, demand, mesh)
    if choose and _has_steps(directory) and MICROBATCHES not in allowed:
        stored = flatten(config_loader.load_config_json(directory / run_directory.CONFIG))
        config = _with(config, {name: stored[name] for name in FIELDS})
        note("`fit`: as this run began: " + ", ".join(f"{f}={stored[f]}" for f in FIELDS))
    elif choose:
        config, allowed = desk.choose(config), (*allowed, MICROBATCHES)
    desk.require_room(config)
    return config, allowed


def _has_steps(directory: Path) -> bool:
    return (directory / run_directory.CONFIG).is_file() and bool(checkpoint.steps(directory))


def _with(config: TrainConfig, values: Mapping[str, Any]) -> TrainConfig:
    for name, value in values.items():
        section, field = name.split(".")
        part = dataclasses.replace(getattr(config, section), **{field: value})
        config = dataclasses.replace(config, **{section: part})
    return config


class _Need(NamedTuple):
    """Bytes of one device."""

    what: str
    # What is known: the state, its copy while it is saved, and the process's own; and the rest,
    # which is estimated.
    state: int
    rest: int

    @property
    def total(self) -> int:
        return self.state + self.rest

    def least(self) -> float:
        return self.state + self.rest / _MARGIN

    def most(self) -> float:
        return self.state + self.rest * _MARGIN


class _MemoryPlanner:
    """Estimates beside what is free for one device, in the process that has least."""

    def __init__(self, config: TrainConfig, demand: Demand, mesh: Mesh):
        devices = mesh.local_devices
        self._demand, self._mesh, self._platform = demand, mesh, devices[0].platform
        # No change that is tried alters it.
        self._state = TrainState.abstract(config, mesh)
        # The devices of a CPU take all of it from one host.
        self._sharing = len(devices) if self._platform == "cpu" else 1
        free = free_bytes(devices[0])
        free = None if free is None else free // self._sharing
        self.room = distributed.smallest(free, mesh=mesh)

    def require_room(self, config: TrainConfig) -> None:
        """Raises UsageError, with the remedy, if the run is clearly more than what is free."""
        if self.room is None:
            return
        most = max(self.training(config) + self.evaluation(config), key=lambda need: need.total)
        if most.least() <= self.room:
            if self._platform == "cpu" and _TWICE * most.total > self.room:
                host_allocator.map_large_blocks()
            return
        wanted, is_enough = self._search(config, with_resorts=True)
        remedy = _difference(config, wanted)
        if self._search(config, with_resorts=False)[1]:
            remedy = f"let `fit` choose, or {remedy}"
        if not is_enough:
            remedy = "no setting is enough; it needs more memory, more devices or a smaller model"
        raise UsageError(
            f"{most.what} would need about {most.total / _GIB:.1f} GiB a device, the state and its "
            f"save included, and {self.room / _GIB:.1f} GiB are free: {remedy}"
        )

    def choose(self, config: TrainConfig) -> TrainConfig:
        """Returns the config with which the run fits, at the least cost, and says what it is.

        Where nothing is enough it comes back as it is.
        """
        if self.room is None:
            note("`fit`: these devices do not say how much memory is free; nothing is changed")
            return config
        found, is_enough = self._search(config, with_resorts=False)
        if is_enough:
            most = max(need.total for need in self.training(found) + self.evaluation(found))
            note(
                f"`fit`: {_difference(config, found) or 'nothing has to change'}: about "
                f"{most / _GIB:.1f} GiB a device, of {self.room / _GIB:.1f} GiB that are free"
            )
        return found

    def training(self, config: TrainConfig) -> list[_Need]:
        of = estimate.of_train_step
        return self._needs(config, self._demand.training(config), of, "a step")

    def evaluation(self, config: TrainConfig) -> list[_Need]:
        of = estimate.of_evaluation_step
        return self._needs(config, self._demand.evaluation(config), of, "an evaluation step")

    def _needs(
        self, config: TrainConfig, batches: Sequence[Batch], of: Callable, name: str
    ) -> list[_Need]:
        places = {"mesh": self._mesh, "platform": self._platform}
        known = estimate.saved_bytes(self._state, platform=self._platform)
        known += estimate.process_bytes(platform=self._platform) // self._sharing
        found = []
        with jax.set_mesh(self._mesh):
            for i, batch in enumerate(batches):
                found_here = of(config, self._state, batch, **places)
                state = found_here.weights + found_here.moments
                rest = found_here.total - state
                found.append(_Need(f"phase {i}: {name}", state + known, rest))
        return found

    def _search(self, config: TrainConfig, *, with_resorts: bool) -> tuple[TrainConfig, bool]:
        """Returns the first config that fits, else the smallest, and whether it may do."""
        options = {"shards": sharding.row_shards(self._mesh), "platform": self._platform}

        def train() -> Iterator[Change]:
            yield from candidates(config, **options)
            if with_resorts:
                yield from smaller_training_configs(config, **options)

        step = self._first(config, train(), self.training)
        smaller = evaluation_candidates(config, devices=self._mesh.size)
        evaluation = self._first(config, smaller, self.evaluation)
        if step is None or evaluation is None:
            return config, False
        return dataclasses.replace(step, evaluation=evaluation.evaluation), True

    def _first(
        self,
        config: TrainConfig,
        changes: Iterator[Change],
        needs: Callable[[TrainConfig], list[_Need]],
    ) -> TrainConfig | None:
        assert self.room is not None
        least, smallest = math.inf, config
        for changed in (config, *(changed for _, changed in changes)):
            needed = needs(changed)
            if max(need.most() for need in needed) <= self.room:
                return changed
            if (at_least := max(need.least() for need in needed)) < least:
                least, smallest = at_least, changed
        # It may do; the compiler's figure will say.
        return smallest if least <= self.room else None
