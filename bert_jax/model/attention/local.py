"""Sliding-window attention in blocks: scores, time and memory are linear in the length.

Dims: B batch, H heads, K head size, L length, N blocks of a row, C columns of a block.
"""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.model.attention.fused import backward, forward
from bert_jax.model.attention.implementation import Call, Implementation
from bert_jax.model.attention.need import Need
from bert_jax.model.mask import Mask
from bert_jax.model.sharding import over_batch, spec_of

# Smaller blocks are not faster.
_SMALLEST_BLOCK = 16


class Local(Implementation):
    """Supports windows if the row is longer than two blocks, the keys that a block needs."""

    name = "local"

    def problem(self, need: Need) -> str | None:
        if need.window is None:
            return "supports only windows: set model.attention_window, or choose auto"
        if (problem := super().problem(need)) is not None:
            return problem
        if not need.reads_all or near_block(need.window, need.length) is None:
            return "supports only rows longer than twice the window: choose auto"
        return None

    def attend(self, call: Call) -> jax.Array:
        block = near_block(call.mask.window, call.k_BHKS.shape[3])
        assert block is not None
        q_BHKL = call.q_BHKL * call.q_BHKL.shape[2] ** -0.5
        allowed_NCC = _near_allowed(call.mask, block)
        return _attend(q_BHKL, call.k_BHKS, call.v_BHKS, allowed_NCC, block)


def near_block(window: int | None, length: int) -> int | None:
    """Returns the columns per block of a window; None if whole rows are used instead.

    A query attends to keys in its own block and in half a block on either side. A block is as long
    as the window: 128 columns fill the lanes of a TPU, and a row is split at whole tiles.
    """
    if window is None:
        return None
    block = max(2 * (window // 2), _SMALLEST_BLOCK)
    return block if length > 2 * block else None


def keys_seen(need: Need) -> int:
    """Returns the keys that each query is multiplied with: two blocks, or the whole row."""
    block = near_block(need.window, need.length)
    return need.length if block is None or LOCAL.problem(need) else 2 * block


LOCAL = Local()


def _in_blocks(x_BHKL: jax.Array, block: int, *, with_neighbours: bool) -> jax.Array:
    """Returns the N blocks of a row, `[B N, H, K, C]`, or `[B N, H, K, 2 C]` with half a block
    before and after each. Rows are padded with zeros at both ends.
    """
    batch, heads, size, length = x_BHKL.shape
    count, side = -(-length // block), block // 2 if with_neighbours else 0
    ends = (side, count * block - length + side)
    x_BHKL = jnp.pad(x_BHKL, ((0, 0), (0, 0), (0, 0), ends))
    blocks = jnp.reshape(x_BHKL, (batch, heads, size, -1, block))
    if with_neighbours:
        blocks = jnp.concatenate([blocks[:, :, :, :-1], blocks[:, :, :, 1:]], axis=-1)
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
    """Returns bool `[B N, C, 2 C]`: whether a query of a block attends to a nearby key."""

    def blocks(x_BL, *, with_neighbours):
        # Ids count from 1, so that the zero padding belongs to no sequence.
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
def _attend(q_BHKL, k_BHKL, v_BHKL, allowed, block):
    return _near_forward(q_BHKL, k_BHKL, v_BHKL, allowed, block)[0]


def _all_in_blocks(q_BHKL, k_BHKL, v_BHKL, *, block):
    near = [_in_blocks(x, block, with_neighbours=True) for x in (k_BHKL, v_BHKL)]
    return _in_blocks(q_BHKL, block, with_neighbours=False), *near


def _near_forward(q_BHKL, k_BHKL, v_BHKL, allowed, block) -> tuple[jax.Array, Any]:
    batch, _, _, length = q_BHKL.shape
    q, k, v = _all_in_blocks(q_BHKL, k_BHKL, v_BHKL, block=block)
    out, (_, _, _, exponentials, divisor, _) = forward(q, k, v, allowed, None, 0.0)
    kept = (q_BHKL, k_BHKL, v_BHKL, exponentials, divisor, out)
    return _in_rows(out, batch, length), kept


def _near_backward(block, kept, g_BHKL):
    """Splits the rows again: blocks with their neighbors would take twice the memory to store."""
    *whole, exponentials, divisor, out = kept
    cut, pull = jax.vjp(partial(_all_in_blocks, block=block), *whole)
    g = _in_blocks(g_BHKL, block, with_neighbours=False)
    dq, dk, dv, *_ = backward(0.0, (*cut, exponentials, divisor, out), g)
    return *pull((dq, dk, dv)), None


_attend.defvjp(_near_forward, _near_backward)
