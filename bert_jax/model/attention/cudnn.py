"""Attention by cuDNN's kernels for NVIDIA GPUs, `jax._src.cudnn.fused_attention_stablehlo`.

The kernels store no array of L x S, and treat each sequence of a packed row as a separate call, so
that no work is done across sequences. They do not support float32, two-sided windows, dropout masks
that change from step to step, or packed rows on GPUs before Hopper.

JAX's public function, `jax.nn.dot_product_attention`, has no argument for the offsets of packed
sequences; a mask instead would be an array of L x S.

Dims: B batch, H heads, K head size, L length, M sequences of a row.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.model.attention.chunked import CHUNKED
from bert_jax.model.attention.implementation import Call, Implementation
from bert_jax.model.attention.need import Need
from bert_jax.model.sharding import on_each_device, spec_of

# Compute capability 9.0 and newer, by the prefix of the device's name.
_NEW_ENOUGH = ("NVIDIA H", "NVIDIA GH", "NVIDIA B", "NVIDIA GB")
# Columns per sequence for which a call has room: `chunked` computes rows with more and shorter
# sequences.
_COLUMNS_PER_SEQUENCE, _FEWEST = 32, 8
_LARGEST_HEAD, _HEAD_MULTIPLE = 256, 8
# Keys per row from which these kernels are faster than `fused` (benchmarks/results/gpu.md).
_PAYS_FROM = 1024


class Cudnn(Implementation):
    """Supports rows without windows, in bfloat16 and float16, with every column as a query."""

    name = "cudnn"

    def problem(self, need: Need) -> str | None:
        kind = need.device_kind
        if kind and not kind.startswith(_NEW_ENOUGH):
            return f"needs an NVIDIA GPU of the Hopper generation or newer, not {kind}: choose auto"
        if need.dtype not in ("", "bfloat16", "float16"):
            return f"does not support {need.dtype}: set compute.dtype=bfloat16, or choose auto"
        if need.window is not None or need.is_causal or not need.reads_all:
            return "does not support windows, causal masks or partly read rows: choose auto"
        if need.head_size > _LARGEST_HEAD or need.head_size % _HEAD_MULTIPLE:
            return (
                f"needs a head size that is a multiple of {_HEAD_MULTIPLE} and at most "
                f"{_LARGEST_HEAD}, not {need.head_size}: choose auto"
            )
        return super().problem(need)

    def pays(self, need: Need) -> bool:
        return bool(need.device_kind) and need.length >= _PAYS_FROM

    def attend(self, call: Call) -> jax.Array:
        rows, heads, *_ = spec_of(call.q_BHKL)
        cut = jax.P(rows, heads)
        kernel = on_each_device(_local, takes=(cut, cut, cut, jax.P(rows)), gives=cut)
        return kernel(*call[:4])


def _local(q_BHKL, k_BHKL, v_BHKL, mask) -> jax.Array:
    starts_BM, lengths_BM, has_room = runs(jnp.asarray(mask.key_ids_BS))

    def by_sequences(q, k, v):
        return _by_sequences(q, k, v, starts_BM=starts_BM, lengths_BM=lengths_BM)

    def whole(q, k, v):
        return CHUNKED.attend(Call(q, k, v, mask))

    return jax.lax.cond(has_room, by_sequences, whole, q_BHKL, k_BHKL, v_BHKL)


def runs(ids_BL: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns the starts of runs of equal ids in a row, `[B, M + 1]`, and their lengths, `[B, M]`,
    both int32 and padded with -1; and a bool, whether M suffices for every row. Padding is a
    separate sequence, because the results in its columns must be finite.
    """
    length = ids_BL.shape[1]
    most = max(_FEWEST, length // _COLUMNS_PER_SEQUENCE)
    begins_BL = ids_BL != jnp.roll(ids_BL, 1, axis=1)
    begins_BL = begins_BL.at[:, 0].set(True)
    first = partial(jnp.nonzero, size=most + 1, fill_value=length)
    starts_BM = jax.vmap(lambda x: first(x)[0])(begins_BL).astype(jnp.int32)
    has_room = jnp.all(starts_BM[:, most] == length)
    lengths_BM = jnp.diff(starts_BM, axis=1)
    return (
        jnp.where(starts_BM < length, starts_BM, -1),
        jnp.where(lengths_BM > 0, lengths_BM, -1),
        has_room,
    )


def _by_sequences(q_BHKL, k_BHKL, v_BHKL, *, starts_BM, lengths_BM) -> jax.Array:
    # Imported here, because only this function needs it.
    from jax._src.cudnn.fused_attention_stablehlo import MaskType, dot_product_attention

    by_token: Any = (jnp.transpose(x, (0, 3, 1, 2)) for x in (q_BHKL, k_BHKL, v_BHKL))
    out: Any = dot_product_attention(
        *by_token,
        q_seqlen=lengths_BM,
        kv_seqlen=lengths_BM,
        q_offsets=starts_BM,
        kv_offsets=starts_BM,
        scale=q_BHKL.shape[2] ** -0.5,
        mask_type=MaskType.PADDING,
        qkv_layout="BTNH",
    )
    return jnp.transpose(out, (0, 2, 3, 1))


CUDNN = Cudnn()
