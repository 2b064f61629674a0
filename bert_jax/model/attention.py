"""Self-attention: back ends of one signature, which `compute.attention` chooses from.

Dims: B batch, H heads, K head size, L length of the queries, S length of the keys.
"""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.model.dropout import DropoutKey, dropout, keep_mask
from bert_jax.model.mask import Mask
from bert_jax.model.sharding import over_batch, spec_of

# What a forbidden score becomes. Finite, so that a row of padding has no NaN, and far below any
# score, so that its softmax is exactly zero beside an allowed one.
_FORBIDDEN = -1e9


def split_heads(x_BDL: jax.Array, num_heads: int) -> jax.Array:
    """Returns `[B, H, K, L]`; the tensor axis, where it cuts the width, cuts between heads."""
    batch, width, length = x_BDL.shape
    shape = (batch, num_heads, width // num_heads, length)
    return jnp.reshape(x_BDL, shape, out_sharding=over_batch(spec_of(x_BDL)[1]))


def repeat_heads(x_BHKL: jax.Array, num_heads: int) -> jax.Array:
    """Returns `x` with so many heads, each one as often as it takes, next to itself."""
    batch, heads, size, length = x_BHKL.shape
    many = jnp.broadcast_to(x_BHKL[:, :, None], (batch, heads, num_heads // heads, size, length))
    shape = (batch, num_heads, size, length)
    return jnp.reshape(many, shape, out_sharding=over_batch(spec_of(x_BHKL)[1]))


def join_heads(x_BHKL: jax.Array) -> jax.Array:
    """Returns `[B, D, L]`, the inverse of `split_heads`."""
    batch, heads, size, length = x_BHKL.shape
    shape = (batch, heads * size, length)
    return jnp.reshape(x_BHKL, shape, out_sharding=over_batch(spec_of(x_BHKL)[1]))


def fused(
    q_BHKL: jax.Array,
    k_BHKS: jax.Array,
    v_BHKS: jax.Array,
    *,
    mask: Mask,
    bias_BHLS: jax.Array | None = None,
    key: DropoutKey | None,
    dropout_rate: float,
) -> jax.Array:
    """Returns softmax(q k^T / sqrt(K)) v, in which a query sees what `mask` allows.

    Scores and softmax are float32; the result has the type of `v_BHKS` and the shape of `q_BHKL`. A
    bias of the scores is left to `plain`.
    """
    if bias_BHLS is not None:
        options = {"mask": mask, "key": key, "dropout_rate": dropout_rate}
        return plain(q_BHKL, k_BHKS, v_BHKS, bias_BHLS=bias_BHLS, **options)
    scale = q_BHKL.shape[2] ** -0.5
    rate = 0.0 if key is None else dropout_rate
    block = near_block(mask.window, k_BHKS.shape[3], dropout_rate=rate) if mask.is_square else None
    if block is not None:
        return _attend_near(q_BHKL * scale, k_BHKS, v_BHKS, _near_allowed(mask, block), block)
    return _attend(q_BHKL * scale, k_BHKS, v_BHKS, mask.allowed(), key, rate)


def plain(
    q_BHKL: jax.Array,
    k_BHKS: jax.Array,
    v_BHKS: jax.Array,
    *,
    mask: Mask,
    bias_BHLS: jax.Array | None = None,
    key: DropoutKey | None,
    dropout_rate: float,
) -> jax.Array:
    """Returns the same by the formula, its derivative by jax; `bias_BHLS` is added to the scores.

    For new ideas, and what `fused` is compared with: it keeps three arrays of L x S for the
    backward pass instead of one.
    """
    scale = q_BHKL.shape[2] ** -0.5
    scores_BHLS = jnp.einsum(
        "bhkl,bhks->bhls", q_BHKL * scale, k_BHKS, preferred_element_type=jnp.float32
    )
    if bias_BHLS is not None:
        scores_BHLS = scores_BHLS + bias_BHLS
    scores_BHLS = jnp.where(mask.allowed()[:, None], scores_BHLS, _FORBIDDEN)
    weights_BHLS = dropout(jax.nn.softmax(scores_BHLS, axis=-1), key, rate=dropout_rate)
    return jnp.einsum("bhls,bhks->bhkl", weights_BHLS.astype(v_BHKS.dtype), v_BHKS)


# The derivative is written out, for what passes between memory and the units that compute: one
# array of L x S in the compute type is kept (the exponentials of the scores, not normalised), and
# one is made in the backward pass. What jax derives keeps three. Normalising after the product with
# v, and taking the row sums of dP * P from the output, each saves a pass over L x S (Dao et al.
# 2022, sections 3.1 and B.2).


@partial(jax.custom_vjp, nondiff_argnums=(5,))
def _attend(q_BHKL, k_BHKS, v_BHKS, allowed_BLS, key, rate):
    return _forward(q_BHKL, k_BHKS, v_BHKS, allowed_BLS, key, rate)[0]


def _forward(q_BHKL, k_BHKS, v_BHKS, allowed_BLS, key, rate) -> tuple[jax.Array, Any]:
    dtype = v_BHKS.dtype
    scores_BHLS = jnp.einsum("bhkl,bhks->bhls", q_BHKL, k_BHKS, preferred_element_type=jnp.float32)
    scores_BHLS = jnp.where(allowed_BLS[:, None], scores_BHLS, _FORBIDDEN)
    exp_BHLS = jnp.exp(scores_BHLS - jnp.max(scores_BHLS, axis=-1, keepdims=True))
    # What the kept exponentials are divided by: their sum, before dropout, times the share kept.
    divisor_BHL = jnp.sum(exp_BHLS, axis=-1) * (1 - rate)
    exp_BHLS = exp_BHLS.astype(dtype)
    out_BHKL = jnp.einsum(
        "bhls,bhks->bhkl",
        _dropped(exp_BHLS, key, rate),
        v_BHKS,
        preferred_element_type=jnp.float32,
    )
    out_BHKL = (out_BHKL / divisor_BHL[:, :, None]).astype(dtype)
    return out_BHKL, (q_BHKL, k_BHKS, v_BHKS, exp_BHLS, divisor_BHL, out_BHKL, key)


def _backward(rate, residuals, g_BHKL):
    q_BHKL, k_BHKS, v_BHKS, exp_BHLS, divisor_BHL, out_BHKL, key = residuals
    dtype = v_BHKS.dtype
    # P = exp * scale, dP is the gradient of the kept P, and dS = P (dP - rowsum(dP P)).
    scaled_g_BHKL = g_BHKL.astype(jnp.float32) / divisor_BHL[:, :, None]
    sums_BHL = jnp.sum(scaled_g_BHKL * out_BHKL.astype(jnp.float32), axis=2) * (1 - rate)
    scaled_g_BHKL = scaled_g_BHKL.astype(dtype)
    dv_BHKS = jnp.einsum("bhls,bhkl->bhks", _dropped(exp_BHLS, key, rate), scaled_g_BHKL)
    dp_BHLS = jnp.einsum(
        "bhkl,bhks->bhls", scaled_g_BHKL, v_BHKS, preferred_element_type=jnp.float32
    )
    ds_BHLS = exp_BHLS.astype(jnp.float32) * (_dropped(dp_BHLS, key, rate) - sums_BHL[..., None])
    ds_BHLS = ds_BHLS.astype(dtype)
    dq_BHKL = jnp.einsum("bhls,bhks->bhkl", ds_BHLS, k_BHKS)
    dk_BHKS = jnp.einsum("bhls,bhkl->bhks", ds_BHLS, q_BHKL)
    return dq_BHKL, dk_BHKS, dv_BHKS, None, None


_attend.defvjp(_forward, _backward)


# --- a window ------------------------------------------------------------------------------------

# Smaller blocks save nothing: a query sees three of them.
_SMALLEST_BLOCK = 8


def near_block(window: int | None, length: int, *, dropout_rate: float) -> int | None:
    """Returns the columns of a block in which `fused` computes a window; None where it takes whole
    rows.

    A row is cut into blocks of half a window. A query sees keys of its own block and of its two
    neighbours, so that scores, time and memory are linear in the length. The dropout of weights is
    that of whole rows.
    """
    if window is None or dropout_rate:
        return None
    block = max(window // 2, _SMALLEST_BLOCK)
    return block if length > 3 * block else None


def _in_blocks(x_BHKL: jax.Array, block: int, *, with_neighbours: bool) -> jax.Array:
    """Returns `[B N, H, K, C]`: each of the N blocks of a row, with its neighbours if asked for;
    beyond the ends of a row are zeros.
    """
    batch, heads, size, length = x_BHKL.shape
    count, side = -(-length // block), block if with_neighbours else 0
    ends = (side, count * block - length + side)
    x_BHKL = jnp.pad(x_BHKL, ((0, 0), (0, 0), (0, 0), ends))
    blocks = jnp.reshape(x_BHKL, (batch, heads, size, -1, block))
    if with_neighbours:
        near = [blocks[:, :, :, i : i + count] for i in range(3)]
        blocks = jnp.concatenate(near, axis=-1)
    shape = (batch * count, heads, size, blocks.shape[-1])
    spec = over_batch(spec_of(x_BHKL)[1])
    return jnp.reshape(jnp.moveaxis(blocks, 3, 1), shape, out_sharding=spec)


def _in_rows(x_CHKL: jax.Array, batch: int, length: int) -> jax.Array:
    """Returns `[B, H, K, L]`, the inverse of `_in_blocks` without neighbours."""
    blocks, heads, size, block = x_CHKL.shape
    shape = (batch, blocks // batch, heads, size, block)
    spec = over_batch(None, spec_of(x_CHKL)[1])
    x = jnp.moveaxis(jnp.reshape(x_CHKL, shape, out_sharding=spec), 1, 3)
    return jnp.reshape(x, (batch, heads, size, -1))[..., :length]


def _near_allowed(mask: Mask, block: int) -> jax.Array:
    """Returns bool `[B N, C, 3 C]`: whether a query of a block sees a key of the three."""

    def blocks(x_BL, *, with_neighbours):
        # Ids count from 1, so that zeros beyond the ends are of no sequence.
        return _in_blocks(x_BL[:, None, None], block, with_neighbours=with_neighbours)[:, 0, 0]

    queries, keys = {"with_neighbours": False}, {"with_neighbours": True}
    return dataclasses.replace(
        mask,
        query_ids_BL=blocks(mask.query_ids_BL, **queries),
        query_positions_BL=blocks(mask.query_positions_BL, **queries),
        key_ids_BS=blocks(mask.key_ids_BS, **keys),
        key_positions_BS=blocks(mask.key_positions_BS, **keys),
    ).allowed()


@partial(jax.custom_vjp, nondiff_argnums=(4,))
def _attend_near(q_BHKL, k_BHKL, v_BHKL, allowed, block):
    return _near_forward(q_BHKL, k_BHKL, v_BHKL, allowed, block)[0]


def _three_in_blocks(q_BHKL, k_BHKL, v_BHKL, *, block):
    near = [_in_blocks(x, block, with_neighbours=True) for x in (k_BHKL, v_BHKL)]
    return _in_blocks(q_BHKL, block, with_neighbours=False), *near


def _near_forward(q_BHKL, k_BHKL, v_BHKL, allowed, block) -> tuple[jax.Array, Any]:
    batch, _, _, length = q_BHKL.shape
    q, k, v = _three_in_blocks(q_BHKL, k_BHKL, v_BHKL, block=block)
    out, (_, _, _, exponentials, divisor, _, _) = _forward(q, k, v, allowed, None, 0.0)
    kept = (q_BHKL, k_BHKL, v_BHKL, exponentials, divisor, out)
    return _in_rows(out, batch, length), kept


def _near_backward(block, kept, g_BHKL):
    """Cuts the rows again: blocks with their neighbours are three times as much to keep."""
    *whole, exponentials, divisor, out = kept
    cut, pull = jax.vjp(partial(_three_in_blocks, block=block), *whole)
    g = _in_blocks(g_BHKL, block, with_neighbours=False)
    dq, dk, dv, *_ = _backward(0.0, (*cut, exponentials, divisor, out, None), g)
    return *pull((dq, dk, dv)), None


_attend_near.defvjp(_near_forward, _near_backward)


def _dropped(x_BHLS: jax.Array, key: DropoutKey | None, rate: float) -> jax.Array:
    """Returns `x` where the mask keeps it, not scaled."""
    if not rate:
        return x_BHLS
    assert key is not None
    return jnp.where(keep_mask(key, x_BHLS, rate=rate), x_BHLS, jnp.zeros((), x_BHLS.dtype))
