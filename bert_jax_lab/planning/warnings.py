"""Warnings of a plan: little work per device, masks, versions."""

from collections.abc import Iterator
from typing import Any

from bert_jax.config import TrainConfig
from bert_jax.config_checks import mask_warnings
from bert_jax.versions import LAUNCHED_LIBTPU, installed
from bert_jax_lab.planning.topologies import Topology


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
    yield from (line.removeprefix("warning: ") for line in mask_warnings(config))
    yield from _compiler()


def _compiler() -> Iterator[str]:
    ours = installed("libtpu").get("libtpu")
    if ours is not None and ours != LAUNCHED_LIBTPU:
        yield (
            f"this plan is compiled by libtpu {ours}, but launched runs use {LAUNCHED_LIBTPU}: "
            f"memory and cycles can differ a little; install libtpu=={LAUNCHED_LIBTPU} to plan "
            "with the same version"
        )
