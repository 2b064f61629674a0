"""Splits a batch into microbatches, and joins them."""

from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.model.sharding import reshaped


def in_microbatches(tree: Any, count: int) -> Any:
    """Returns arrays `[B, ...]` as `[count, B / count, ...]`: row r is assigned to microbatch r mod
    `count`, so that each device keeps its rows.
    """

    def split(x: jax.Array) -> jax.Array:
        shape = (x.shape[0] // count, count, *x.shape[1:])
        return jnp.moveaxis(reshaped(x, shape), 1, 0)

    return jax.tree.map(split, tree)


def joined_microbatches(x: jax.Array) -> jax.Array:
    """Returns microbatches `[count, B / count, ...]` as `[B, ...]`, the inverse of
    `in_microbatches`.
    """
    x = jnp.moveaxis(x, 0, 1)
    return reshaped(x, (x.shape[0] * x.shape[1], *x.shape[2:]))
