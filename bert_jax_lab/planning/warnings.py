"""Warnings of a plan: little work per device, padding, traffic, frequent saves."""

import math
from collections.abc import Iterator
from typing import Any

from bert_jax.config import TrainConfig
from bert_jax.config_checks import mask_warnings
from bert_jax.model import sharding
from bert_jax.versions import LAUNCHED_LIBTPU, installed
from bert_jax_lab.planning.topologies import Topology

_TILE = 128  # matrix units and memory pad a width to a multiple
_MUCH_SAVING = 0.05  # of the time


def warnings(config: TrainConfig, phases: Any, *, topology: Topology) -> Iterator[str]:
    """Yields the warnings, one line each; `phases` are `PhasePlan`s."""
    for phase in phases:
        name = f"length {phase.sequence_length}"
        tokens = phase.global_batch_size * phase.sequence_length / topology.devices
        if not phase.fits:
            why = "the compiler rejects it" if phase.memory_bytes is None else "does not fit"
            yield f"{name}: {why}; {phase.remedy}"
            continue
        if phase.mfu < 0.5:
            yield (
                f"{name}: {tokens:,.0f} tokens per device and step are little work: matmuls take "
                f"{100 * phase.mfu:.0f} % of the step; a larger batch or fewer "
                "devices would use the devices better"
            )
        if phase.memory_bytes > 0.9 * phase.available_bytes:
            share = 100 * phase.memory_bytes / phase.available_bytes
            yield f"{name}: {share:.0f} % of the memory is used; another compiler may reject it"
        yield from _all_reduced(config, phase, name=name)
        yield from _saves(phase, name=name)
    yield from (line.removeprefix("warning: ") for line in mask_warnings(config))
    yield from _padding(config)
    yield from _compiler()


def _compiler() -> Iterator[str]:
    ours = installed("libtpu").get("libtpu")
    if ours is not None and ours != LAUNCHED_LIBTPU:
        yield (
            f"this plan is compiled by libtpu {ours}, but launched runs use {LAUNCHED_LIBTPU}: "
            f"memory and cycles can differ a little; install libtpu=={LAUNCHED_LIBTPU} to plan "
            "with the same version"
        )


def _saves(phase: Any, *, name: str) -> Iterator[str]:
    saving = phase.saving
    if saving.share > _MUCH_SAVING:
        minutes = math.ceil(saving.seconds / _MUCH_SAVING / 60)
        yield (
            f"{name}: {saving.per_hour:,.0f} saves per hour of {saving.bytes / 1e9:.1f} GB, about "
            f"{saving.seconds:.0f} s each, are running {100 * min(saving.share, 1):.0f} % of the "
            f"time; set checkpoint.every_minutes={minutes}"
        )


def _all_reduced(config: TrainConfig, phase: Any, *, name: str) -> Iterator[str]:
    """Yields a warning about gradients that are all-reduced although the weights are sharded."""
    within = [c for c in phase.collectives if c.axes != ("slice",)]
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
