"""Splits columns into attention heads, and joins them.

Dims: B batch, D width, H heads, K head size, L length.
"""

import jax
import jax.numpy as jnp

from bert_jax.model.sharding import over_batch, spec_of


def split_heads(x_BDL: jax.Array, num_heads: int) -> jax.Array:
    """Returns `[B, H, K, L]`; the tensor axis shards whole heads."""
    batch, width, length = x_BDL.shape
    shape = (batch, num_heads, width // num_heads, length)
    return jnp.reshape(x_BDL, shape, out_sharding=over_batch(spec_of(x_BDL)[1]))


def repeat_heads(x_BHKL: jax.Array, num_heads: int) -> jax.Array:
    """Returns `x` with `num_heads` heads; copies of a head are adjacent."""
    batch, heads, size, length = x_BHKL.shape
    many = jnp.broadcast_to(x_BHKL[:, :, None], (batch, heads, num_heads // heads, size, length))
    shape = (batch, num_heads, size, length)
    return jnp.reshape(many, shape, out_sharding=over_batch(spec_of(x_BHKL)[1]))


def join_heads(x_BHKL: jax.Array) -> jax.Array:
    """Returns `[B, D, L]`, the inverse of `split_heads`."""
    batch, heads, size, length = x_BHKL.shape
    shape = (batch, heads * size, length)
    return jnp.reshape(x_BHKL, shape, out_sharding=over_batch(spec_of(x_BHKL)[1]))
