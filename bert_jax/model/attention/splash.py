"""Attention by jax's kernel for TPUs, `jax.experimental.pallas.ops.tpu.splash_attention`.

It stores nothing of L x S. What it does not have: dropout of weights, biases of scores, and chips
before v4, whose compiler refuses its products in bfloat16.

Dims: B batch, H heads, K head size, L length of the queries, S length of the keys.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.model.attention.implementation import Implementation
from bert_jax.model.attention.need import Need
from bert_jax.model.mask import Mask
from bert_jax.model.sharding import device_kind, on_each_device, spec_of

# Columns of a register, of which the kernel's blocks are multiples; and its largest blocks here.
_LANES, _LARGEST = 128, 1024
_TOO_OLD = ("TPU v2", "TPU v3")
# Ids of what fills the last block: of no sequence, and not of each other.
_NO_QUERY, _NO_KEY = -1, -2


class Splash(Implementation):
    """Serves whole rows, windows of whole rows, and queries that are read of a row without one."""

    name = "splash"

    def problem(self, need: Need) -> str | None:
        kind = need.device_kind
        if kind and (not kind.startswith("TPU") or kind in _TOO_OLD):
            return f"needs a TPU v4 or a newer one, and this is {kind}: choose auto or chunked"
        if need.is_causal or (need.window is not None and not need.reads_all):
            return "knows no positions of the queries that are read: choose auto or chunked"
        return super().problem(need)

    def pays(self, need: Need) -> bool:
        return False

    def kept(self, need: Need) -> float:
        return 0.0

    def attend(
        self,
        q_BHKL: jax.Array,
        k_BHKS: jax.Array,
        v_BHKS: jax.Array,
        *,
        mask: Mask,
        **unused: object,
    ) -> jax.Array:
        rows, heads, *_ = spec_of(q_BHKL)
        cut, ids = jax.P(rows, heads), jax.P(rows)
        kernel = on_each_device(
            partial(_local, window=mask.window, interpret=not device_kind().startswith("TPU")),
            takes=(cut, cut, cut, ids, ids),
            gives=cut,
        )
        q_BHKL = q_BHKL * q_BHKL.shape[2] ** -0.5
        return kernel(q_BHKL, k_BHKS, v_BHKS, mask.query_ids_BL, mask.key_ids_BS)


def _local(q_BHKL, k_BHKS, v_BHKS, query_ids_BL, key_ids_BS, *, window, interpret) -> jax.Array:
    # With its imports, seconds of them, only where it is used.
    from jax.experimental.pallas.ops.tpu.splash_attention import (
        splash_attention_kernel as kernels,
    )
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    length = q_BHKL.shape[3]
    q, query_ids = (_filled(x, _NO_QUERY) for x in (q_BHKL, query_ids_BL))
    k, v, key_ids = (_filled(x, _NO_KEY) for x in (k_BHKS, v_BHKS, key_ids_BS))
    shape = (q.shape[3], k.shape[3])
    # A sequence lies in neighbouring columns, so that columns are as far apart as positions.
    side = None if window is None else (window // 2,) * 2
    one = masks.FullMask(shape) if side is None else masks.LocalMask(shape, side, 0)
    of_q, of_k = (_block(n) for n in shape)
    layout = kernels.QKVLayout.SEQ_MINOR
    sizes = kernels.BlockSizes(
        block_q=of_q, block_kv=of_k, block_kv_compute=of_k,
        block_q_dkv=of_q, block_kv_dkv=of_k, block_kv_dkv_compute=of_k,
        block_q_dq=of_q, block_kv_dq=of_k,
        q_layout=layout, k_layout=layout, v_layout=layout,
    )  # fmt: skip
    kernel = kernels.make_splash_mha(
        masks.MultiHeadMask([one] * q.shape[1]),
        head_shards=1,
        q_seq_shards=1,
        block_sizes=sizes,
        interpret=interpret,
    )

    def row(q_HKL, k_HKS, v_HKS, query_ids_L, key_ids_S):
        by_token = (jnp.swapaxes(x, 1, 2) for x in (q_HKL, k_HKS, v_HKS))
        ids = kernels.SegmentIds(query_ids_L, key_ids_S)
        out: Any = kernel(*by_token, segment_ids=ids)
        return jnp.swapaxes(out, 1, 2)

    return jax.vmap(row)(q, k, v, query_ids, key_ids)[..., :length]


def _filled(x: Any, no_id: int) -> jax.Array:
    """Returns `x` with whole registers in its last dim: zeros, and for ids those of nothing."""
    x = jnp.asarray(x)
    ends = ((0, 0),) * (x.ndim - 1) + ((0, -x.shape[-1] % _LANES),)
    return jnp.pad(x, ends, constant_values=no_id if x.ndim == 2 else 0)


def _block(length: int) -> int:
    return next(n for n in (_LARGEST, _LARGEST // 2, _LARGEST // 4, _LANES) if length % n == 0)


SPLASH = Splash()
