"""Activations and dropout in bfloat16 beside float64, and in float32 to the bit; what reads some
positions of a row.
"""

import functools
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from scipy import special

from bert_jax.config import ComputeConfig, HeadConfig, ModelConfig
from bert_jax.model import bert, layers, sharding
from bert_jax.model.layers import activation
from tests.batches import described_gpu, mesh_of

pytestmark = pytest.mark.core

# Hendrycks & Gimpel 2016, with Phi and the logistic function of scipy: neither cancels.
_ROOT = np.sqrt(2 / np.pi)


def _inner(x: np.ndarray) -> np.ndarray:
    return 2 * _ROOT * (x + 0.044715 * x**3)


_EXACT: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "gelu": lambda x: x * special.ndtr(x),
    # (1 + tanh(u)) / 2 is the logistic function of 2 u.
    "gelu_new": lambda x: x * special.expit(_inner(x)),
    "silu": lambda x: x * special.expit(x),
}
_SLOPES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "gelu": lambda x: special.ndtr(x) + x * np.exp(-x * x / 2) / np.sqrt(2 * np.pi),
    "gelu_new": lambda x: (
        special.expit(_inner(x))
        + x
        * special.expit(_inner(x))
        * special.expit(-_inner(x))
        * 2
        * _ROOT
        * (1 + 3 * 0.044715 * x * x)
    ),
    "silu": lambda x: special.expit(x) * (1 + x * special.expit(-x)),
}


def every_bfloat16(low: float, high: float) -> Any:
    """All numbers of bfloat16 from `low` to `high` that are not smaller than 2^-20."""
    numbers = np.arange(2**16, dtype=np.uint16).view(jnp.bfloat16)
    with np.errstate(invalid="ignore"):  # of the patterns that are no numbers
        wide = numbers.astype(np.float32)
    return numbers[(wide >= low) & (wide <= high) & (abs(wide) >= 2.0**-20)]


@pytest.mark.parametrize("name", _EXACT)
def test_the_tail_is_there_in_bfloat16(name):
    """Within 1 % down to -4; and the derivative within the rounding of one number."""
    x = every_bfloat16(-4, 8)
    value, pull = jax.vjp(jax.jit(lambda x: activation(name, x)), jnp.asarray(x))
    (slope,) = pull(jnp.ones_like(value))
    assert value.dtype == slope.dtype == jnp.bfloat16
    exact = x.astype(np.float64)
    value, slope = (np.asarray(found, np.float64) for found in (value, slope))
    assert np.max(np.abs(value / _EXACT[name](exact) - 1)) < 0.01
    off = np.abs(slope - _SLOPES[name](exact))
    assert np.all(off <= 2.0**-8 * np.abs(_SLOPES[name](exact)) + 1e-6)


@pytest.mark.parametrize("name", _EXACT)
def test_what_is_kept_for_the_derivative_is_not_wider(name):
    x = jnp.ones((4, 8), jnp.bfloat16)
    _, pull = jax.vjp(lambda x: activation(name, x), x)
    assert {leaf.dtype for leaf in jax.tree.leaves(pull)} == {jnp.dtype(jnp.bfloat16)}


def test_float32_is_the_plain_formula_to_the_bit():
    x = jnp.linspace(-8, 8, 10_001, dtype=jnp.float32)
    plain: dict[str, Callable[[jax.Array], jax.Array]] = {
        "gelu": lambda x: 0.5 * x * (1 + jax.lax.erf(x * np.float32(0.5**0.5))),
        "gelu_new": lambda x: jax.nn.gelu(x, approximate=True),
        "silu": jax.nn.silu,
    }
    for name, function in plain.items():
        for ours, theirs in zip(
            jax.jit(jax.vmap(jax.value_and_grad(lambda x, n=name: activation(n, x))))(x),
            jax.jit(jax.vmap(jax.value_and_grad(function)))(x),
            strict=True,
        ):
            np.testing.assert_array_equal(ours, theirs, err_msg=name)


@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 2, 2)], ids=str)
def test_positions_of_long_rows_are_read_without_a_product(shape, monkeypatch):
    """Equal to the bit, derivative included, and nothing crosses devices."""
    mesh, draw = mesh_of(shape), np.random.default_rng(0)
    x_BLD = draw.standard_normal((8, 48, 16)).astype(np.float32)
    positions_BR = draw.permuted(np.tile(np.arange(48, dtype=np.int32), (8, 1)), axis=1)[:, :20]

    def read(x_BLD, positions_BR):
        def of(x_BLD):
            return jnp.sum(jnp.sin(layers.gather_positions(x_BLD, positions_BR)))

        ids = layers.gather_ids(positions_BR, positions_BR % 20)
        return layers.gather_positions(x_BLD, positions_BR), ids, jax.grad(of)(x_BLD)

    with jax.set_mesh(mesh):
        arrays = jax.device_put((x_BLD, positions_BR), sharding.batch_sharding(mesh))
        product = jax.jit(lambda *arrays: read(*arrays))(*arrays)
        monkeypatch.setattr(layers, "_LONGEST_PRODUCT", 40)
        fetched = jax.jit(lambda *arrays: read(*arrays)).lower(*arrays).compile()
    for one, other in zip(product, fetched(*arrays), strict=True):
        np.testing.assert_array_equal(one, other)
        assert one.sharding.spec == other.sharding.spec
    program = fetched.as_text()
    assert " gather(" in program and " dot(" not in program
    assert not re.search("all-gather|all-reduce|all-to-all|collective-permute", program)


# --- scores of the vocabulary ---------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 2, 2)], ids=str)
def test_a_bias_of_scores_has_the_sums_of_their_columns(shape, monkeypatch):
    """A CPU multiplies with ones; all others leave the sum to XLA."""
    draw = np.random.default_rng(0)
    config = ModelConfig(vocab_size=48)
    table = layers.Embed(48, 16, config=config, rngs=nnx.Rngs(0))
    x_BRD = draw.standard_normal((8, 5, 16)).astype(np.float32)
    weights_BRV = draw.standard_normal((8, 5, 48)).astype(np.float32)

    def loss(bias_V, x_BRD, weights_BRV):
        return jnp.sum(table.logits(x_BRD, bias_V) * weights_BRV)

    mesh, found = mesh_of(shape), []
    with jax.set_mesh(mesh):
        rows = [jax.device_put(a, sharding.batch_sharding(mesh)) for a in (x_BRD, weights_BRV)]
        for is_cpu in (True, False):
            monkeypatch.setattr(layers, "is_on_cpu", lambda is_cpu=is_cpu: is_cpu)
            gradient = jax.jit(jax.grad(loss)).lower(jnp.zeros(48), *rows).compile()
            found.append((gradient(jnp.zeros(48), *rows), " dot(" in gradient.as_text()))
    assert [multiplies for _, multiplies in found] == [True, False]
    for sums, _ in found:
        np.testing.assert_allclose(sums, weights_BRV.sum((0, 1)), rtol=1e-5, atol=1e-5)


# --- sums over many tokens ------------------------------------------------------------------------


def _gradients(params: Any, batch: dict[str, np.ndarray], config: ModelConfig, dtype: str) -> Any:
    def loss(params):
        outputs = bert.apply(
            params,
            batch,
            config=config,
            head=HeadConfig(parts=()),
            compute=ComputeConfig(dtype=dtype),
        )
        states = outputs["last_hidden_state"].astype(jnp.float32)
        return jnp.mean(states * jnp.arange(states.shape[-1]))

    return jax.device_get(jax.jit(jax.grad(loss))(params))["encoder"]


def test_the_rows_that_many_tokens_share_are_added_up_in_float32():
    """8,192 tokens, in bfloat16 beside float32: a sum in bfloat16 would be nearly nothing."""
    rows, length = 128, 64
    config = ModelConfig(
        vocab_size=50, hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=64, max_position_embeddings=length, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    params = bert.init_params(config, HeadConfig(parts=()), seed=0)
    batch = {
        "input_ids": np.random.default_rng(0).integers(0, 50, (rows, length)).astype(np.int32),
        "token_type_ids": np.zeros((rows, length), np.int32),
        "position_ids": np.tile(np.arange(length, dtype=np.int32), (rows, 1)),
        "sequence_ids": np.ones((rows, length), np.int32),
    }
    exact, found = (_gradients(params, batch, config, dtype) for dtype in ("float32", "bfloat16"))

    def apart(*path: str) -> float:
        a, b = (functools.reduce(lambda tree, key: tree[key], path, t) for t in (exact, found))
        return float(np.linalg.norm(a - b) / np.linalg.norm(a))

    assert apart("embeddings", "token_type", "embedding") < 0.02


def test_a_gpu_adds_gradients_of_rows_in_float32_and_multiplies_those_of_scores_in_bfloat16():
    """In the program for a GPU that is described; run on a CPU, the derivative is the formula's."""
    draw = np.random.default_rng(0)
    ids = jnp.asarray(draw.integers(0, 40, (2, 8)), jnp.int32)
    graph, state = nnx.split(layers.Embed(40, 16, config=ModelConfig(), rngs=nnx.Rngs(0)))

    def loss(state):
        embed = nnx.merge(graph, state)
        return jnp.sum(embed.logits(embed(ids), jnp.zeros(())) ** 2)

    rounded = jax.tree.map(lambda x: x.astype(jnp.bfloat16), state)
    with jax.sharding.use_abstract_mesh(described_gpu()):
        traced = str(jax.make_jaxpr(jax.grad(loss))(rounded))
    products = re.findall(r":(\w+)\[[^\]]*\] = dot_general", traced)
    assert products == ["f32", "bf16", "bf16"]
    assert re.findall(r":(\w+)\[[^\]]*\] = scatter-add", traced) == ["f32"]

    x = jnp.asarray(draw.normal(size=(6, 16)), jnp.float32)
    weights = jnp.asarray(draw.normal(size=(6, 40)), jnp.float32)
    table = jnp.asarray(draw.normal(size=(40, 16)), jnp.float32)
    _, pull = jax.vjp(lambda x, t: layers._scores_on_gpu(x, t, None), x, table)
    for found, wanted in zip(pull(weights), (weights @ table, weights.T @ x), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
