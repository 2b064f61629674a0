"""Checks what must be true before a run begins; each check raises UsageError where it is not."""

from typing import Any

import jax

from bert_jax.config import PhaseConfig, TrainConfig
from bert_jax.data.corpus.store import Corpus
from bert_jax.errors import UsageError
from bert_jax.model import sharding
from bert_jax.registry import OBJECTIVES


def mesh_shape(config: TrainConfig) -> dict[str, int]:
    """Returns the arguments of `sharding.make_mesh` that use every device once."""
    wanted, devices = config.mesh, jax.device_count()
    real = len({getattr(device, "slice_index", 0) for device in jax.devices()})
    if real > 1 and wanted.slices != real:
        raise UsageError(
            f"the devices are those of {real} slices, but mesh.slices is {wanted.slices}; use "
            f"set mesh.slices={real}"
        )
    others = wanted.slices * wanted.tensor
    if devices % others or wanted.fsdp not in (-1, devices // others):
        raise UsageError(
            f"mesh.slices x mesh.fsdp x mesh.tensor is {wanted.slices} x {wanted.fsdp} x "
            f"{wanted.tensor}, but there are {devices} devices; mesh.fsdp=-1 uses what is left"
        )
    return {"slices": wanted.slices, "fsdp": wanted.fsdp, "tensor": wanted.tensor}


def require_divisible(phase: PhaseConfig, mesh: Any, config: TrainConfig) -> None:
    """Checks that every device gets the same number of rows."""
    microbatches = config.optimizer.gradient_accumulation_steps
    try:
        sharding.rows_per_device(mesh, phase.global_batch_size // microbatches)
    except ValueError as error:
        raise UsageError(
            f"config {config.name!r}: global_batch_size {phase.global_batch_size} in "
            f"{microbatches} microbatch(es): {error}; take a multiple of "
            f"{sharding.row_shards(mesh) * microbatches}"
        ) from error


def require_fitting(config: TrainConfig, corpus: Corpus) -> None:
    """Requires that the model has the heads of its objective and a row for every token."""
    objective = OBJECTIVES[config.objective]
    if set(config.head.parts) != set(objective.parts):
        raise UsageError(
            f"config {config.name!r}: head.parts is {', '.join(config.head.parts)}; objective "
            f"{config.objective} needs {', '.join(objective.parts)}"
        )
    if corpus.vocab_size > config.model.vocab_size:
        raise UsageError(
            f"corpus {corpus.directory} has token ids up to {corpus.vocab_size - 1}, but "
            f"model.vocab_size is {config.model.vocab_size}; use "
            f"set model.vocab_size={corpus.vocab_size} or prepare with a smaller `vocab_size`"
        )
