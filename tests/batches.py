"""Batches of pre-training: random ones, for tests of model and step, and what holds for all."""

import jax
import numpy as np

from bert_jax.config import DataConfig, PhaseConfig
from bert_jax.data.corpus.pieces import BLOCKS, Blocks
from bert_jax.data.corpus.store import Split
from bert_jax.data.pretraining.batch import Batch
from bert_jax.data.pretraining.stream import Stream
from bert_jax.model import sharding
from bert_jax.objectives.mlm_nsp import MLM_NSP


def described_gpu() -> jax.sharding.AbstractMesh:
    """A mesh of one GPU that is not here."""
    device = jax.sharding.AbstractDevice("NVIDIA H200", None, "gpu")
    kinds = (jax.sharding.AxisType.Explicit,) * len(sharding.AXES)
    sizes = (1,) * len(sharding.AXES)
    return jax.sharding.AbstractMesh(sizes, sharding.AXES, kinds, abstract_device=device)


def mesh_of(shape: int | tuple[int, ...]) -> jax.sharding.Mesh:
    """The first devices as a mesh of slices x fsdp x tensor, or of so many along fsdp.

    A fourth number is how many of fsdp are its second axis.
    """
    slices, fsdp, tensor, *inner = (1, shape, 1) if isinstance(shape, int) else shape
    devices = jax.local_devices()[: slices * fsdp * tensor]
    return sharding.make_mesh(
        slices=slices,
        fsdp=fsdp,
        tensor=tensor,
        fsdp_inner=inner[0] if inner else None,
        devices=devices,
    )


def random_batch(
    *, rows: int, length: int, predictions: int, vocab_size: int, seed: int = 0
) -> dict[str, np.ndarray]:
    """A batch with ragged padding, two segments a row and some unused predictions."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(length // 2, length + 1, (rows, 1))
    lengths[0] = length  # one row without padding
    places = np.arange(length)
    real = (places < lengths).astype(np.int32)
    ids = rng.integers(5, vocab_size, (rows, length)) * real
    weights = (np.arange(predictions) < rng.integers(1, predictions + 1, (rows, 1))) * 1.0
    positions = np.stack([rng.permutation(length // 2 - 1)[:predictions] + 1 for _ in range(rows)])
    return {
        "input_ids": ids.astype(np.int32),
        "token_type_ids": ((places >= lengths // 2) * real).astype(np.int32),
        "position_ids": np.tile(places, (rows, 1)).astype(np.int32),
        "sequence_ids": real,
        "mlm_positions": np.sort(positions).astype(np.int32) * (weights > 0).astype(np.int32),
        "mlm_targets": rng.integers(5, vocab_size, (rows, predictions)).astype(np.int32),
        "mlm_weights": weights.astype(np.float32),
        "nsp_positions": np.zeros((rows, 1), np.int32),
        "nsp_labels": rng.integers(0, 2, (rows, 1)).astype(np.int32),
        "nsp_weights": np.ones((rows, 1), np.float32),
    }


def check_batch(
    batch: Batch, *, rows: int, sequence_length: int, max_predictions: int, vocab_size: int
) -> None:
    """Asserts the table of the objective's fields and what holds between its columns."""
    fields = MLM_NSP.fields
    assert set(batch) == set(fields), set(batch) ^ set(fields)
    for name, field in fields.items():
        columns = field.columns(sequence_length=sequence_length, max_predictions=max_predictions)
        assert batch[name].dtype == field.dtype, (name, batch[name].dtype)
        assert batch[name].shape == (rows, columns), (name, batch[name].shape)
    for name, bound in (
        ("input_ids", vocab_size),
        ("mlm_targets", vocab_size),
        ("token_type_ids", 2),
        ("position_ids", sequence_length),
        ("mlm_positions", sequence_length),
        ("nsp_positions", sequence_length),
        ("nsp_labels", 2),
        ("mlm_weights", 2),
        ("nsp_weights", 2),
    ):
        assert (batch[name] >= 0).all() and (batch[name] < bound).all(), name
    is_token = batch["sequence_ids"] != 0
    assert is_token.any(axis=1).all(), "a row without tokens"
    weights = batch["mlm_weights"]
    assert np.isin(weights, (0, 1)).all() and np.isin(batch["nsp_weights"], (0, 1)).all()
    used = weights != 0
    at = np.take_along_axis(is_token, batch["mlm_positions"], axis=1)
    assert at[used].all(), "a prediction on padding"
    apart = np.diff(batch["mlm_positions"], axis=1) > 0
    assert apart[used[:, 1:]].all(), "predictions do not ascend"
    assert (np.diff(weights, axis=1) <= 0).all(), "a prediction after the last one"


def stream_of(
    split: Split, options: DataConfig, phase: PhaseConfig, *, seed: int = 0, blocks: Blocks = BLOCKS
) -> Stream:
    """Returns the rows of a split in phase 0, as a `Pipeline` with one source plans them."""
    phase = phase.resolved(options.masked_lm_prob, packing=options.packing)
    rows = phase.global_batch_size
    return Stream(split, options=options, phase=phase, index=0, seed=seed, rows=rows, blocks=blocks)
