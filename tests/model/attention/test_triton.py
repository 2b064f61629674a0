"""The kernels for NVIDIA GPUs, interpreted on a CPU, against the formula; jax lowers them."""

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.model import sharding
from bert_jax.model.attention import Call, triton
from bert_jax.model.attention.need import Need
from bert_jax.model.dropout import DropoutKey
from bert_jax.model.mask import Mask
from bert_jax.model.sharding import batch_sharding
from bert_jax.registry import ATTENTION
from tests.batches import described_gpu, mesh_of

_ROWS, _HEADS, _SIZE, _LENGTH, _RATE = 2, 2, 16, 192, 0.1
# Sequences across block boundaries and within a block, padding of more than a block; one whole row.
_PACKED = ((70, 20, 30), (_LENGTH,))


def _mask() -> Mask:
    rows = [
        np.repeat([*range(1, len(lengths) + 1), 0], [*lengths, _LENGTH - sum(lengths)])
        for lengths in _PACKED
    ]
    ids = jnp.asarray(np.stack(rows), jnp.int32)
    return Mask.of_rows(ids, jnp.zeros_like(ids))


def _heads(count: int, dtype: Any = jnp.float32) -> list[jax.Array]:
    draw = np.random.default_rng(0)
    shape = (_ROWS, _HEADS, _SIZE, _LENGTH)
    return [jnp.asarray(draw.normal(size=shape), dtype) for _ in range(count)]


def _key() -> DropoutKey:
    return DropoutKey.create(seed=3, step=jnp.uint32(5), rows_B=jnp.arange(_ROWS) + 7)


def _with_gradients(name: str, arrays: list, mask: Mask, key: DropoutKey, rate: float) -> list:
    """Returns the outputs, and the gradients of queries, keys and values."""
    *arrays, weights = arrays

    def attend(q, k, v):
        return ATTENTION[name].attend(Call(q, k, v, mask, None, key, rate))

    out, pull = jax.vjp(jax.jit(attend), *arrays)
    return [np.asarray(x, np.float32) for x in (out, *pull(weights))]


@pytest.mark.parametrize("rate", [0.0, _RATE])
def test_the_kernels_equal_plain_attention_with_the_same_dropped_weights(rate):
    """Also for padding."""
    exact, rounded = (
        [
            _with_gradients(name, _heads(4, dtype), _mask(), _key(), rate)
            for name in ("triton", "plain")
        ]
        for dtype in (jnp.float32, jnp.bfloat16)
    )
    for found, wanted in zip(*exact, strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-5)
    for found, plain, wanted in zip(*rounded, exact[1], strict=True):
        scale = np.abs(wanted).max()
        assert np.abs(found - wanted).max() < max(2 * np.abs(plain - wanted).max(), scale * 2**-7)


def test_a_token_changes_no_other_sequence():
    q, k, v, weights = _heads(4)
    inside = slice(70, 90)
    changed = [x.at[0, :, :, inside].add(1.0) for x in (q, k, v)]
    before, after = (
        _with_gradients("triton", [*arrays, weights], _mask(), _key(), _RATE)
        for arrays in ((q, k, v), changed)
    )
    for one, other in zip(before, after, strict=True):
        differs = (one != other).any(axis=(1, 2))
        assert differs[0, inside].all()
        differs[0, inside] = False
        assert not differs.any()


def test_a_mesh_changes_nothing():
    """The mesh cuts rows and heads; the global place of a weight determines its dropout."""
    arrays, mask, key, mesh = _heads(4), _mask(), _key(), mesh_of((1, 2, 2))
    wanted = _with_gradients("plain", arrays, mask, key, _RATE)
    with jax.set_mesh(mesh):
        rows = batch_sharding(mesh)
        by_heads = jax.NamedSharding(mesh, jax.P(rows.spec[0], "tensor", None, None))
        placed = [jax.device_put(x, by_heads) for x in arrays]
        key = DropoutKey(key.word_1, key.word_2, jax.device_put(key.rows_B, rows))
        found = _with_gradients("triton", placed, jax.device_put(mask, rows), key, _RATE)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.parametrize("rate", [0.0, _RATE])
def test_jax_lowers_the_kernels_for_a_gpu(rate):
    """The GPU is only described. jax will remove this back end: the test fails once it has."""
    mesh = described_gpu()
    spec = jax.NamedSharding(mesh, jax.P(sharding.BATCH))
    heads = jax.ShapeDtypeStruct((_ROWS, _HEADS, 64, _LENGTH), jnp.bfloat16, sharding=spec)
    ids = jax.ShapeDtypeStruct((_ROWS, _LENGTH), jnp.int32, sharding=spec)
    rows = jax.ShapeDtypeStruct((_ROWS,), jnp.uint32, sharding=spec)

    def loss(q, k, v, ids, rows):
        key = DropoutKey.create(seed=3, step=jnp.uint32(5), rows_B=rows)
        mask = Mask.of_rows(ids, ids)
        out = ATTENTION["triton"].attend(Call(q, k, v, mask, None, key, rate))
        return jnp.sum(out.astype(jnp.float32))

    with jax.sharding.use_abstract_mesh(mesh), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The Pallas Triton backend", DeprecationWarning)
        traced = jax.jit(jax.grad(loss, argnums=(0, 1, 2))).trace(heads, heads, heads, ids, rows)
        text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("stablehlo.custom_call @__gpu$xla.gpu.triton") == 3


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"device_kind": "TPU v4"}, "needs an NVIDIA GPU"),
        ({"dtype": "float32"}, "compute.dtype=bfloat16"),
        ({"window": 128}, "windows"),
        ({"reads_all": False}, "partly read rows"),
        ({"head_size": 48}, "16, 32, 64, 128, not 48"),
        ({"length": 130}, "multiple of 64, not 130"),
        ({"has_bias": True}, "choose auto or plain"),
    ],
)
def test_an_unsupported_need_is_named(changes, said):
    served: dict[str, Any] = {
        "length": 512,
        "head_size": 64,
        "device_kind": "NVIDIA H200",
        "dtype": "bfloat16",
        "dropout_rate": _RATE,
    }
    assert triton.TRITON.problem(Need(**served)) is None
    assert said in str(triton.TRITON.problem(Need(**served | changes)))
