"""Warnings of a plan: too little work, padding, copies, traffic, slow hosts."""

import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

import jax

from bert_jax.config import TrainConfig
from bert_jax.config_checks import mask_warnings
from bert_jax.model import sharding
from bert_jax.update.state import TrainState
from bert_jax.versions import LAUNCHED_LIBTPU, installed
from bert_jax_lab.planning import save_cost
from bert_jax_lab.planning.topologies import Topology

_TILE = 128  # what matrix units and memory pad a width to
_HOP_SECONDS = 1e-6  # from chip to chip; an order of magnitude, not a data sheet's figure


def warnings(config: TrainConfig, phases: Any, *, topology: Topology, mesh: Any) -> Iterator[str]:
    """Returns the warnings, one line each; `phases` are `PhasePlan`s."""
    for phase in phases:
        name = f"length {phase.sequence_length}"
        tokens = phase.global_batch_size * phase.sequence_length / topology.devices
        if not phase.fits:
            why = "is not compiled" if phase.memory_bytes is None else "does not fit"
            yield f"{name}: {why}; {phase.remedy}"
            continue
        if phase.product_seconds < 0.5 * phase.step_seconds:
            yield (
                f"{name}: {tokens:,.0f} tokens a device and step are little work: matrix products "
                f"fill {100 * phase.mfu:.0f} % of the step; a larger batch or fewer devices would "
                "use them better"
            )
        if phase.memory_bytes > 0.9 * phase.available_bytes:
            share = 100 * phase.memory_bytes / phase.available_bytes
            yield f"{name}: {share:.0f} % of the memory is used; another compiler may refuse it"
        unstated = Counter[str]()
        for kernel in phase.kernels:
            if kernel.flops is None:
                unstated[kernel.kind] += kernel.count
        if unstated:
            listed = ", ".join(f"{count} x {kind}" for kind, count in unstated.most_common())
            yield f"{name}: no FLOPs are stated for {listed}: charged by their bytes only"
        yield from _collectives(config, phase, name=name, topology=topology)
    yield from save_cost.warnings(phases)
    yield from (line.removeprefix("warning: ") for line in mask_warnings(config))
    yield from _padding(config)
    yield from _copies(config, mesh)
    yield from _compiler()


def _compiler() -> Iterator[str]:
    ours = installed("libtpu").get("libtpu")
    if ours is not None and ours != LAUNCHED_LIBTPU:
        yield (
            f"this plan is compiled by libtpu {ours}, and launched runs use {LAUNCHED_LIBTPU}: "
            f"memory and cycles can differ a little; install libtpu=={LAUNCHED_LIBTPU} to plan "
            "with the same version"
        )


def _collectives(
    config: TrainConfig, phase: Any, *, name: str, topology: Topology
) -> Iterator[str]:
    within = [c for c in phase.collectives if c.axes != ("slice",)]
    count = sum(c.count for c in within)
    latency = sum(c.count * _HOP_SECONDS * (c.group_size // 2) for c in within)
    if latency > 0.05 * phase.step_seconds:
        yield (
            f"{name}: {count} collectives a step; at a microsecond a hop they would take "
            f"{1e3 * latency:.1f} ms more to start than predicted, if nothing hid it"
        )
    reduced = sum(
        c.bytes for c in within if c.kind == "all-reduce" and {*c.axes} & {*sharding.FSDP}
    )
    scattered = sum(c.bytes for c in within if c.kind == "reduce-scatter")
    if config.mesh.shard_weights and reduced > 0.2 * (reduced + scattered):
        yield (
            f"{name}: {reduced / 2**20:,.0f} MiB are all-reduced although the weights are sharded: "
            "reduce-scattering them would halve that traffic"
        )


def _padding(config: TrainConfig) -> Iterator[str]:
    size = config.model.vocab_size
    if size % _TILE:
        padded = math.ceil(size / _TILE) * _TILE
        yield (
            f"model.vocab_size {size:,} is padded to {padded:,} in the matrix units "
            f"({100 * (padded / size - 1):.1f} % more work in the vocabulary head)"
        )
    head = config.model.hidden_size // config.model.num_attention_heads
    if head % _TILE:
        yield f"heads of {head} fill {100 * head / _TILE:.0f} % of a matrix unit's {_TILE} columns"


def _copies(config: TrainConfig, mesh: Any) -> Iterator[str]:
    """Yields parameters of which every device has a copy although weights are to be sharded."""
    devices = sharding.fsdp_size(mesh)
    if not config.mesh.shard_weights or devices == 1:
        return
    whole = 0
    for path, leaf in jax.tree_util.tree_leaves_with_path(TrainState.abstract(config, mesh).params):
        spec = sharding.param_spec(path, leaf.shape, mesh=mesh, shard_weights=True)
        if sharding.FSDP not in spec and math.prod(leaf.shape) >= 2**16:
            whole += math.prod(leaf.shape) * leaf.dtype.itemsize
    if whole:
        yield (
            f"{whole / 2**20:,.1f} MiB of weights have no dim that {devices} devices divide: each "
            "keeps a copy"
        )
