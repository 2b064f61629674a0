"""Packed examples have the same losses and gradients as examples in separate rows."""

import dataclasses
from functools import partial

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_jax.config import ComputeConfig, HeadConfig
from bert_jax.data.tasks.encode_rows import Batches, Features
from bert_jax.data.tasks.packing import PackedBatches, first_fit
from bert_jax.model import bert, sharding
from bert_jax.objectives.task import TaskObjective
from tests.tiny_tasks import MODEL

_LABELS = ("no", "yes", "perhaps")
HEADS = {
    "class": HeadConfig(parts=("pooler", "sequence_classifier"), labels=_LABELS),
    "number": HeadConfig(parts=("pooler", "sequence_classifier")),
    "tokens": HeadConfig(parts=("token_classifier",), labels=_LABELS),
}


def features(kind: str, *, count: int = 64, length: int = 48, seed: int = 0) -> Features:
    """Texts of 3 to 40 tokens, most of them short; every fourth has weight 0."""
    draw = np.random.default_rng(seed)
    lengths = np.clip(draw.geometric(0.15, count) + 2, 3, 40).astype(np.int32)
    is_token = np.arange(length) < lengths[:, None]
    shape = (count, length) if kind == "tokens" else (count,)
    labels = draw.integers(0, 3, shape).astype(np.float32 if kind == "number" else np.int32)
    return Features(
        np.where(is_token, draw.integers(5, 60, (count, length)), 0).astype(np.int32),
        np.where(is_token, draw.integers(0, 2, (count, length)), 0).astype(np.int32),
        lengths,
        labels,
        np.float32((draw.random(shape) > 0.25) & (is_token if kind == "tokens" else True)),
    )


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(1, 20), min_size=1, max_size=40), st.integers(1, 6))
def test_each_example_has_its_position(lengths, slots):
    lengths = np.array(lengths)

    def rows_of(slots):
        order, counts = first_fit(lengths, length=20, slots=slots)
        assert sorted(order) == list(range(len(lengths)))
        assert counts.min() >= 1 and counts.max() <= slots
        used = np.add.reduceat(lengths[order], np.cumsum(counts) - counts)
        assert used.max() <= 20
        return used

    rows_of(slots)
    # Except for the limit of slots, no two rows would fit into one.
    used = sorted(rows_of(len(lengths)))
    assert len(used) < 2 or used[0] + used[1] > 20


@pytest.mark.parametrize("kind", HEADS)
def test_a_batch_holds_each_example_once(kind):
    found = features(kind)
    batches = PackedBatches(found, size=16, multiple=4)
    assert batches.length == 40
    chosen = np.random.default_rng(1).permutation(64)[:16]
    batch = batches(chosen)
    rows = len(batch["input_ids"])
    assert rows < 16 and rows % 4 == 0
    texts = []
    for row in range(rows):
        for number in range(1, batch["sequence_ids"][row].max() + 1):
            here = batch["sequence_ids"][row] == number
            texts.append((row, number, here))
            assert batch["position_ids"][row, here].tolist() == list(range(here.sum()))
    assert len(texts) == 16

    def of_batch(row, number, here):
        learned = (row, here) if kind == "tokens" else (row, number - 1)
        if kind != "tokens":
            assert batch["text_positions"][learned] == np.flatnonzero(here)[0]
        parts = (batch[name][row, here] for name in ("input_ids", "token_type_ids"))
        return (*parts, batch["labels"][learned], batch["weights"][learned])

    def of_features(example):
        here = slice(found.lengths[example])
        learned = (example, here) if kind == "tokens" else example
        parts = (array[example, here] for array in (found.input_ids, found.token_type_ids))
        return (*parts, found.labels[learned], found.weights[learned])

    def sorted_bytes(examples):
        return sorted(tuple(np.asarray(part).tobytes() for part in parts) for parts in examples)

    assert sorted_bytes(of_batch(*text) for text in texts) == sorted_bytes(map(of_features, chosen))
    # Positions outside the examples are padding with weight 0.
    assert not batch["input_ids"][batch["sequence_ids"] == 0].any()
    assert batch["weights"].sum() == found.weights[chosen].sum()


def test_shapes_are_few():
    batches = PackedBatches(features("class", count=500), size=32)
    draw = np.random.default_rng(2)
    shapes = {batches(draw.permutation(500)[:32])["input_ids"].shape for _ in range(200)}
    assert len(shapes) <= 3 and max(shapes)[0] < 32


def test_examples_as_long_as_a_row_have_one_each():
    found = features("class")
    full = dataclasses.replace(found, lengths=np.full(64, 41, np.int32))
    batches = PackedBatches(full, size=16)
    batch = batches(np.arange(16))
    assert batches.slots == 1 and batch["input_ids"].shape == (16, 48)
    assert batch["labels"][:, 0].tolist() == found.labels[:16].tolist()


def params_of(head, mesh):
    # Outside of the mesh: its operations are compiled one by one, for each mesh.
    return jax.device_put(bert.init_params(MODEL, head, seed=0), jax.NamedSharding(mesh, jax.P()))


def test_losses_and_gradients_equal_those_of_separate_rows():
    """On all devices, in float32: only the order of sums differs. The losses of classes, of texts
    and of tokens, are compared with other software (tests/interchange/test_task_heads.py).
    """
    found, head = features("number"), HEADS["number"]
    chosen = np.random.default_rng(3).permutation(64)[:16]
    mesh = sharding.make_mesh(fsdp=-1, tensor=1)

    def mean(params, batch):
        outputs = bert.apply(
            params, batch, config=MODEL, head=head, compute=ComputeConfig(dtype="float32")
        )
        sums = TaskObjective(head).sums(outputs, batch)
        return sums["task_loss"] / sums["task_count"], sums

    results, params = [], params_of(head, mesh)
    with jax.set_mesh(mesh):
        for batches in (
            Batches(found, size=16),
            PackedBatches(found, size=16, multiple=sharding.row_shards(mesh)),
        ):
            batch = jax.device_put(batches(chosen), sharding.batch_sharding(mesh))
            results.append(jax.device_get(jax.jit(jax.grad(mean, has_aux=True))(params, batch)))
    (apart, sums_apart), (packed, sums_packed) = results
    for name, value in sums_apart.items():
        np.testing.assert_allclose(sums_packed[name], value, rtol=1e-5)
    largest = max(np.abs(leaf).max() for leaf in jax.tree.leaves(apart))
    close = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6 * largest)
    jax.tree.map(close, packed, apart)
