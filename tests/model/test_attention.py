"""The back ends of attention beside the formula, beside jax's own, and beside each other."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.model import sharding
from bert_jax.model.attention import fused
from bert_jax.model.dropout import DropoutKey, keep_mask
from bert_jax.model.mask import Mask
from bert_jax.registry import ATTENTION
from tests.batches import mesh_of

pytestmark = pytest.mark.core

_ROWS, _HEADS, _SIZE, _LENGTH = 8, 2, 4, 9
# Those that compute on a CPU; the others leave these needs to `auto`.
_BACK_ENDS = ("auto", "fused", "plain", "chunked")


def arrays(count: int) -> list[np.ndarray]:
    draw = np.random.default_rng(0)
    shape = (_ROWS, _HEADS, _SIZE, _LENGTH)
    return [draw.normal(size=shape).astype(np.float32) for _ in range(count)]


def sequence_ids() -> np.ndarray:
    """Two sequences of 4 and 3 tokens, and padding."""
    return np.tile(np.array([1] * 4 + [2] * 3 + [0] * 2, np.int32), (_ROWS, 1))


def assert_close(found, expected) -> None:
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), found, expected
    )


def formula(q_BHKL, k_BHKS, v_BHKS, *, ids_BL, key, rate):
    """softmax(q k^T / sqrt(K)) v with dropout of the probabilities (Vaswani et al. 2017)."""
    scores_BHLS = jnp.einsum("bhkl,bhks->bhls", q_BHKL, k_BHKS) / _SIZE**0.5
    allowed_BLS = ids_BL[:, :, None] == ids_BL[:, None, :]
    probs_BHLS = jax.nn.softmax(jnp.where(allowed_BLS[:, None], scores_BHLS, -jnp.inf), axis=-1)
    kept_BHLS = keep_mask(key, probs_BHLS, rate=rate) * probs_BHLS / (1 - rate)
    return jnp.einsum("bhls,bhks->bhkl", kept_BHLS, v_BHKS)


@pytest.mark.parametrize("name", _BACK_ENDS)
@pytest.mark.parametrize("rate", [0.0, 0.1])
def test_outputs_and_derivatives_are_the_formulas(rate, name):
    q, k, v, weights = arrays(4)
    mesh = sharding.make_mesh(fsdp=-1, tensor=1)
    with jax.set_mesh(mesh):
        layout = sharding.batch_sharding(mesh)
        q, k, v, weights, ids, rows = jax.device_put(
            (q, k, v, weights, sequence_ids(), np.arange(_ROWS, dtype=np.uint32)), layout
        )
        key = DropoutKey.create(seed=3, step=jnp.int32(5), rows_B=rows)

        def ours(q, k, v):
            out = ATTENTION[name](
                q, k, v, mask=Mask.of_rows(ids, ids), key=key, dropout_rate=rate
            )  # fmt: skip
            return jnp.sum(out * weights), out

        def theirs(q, k, v):
            out = formula(q, k, v, ids_BL=ids, key=key, rate=rate)
            return jnp.sum(out * weights), out

        found, expected = (
            jax.jit(jax.grad(function, argnums=(0, 1, 2), has_aux=True))(q, k, v)
            for function in (ours, theirs)
        )
    assert_close(found, expected)


def test_the_mask_of_dropout_is_drawn_once_for_both_passes(monkeypatch):
    """Its bits are dear on chips without an integer multiplication."""
    q, k, v, g = arrays(4)
    key = DropoutKey.create(seed=3, step=jnp.int32(5), rows_B=jnp.arange(_ROWS))
    drawn = []

    def counting(key, x, *, rate):
        drawn.append(x.shape)
        return keep_mask(key, x, rate=rate)

    monkeypatch.setattr(fused, "keep_mask", counting)

    def both_ways(q, k, v, g):
        mask = Mask.of_rows(sequence_ids(), sequence_ids())
        attend = partial(ATTENTION["fused"], mask=mask, key=key, dropout_rate=0.1)
        out, pull = jax.vjp(attend, q, k, v)
        return out, pull(g)

    jax.make_jaxpr(both_ways)(q, k, v, g)
    assert drawn == [(_ROWS, _HEADS, _LENGTH, _LENGTH)]


@pytest.mark.parametrize("name", _BACK_ENDS)
def test_with_a_bias_it_is_what_jax_computes(name):
    """Outputs and all derivatives, including the derivative of the bias; no mesh is set."""
    q, k, v, weights = arrays(4)
    ids = sequence_ids()
    bias = np.random.default_rng(1).normal(size=(_ROWS, _HEADS, _LENGTH, _LENGTH))
    bias = bias.astype(np.float32)

    def ours(q, k, v, bias):
        return ATTENTION[name](
            q, k, v, mask=Mask.of_rows(ids, ids), bias_BHLS=bias, key=None, dropout_rate=0.1
        )  # fmt: skip

    def theirs(q, k, v, bias):
        by_token = [x.transpose(0, 3, 1, 2) for x in (q, k, v)]
        allowed = ids[:, None, :, None] == ids[:, None, None, :]
        out = jax.nn.dot_product_attention(*by_token, bias=bias, mask=allowed)
        return out.transpose(0, 2, 3, 1)

    def weighted(function, *arguments):
        out = function(*arguments)
        return jnp.sum(out * weights), out

    found, expected = (
        jax.jit(jax.grad(partial(weighted, function), argnums=(0, 1, 2, 3), has_aux=True))(
            q, k, v, bias
        )
        for function in (ours, theirs)
    )
    assert_close(found, expected)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16], ids=["float32", "bfloat16"])
def test_a_tpu_takes_the_product_of_the_scores_twice_for_the_same_numbers(monkeypatch, dtype):
    q, k, v, g = (jnp.asarray(x, dtype) for x in arrays(4))
    key = DropoutKey.create(seed=3, step=jnp.int32(5), rows_B=jnp.arange(_ROWS))
    allowed = Mask.of_rows(sequence_ids(), sequence_ids()).allowed()

    def both_ways():
        def run(q, k, v, g):
            out, kept = fused.forward(q, k, v, allowed, key, 0.1)
            return out, fused.backward(0.1, kept, g)[:3]

        return str(jax.make_jaxpr(run)(q, k, v, g)).count("dot_general["), jax.jit(run)(q, k, v, g)

    products, expected = both_ways()
    monkeypatch.setattr(fused, "device_kind", lambda: "TPU v3")
    products_there, found = both_ways()
    assert products_there == products + 1
    jax.tree.map(np.testing.assert_array_equal, found, expected)


# --- a window ------------------------------------------------------------------------------------

_PACKED = (50, 40)  # two sequences; padding follows


def _in_a_window(attend, window: int, length: int):
    """Returns what computes the derivatives and the outputs of a packed row's tokens."""

    def loss(q, k, v, weights, ids, place):
        mask = Mask.of_rows(ids, place, window=window)
        out = attend(q, k, v, mask=mask, key=None, dropout_rate=0.1)
        out = jnp.where((ids > 0)[:, None, None], out, 0)
        return jnp.sum(out * weights), out

    draw = np.random.default_rng(0)
    shape = (_ROWS, 4, _SIZE, length)
    heads = [draw.normal(size=shape).astype(np.float32) for _ in range(4)]
    rest = length - sum(_PACKED)
    ids = np.repeat([1, 2, 0], [*_PACKED, rest]).astype(np.int32)
    place = np.concatenate([np.arange(n) for n in _PACKED] + [np.zeros(rest)]).astype(np.int32)
    rows = [np.tile(x, (_ROWS, 1)) for x in (ids, place)]
    return jax.jit(jax.grad(loss, argnums=(0, 1, 2), has_aux=True)), (*heads, *rows)


@pytest.mark.parametrize(("window", "length"), [(2, 96), (16, 96), (16, 99), (20, 91), (60, 96)])
def test_a_window_is_computed_in_blocks_and_equals_the_formula(window, length):
    expected_of, arguments = _in_a_window(ATTENTION["plain"], window, length)
    expected = expected_of(*arguments)
    found_of, _ = _in_a_window(ATTENTION["fused"], window, length)
    mesh = mesh_of((1, 4, 2))
    with jax.set_mesh(mesh):
        rows = sharding.batch_sharding(mesh)
        by_heads = jax.NamedSharding(mesh, jax.P(rows.spec[0], "tensor", None, None))
        placed = [jax.device_put(a, by_heads if a.ndim == 4 else rows) for a in arguments]
        assert_close(found_of(*placed), expected)
        text = found_of.lower(*placed).compile().as_text()
    assert not re.search(r"all-(gather|to-all|reduce)|collective-permute", text)
