"""The model against its own promises; against transformers see test_parity.py."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding

from bert_jax.config import ComputeConfig, ModelConfig
from bert_jax.model import bert, sharding
from bert_jax.model.dropout import DropoutKey
from bert_jax.objectives.mlm_nsp import MLM_NSP
from tests.batches import mesh_of, random_batch

pytestmark = pytest.mark.core

_MODEL = ModelConfig(
    vocab_size=211,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=64,
    max_position_embeddings=32,
)
_FLOAT32 = ComputeConfig(dtype="float32")
_LARGE = {
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
}


@pytest.fixture
def mesh():
    mesh = mesh_of((1, 8, 1))
    with jax.set_mesh(mesh):
        yield mesh


@functools.cache
def params_of_seed():
    return jax.device_get(bert.init_params(_MODEL, seed=0))


def dropout_loss(params, batch, rows_B, *, compute):
    key = DropoutKey.create(seed=5, step=np.int32(2), rows_B=rows_B)
    outputs = bert.apply(params, batch, config=_MODEL, compute=compute, key=key)
    return MLM_NSP.metrics(MLM_NSP.sums(outputs, batch))["loss"]


# One function for all tests, which share its programs.
value_and_gradients = jax.jit(jax.value_and_grad(dropout_loss), static_argnames="compute")


def loss_and_gradients(params, batch, *, compute, mesh):
    rows = np.arange(len(batch["input_ids"]), dtype=np.uint32)
    params = jax.device_put(params, NamedSharding(mesh, jax.P()))
    placed = jax.device_put((batch, rows), sharding.batch_sharding(mesh))
    return value_and_gradients(params, *placed, compute=compute)


@pytest.mark.parametrize(
    ("shape", "count"), [({}, 110_106_428), (_LARGE, 336_226_108)], ids=["base", "large"]
)
def test_parameter_counts_are_the_published_ones(shape, count):
    assert bert.parameter_count(bert.abstract_params(ModelConfig(**shape))) == count


def test_initial_weights_are_a_normal_cut_at_two_deviations():
    params = bert.init_params(
        dataclasses.replace(_MODEL, hidden_size=256, intermediate_size=512), seed=0
    )
    matrices = 0
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        name, values = path[-1].key, np.asarray(leaf, np.float64)
        if name == "bias":
            assert not values.any()
        elif name == "scale":
            assert (values == 1).all()
        else:
            matrices += 1
            n = values.size
            # Mean 0 and deviation 0.8796 of a standard normal cut at +-2, times 0.02.
            deviation = 0.02 * 0.87962566
            assert abs(values.mean()) < 5 * deviation / np.sqrt(n)
            assert abs(values.std() / deviation - 1) < 5 / np.sqrt(2 * n)
            assert abs(values).max() <= 0.04
    assert matrices == 3 + 6 * _MODEL.num_hidden_layers + 3


def test_loss_at_the_start_is_that_of_guessing(mesh):
    params = params_of_seed()
    batch = random_batch(rows=8, length=32, predictions=5, vocab_size=_MODEL.vocab_size)
    loss, _ = loss_and_gradients(params, batch, compute=_FLOAT32, mesh=mesh)
    assert float(loss) == pytest.approx(np.log(_MODEL.vocab_size) + np.log(2), abs=0.1)


def test_padding_is_invisible(mesh):
    """Other ids in the padding change nothing, and the padding's embeddings get no gradient."""
    params = params_of_seed()
    batch = random_batch(rows=8, length=32, predictions=5, vocab_size=200)
    other = dict(batch)
    other["input_ids"] = np.where(batch["sequence_ids"] == 0, 207, batch["input_ids"])
    loss, _ = loss_and_gradients(params, batch, compute=_FLOAT32, mesh=mesh)
    other_loss, gradients = loss_and_gradients(params, other, compute=_FLOAT32, mesh=mesh)
    assert float(loss) == float(other_loss)
    word = np.asarray(gradients["encoder"]["embeddings"]["word"]["embedding"])
    # The tied output gives every row a gradient; its part is what row 206, never an input, has too.
    used = np.abs(word[207] - word[206]).max()
    assert used < 1e-3 < np.abs(word[other["input_ids"][0, 1]]).max()


def test_remat_and_scan_change_nothing():
    """On one device; below and in tests/model/test_sharding.py others are compared with it."""
    params = params_of_seed()
    batch = random_batch(rows=8, length=32, predictions=5, vocab_size=_MODEL.vocab_size)
    rows_B = np.arange(8, dtype=np.uint32)
    expected = value_and_gradients(params, batch, rows_B, compute=_FLOAT32)
    for layers, remat in (
        ("unroll", "full"),
        ("unroll", "dots"),
        ("scan", "none"),
        ("scan", "dots"),
    ):
        compute = ComputeConfig(dtype="float32", layer_loop=layers, remat=remat)
        actual = value_and_gradients(params, batch, rows_B, compute=compute)
        for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6, err_msg=f"{layers}, {remat}")


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"weight_gather": "per_layer", "remat": "full"},
        {"attention": "plain", "layer_loop": "scan", "remat": "dots"},
    ],
    ids=lambda changes: ", ".join(changes.values()) or "default",
)
def test_without_any_mesh_it_is_what_it_is_on_one(changes):
    """A loss with dropout and its gradients; on one device, as in a notebook."""
    compute = dataclasses.replace(_FLOAT32, **changes)
    params = params_of_seed()
    batch = random_batch(rows=8, length=32, predictions=5, vocab_size=_MODEL.vocab_size)
    rows_B = np.arange(8, dtype=np.uint32)
    assert jax.sharding.get_abstract_mesh().empty
    alone = value_and_gradients(params, batch, rows_B, compute=compute)
    mesh = mesh_of((1, 4, 2))
    with jax.set_mesh(mesh):
        meshed = loss_and_gradients(params, batch, compute=compute, mesh=mesh)
    for a, b in zip(jax.tree.leaves(alone), jax.tree.leaves(meshed), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
        assert a.sharding.is_fully_addressable and len(a.sharding.device_set) == 1


def test_bfloat16_is_close_and_keeps_float32_masters(mesh):
    params = params_of_seed()
    batch = random_batch(rows=8, length=32, predictions=5, vocab_size=_MODEL.vocab_size)
    exact, _ = loss_and_gradients(params, batch, compute=_FLOAT32, mesh=mesh)
    loss, gradients = loss_and_gradients(params, batch, compute=ComputeConfig(), mesh=mesh)
    assert float(loss) == pytest.approx(float(exact), abs=0.02)
    assert {leaf.dtype for leaf in jax.tree.leaves(gradients)} == {np.dtype("float32")}


def test_forward_and_gradient_promote_no_types():
    """A float32 that slips into a bfloat16 product is silent otherwise, and slow."""
    mesh = mesh_of((1, 8, 1))
    params = params_of_seed()
    batch = random_batch(rows=8, length=32, predictions=5, vocab_size=_MODEL.vocab_size)
    with jax.set_mesh(mesh), jax.numpy_dtype_promotion("strict"):
        loss, _ = loss_and_gradients(params, batch, compute=ComputeConfig(), mesh=mesh)
    assert np.isfinite(float(loss))
