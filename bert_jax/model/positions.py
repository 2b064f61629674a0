"""Kinds of position, which tell a model the order of its tokens: one class a kind, with three
hooks.

A kind may add to the embeddings, turn queries and keys, or add to the scores. Those it does not
have cost nothing. `registry.POSITIONS` lists the kinds.

Dims: B batch, L length of the queries, S length of the keys, D width, H heads, K head size.
"""

import jax
from flax import nnx

from bert_jax.config import ModelConfig
from bert_jax.model.layers import look_up, truncated_normal


class Position(nnx.Module):
    """The base of all kinds: knows nothing of order. Its parameters, if any, are `position`."""

    # Whether `rotate` or `bias` do anything: then each block is told its positions.
    is_in_attention = False
    # Whether the scores of a query depend on the key's bias beyond a common term. Where they do
    # not, softmax does not see that bias, and its gradient is zero.
    sees_key_bias = False

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        del config, rngs

    def add(self, x_BLD: jax.Array, position_ids_BL: jax.Array) -> jax.Array:
        """Returns the embeddings with what the positions add to them."""
        return x_BLD

    def rotate(
        self,
        q_BHKL: jax.Array,
        k_BHKS: jax.Array,
        *,
        query_positions_BL: jax.Array,
        key_positions_BS: jax.Array,
    ) -> tuple[jax.Array, jax.Array]:
        """Returns queries and keys, turned by their positions."""
        return q_BHKL, k_BHKS

    def bias(
        self, *, query_positions_BL: jax.Array, key_positions_BS: jax.Array, num_heads: int
    ) -> jax.Array | None:
        """Returns what is added to the scores, float32 `[B, H, L, S]`, or None."""
        return None


class Learned(Position):
    """A vector for each position, learned (Devlin et al. 2019)."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        shape = (config.max_position_embeddings, config.table_size)
        self.embedding = truncated_normal(rngs, shape, stddev=config.initializer_range)

    def add(self, x_BLD: jax.Array, position_ids_BL: jax.Array) -> jax.Array:
        return x_BLD + look_up(self.embedding[...], position_ids_BL)
