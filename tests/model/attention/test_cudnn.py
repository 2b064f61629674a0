"""cuDNN's attention without a GPU: what is asked of the library, and that jax still takes it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.cudnn import fused_attention_stablehlo as library

from bert_jax.model.attention import Call, cudnn
from bert_jax.model.attention.need import Need
from bert_jax.model.mask import Mask
from bert_jax.registry import ATTENTION

_ROWS, _HEADS, _SIZE, _LENGTH = 2, 2, 16, 64
_SERVED = {"length": 1024, "head_size": 64, "device_kind": "NVIDIA H200", "dtype": "bfloat16"}


def _ids(*lengths: int) -> np.ndarray:
    """A row: sequences of such lengths, then padding."""
    rest = _LENGTH - sum(lengths)
    return np.repeat([*range(1, len(lengths) + 1), 0], [*lengths, rest]).astype(np.int32)


def _mask(*rows: np.ndarray) -> Mask:
    ids = jnp.asarray(np.stack(rows))
    return Mask.of_rows(ids, jnp.zeros_like(ids))


def _heads(count: int) -> list[jax.Array]:
    draw = np.random.default_rng(0)
    shape = (_ROWS, _HEADS, _SIZE, _LENGTH)
    return [jnp.asarray(draw.normal(size=shape), jnp.float32) for _ in range(count)]


def _attend(name, q, k, v, mask):
    return ATTENTION[name].attend(Call(q, k, v, mask))


def _by_the_documentation(q, k, v, *, q_seqlen, kv_seqlen, q_offsets, kv_offsets, scale, **rest):
    """Computes in NumPy, sequence by sequence, what the library's docstring promises; columns of no
    sequence are not written."""
    assert rest == {"mask_type": library.MaskType.PADDING, "qkv_layout": "BTNH"}
    assert q_seqlen is kv_seqlen and q_offsets is kv_offsets
    assert q_seqlen.dtype == q_offsets.dtype == np.int32

    def attention(q, k, v, lengths, starts):
        out = np.full_like(q, np.nan)
        for row in range(len(q)):
            assert (starts[row] >= 0).sum() == (lengths[row] > 0).sum()
            for start, size in zip(starts[row], lengths[row], strict=False):
                if start < 0:
                    continue
                at = slice(start, start + size)
                scores = np.einsum("lhk,shk->hls", q[row, at], k[row, at]) * scale
                weights = np.exp(scores - scores.max(-1, keepdims=True))
                weights /= weights.sum(-1, keepdims=True)
                out[row, at] = np.einsum("hls,shk->lhk", weights, v[row, at])
        return out

    shape = jax.ShapeDtypeStruct(q.shape, q.dtype)
    return jax.pure_callback(attention, shape, q, k, v, q_seqlen, q_offsets)


@pytest.mark.parametrize(
    "rows",
    [
        (_ids(20, 10, 30), _ids(_LENGTH)),
        (_ids(1, 1, 1), _ids()),
        # As many as there is room for, and one row with more.
        (_ids(8, 8, 8, 8, 8, 8, 8), _ids(64)),
        (_ids(4, 4, 4, 4, 4, 4, 4, 4, 4), _ids(64)),
    ],
    ids=["packed", "short ones, and padding alone", "just room", "no room"],
)
def test_it_is_the_plain_one_wherever_the_library_keeps_its_word(monkeypatch, rows):
    """Padding gets numbers, too: it is a sequence of its own."""
    monkeypatch.setattr(library, "dot_product_attention", _by_the_documentation)
    q, k, v = _heads(3)
    found, wanted = (jax.jit(_attend, static_argnums=0)(n, q, k, v, _mask(*rows))
                     for n in ("cudnn", "plain"))  # fmt: skip
    np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_runs_are_where_ids_change():
    starts, lengths, has_room = cudnn.runs(jnp.asarray(np.stack([_ids(20, 10), _ids(_LENGTH)])))
    assert starts.tolist() == [[0, 20, 30, *[-1] * 6], [0, *[-1] * 8]]
    assert lengths.tolist() == [[20, 10, 34, *[-1] * 5], [64, *[-1] * 7]]
    assert bool(has_room)
    assert not cudnn.runs(jnp.asarray(_ids(*[2] * 9)[None]))[2]


def test_jax_makes_a_program_of_it_for_a_gpu(monkeypatch):
    """Forward and backward: the function is not among jax's public ones, so that a new version may
    take it away. Only the question for a library that is not here is answered for it.
    """
    monkeypatch.setattr(library, "check_cudnn_version", lambda: 91000)
    monkeypatch.setattr(library, "check_compute_capability", lambda capability: True)
    monkeypatch.setattr(library, "is_cuda_compute_capability_equal", lambda capability: False)
    mask = _mask(_ids(20, 10, 30), _ids(_LENGTH))

    def loss(q, k, v):
        return jnp.sum(_attend("cudnn", q, k, v, mask).astype(jnp.float32))

    arrays = [x.astype(jnp.bfloat16) for x in _heads(3)]
    traced = jax.jit(jax.grad(loss, argnums=(0, 1, 2))).trace(*arrays)
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    for call in ("__cudnn$fmhaSoftmax", "__cudnn$fmhaSoftmaxBackward"):
        assert f"@{call}" in text or f'"{call}"' in text


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"device_kind": "cpu"}, "Hopper generation or newer, not cpu"),
        ({"device_kind": "NVIDIA A100-SXM4-80GB"}, "not NVIDIA A100"),
        ({"dtype": "float32"}, "set compute.dtype=bfloat16"),
        ({"window": 128}, "windows"),
        ({"is_causal": True}, "causal masks"),
        ({"reads_all": False}, "partly read rows"),
        ({"head_size": 60}, "a multiple of 8"),
        ({"head_size": 264}, "at most 256"),
        ({"dropout_rate": 0.1}, "attention_probs_dropout_prob=0"),
        ({"has_bias": True}, "choose auto or plain"),
    ],
)
def test_what_it_does_not_serve(changes, said):
    entry = ATTENTION["cudnn"]
    assert entry.problem(Need(**_SERVED)) is None
    assert said in str(entry.problem(Need(**{**_SERVED, **changes})))
