"""Finds how far a step can grow: the largest batch that compiles, and what makes a refused one
fit.
"""

import bisect
import dataclasses
from dataclasses import dataclass
from typing import Any

from bert_jax.config import PhaseConfig, TrainConfig
from bert_jax.memory import estimate, fit
from bert_jax.memory.fit import POLICIES
from bert_jax.model import sharding
from bert_jax.progress import note
from bert_jax.registry import OBJECTIVES
from bert_jax.training import device_feed
from bert_jax.update.state import TrainState
from bert_jax_lab.planning import aot_compile
from bert_jax_lab.planning.topologies import Topology

# Compilations for one phase and policy, or for one remedy.
_MOST_TRIES = 8
# Times what is there, by an estimate: such a change is not tried.
_SURELY_TOO_MUCH = 1.25
_LARGEST_BATCH = 2**20
# Rows a group of devices that are tried: within an eighth of whatever the limit is.
_SIZES = (*range(1, 8), *(eighths << e for e in range(18) for eighths in range(8, 16)))


@dataclass(frozen=True, kw_only=True)
class Limit:
    """The largest batch that compiles, to an eighth; 0 if none does."""

    sequence_length: int
    remat: str
    global_batch_size: int
    memory_bytes: int
    tries: int
    is_exact: bool  # the next size, at most an eighth larger, was refused


def limits(config: TrainConfig, *, mesh: Any, topology: Topology) -> tuple[Limit, ...]:
    """Returns one limit for each phase and rematerialisation policy.

    Each takes several compilations.
    """
    found = []
    for phase in config.phases:
        for policy in POLICIES:
            compute = dataclasses.replace(config.compute, remat=policy)
            changed = dataclasses.replace(config, compute=compute)
            limit = _limit(changed, phase, mesh=mesh, topology=topology)
            found.append(limit)
            note(
                f"frontier: length {phase.sequence_length}, remat {policy}: "
                f"{limit.global_batch_size:,} rows after {limit.tries} compilations"
            )
    return tuple(found)


def _limit(config: TrainConfig, phase: PhaseConfig, *, mesh: Any, topology: Topology) -> Limit:
    """Bisects over `_SIZES`; two that fit predict, by a line, where the limit lies."""
    shards = mesh.shape["slice"] * mesh.shape["fsdp"]
    shards *= config.optimizer.gradient_accumulation_steps
    sizes = [size for size in _SIZES if size * shards <= _LARGEST_BATCH]
    fit: dict[int, int] = {}  # place in `sizes` -> bytes
    low, high = -1, len(sizes)
    guess = max(bisect.bisect_right(sizes, phase.global_batch_size // shards) - 1, 0)
    tries = 0
    while low + 1 < high and tries < _MOST_TRIES:
        tries += 1
        changed = dataclasses.replace(phase, global_batch_size=shards * sizes[guess])
        try:
            figures = aot_compile.train_figures(config, changed, mesh=mesh, topology=topology)
            fit[guess], low = figures.memory.total, guess
        except aot_compile.DoesNotFit:
            high = guess
        guess = _next(fit, sizes, low=low, high=high, available=topology.chip.compiler_bytes)
    return Limit(
        sequence_length=phase.sequence_length,
        remat=config.compute.remat,
        global_batch_size=shards * sizes[low] if low >= 0 else 0,
        memory_bytes=fit.get(low, 0),
        tries=tries,
        is_exact=low + 1 == high and high < len(sizes),
    )


def _next(fit: dict[int, int], sizes: list[int], *, low: int, high: int, available: int) -> int:
    """Returns the place in `sizes` to try next, strictly between `low` and `high`."""
    if len(fit) >= 2:
        (a, bytes_a), (b, bytes_b) = sorted(fit.items())[-2:]
        slope = max((bytes_b - bytes_a) / (sizes[b] - sizes[a]), 1.0)
        room = sizes[b] + (available - bytes_b) / slope
        expected = bisect.bisect_right(sizes, room) - 1
        # First what should fit, then the size above it, which should not.
        expected = expected if expected > low else low + 1
    elif fit:
        expected = bisect.bisect_right(sizes, 4 * sizes[low]) - 1  # a second point for the line
    else:
        expected = (low + high) // 2
    return min(max(expected, low + 1), high - 1)


def remedy(
    config: TrainConfig, phase: PhaseConfig, refusal: aot_compile.DoesNotFit, *, mesh: Any,
    topology: Topology,
) -> str:  # fmt: skip
    """Returns what makes a refused step fit, tried by compiling it: the least change that does.

    By the estimate it is known which changes are far from enough: these are not tried.
    """
    state = TrainState.abstract(config, mesh)

    def total(config: TrainConfig) -> int:
        fields = OBJECTIVES[config.objective].fields
        batch = device_feed.abstract_batch(phase, fields=fields, mesh=mesh)
        places = {"mesh": mesh, "platform": "tpu"}
        return estimate.of_train_step(config, state, batch, **places).total

    now, tries = total(config), 0
    for name, changed in fit.candidates(config, shards=sharding.row_shards(mesh), platform="tpu"):
        expected = refusal.needed * total(changed) / now
        if expected > _SURELY_TOO_MUCH * refusal.available:
            continue
        tries += 1
        if tries > _MOST_TRIES:
            break
        note(f"does not fit; trying {name}")
        try:
            figures = aot_compile.train_figures(changed, phase, mesh=mesh, topology=topology)
        except aot_compile.DoesNotFit:
            continue
        return f"it does with {name} ({figures.memory.total / 2**30:.2f} GiB a device)"
    less = "more chips, or a smaller batch"
    return f"neither rematerialisation nor accumulation is enough: it needs {less}"


def evaluation_remedy(
    config: TrainConfig, shape: PhaseConfig, *, mesh: Any, topology: Topology
) -> str:
    """Returns what makes an evaluation step of that batch fit: fewer rows, tried by compiling
    it.
    """
    evaluation = dataclasses.replace(config.evaluation, batch_size=shape.global_batch_size)
    refused = dataclasses.replace(config, evaluation=evaluation)
    for name, changed in fit.evaluation_candidates(refused, devices=mesh.size):
        note(f"the evaluation step does not fit; trying {name}")
        smaller = dataclasses.replace(shape, global_batch_size=changed.evaluation.batch_size)
        try:
            figures = aot_compile.eval_figures(config, smaller, mesh=mesh, topology=topology)
        except aot_compile.DoesNotFit:
            continue
        fits = f"{figures.memory.total / 2**30:.2f} GiB a device"
        return f"the evaluation step does with {name} ({fits})"
    return "the evaluation step is what does not fit, with any batch: it needs more chips"
