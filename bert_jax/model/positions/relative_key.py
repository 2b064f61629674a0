"""Positions with learned vectors per distance (Shaw et al. 2018; Huang et al. 2020)."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from bert_jax.config import ModelConfig
from bert_jax.model.layers import truncated_normal
from bert_jax.model.positions.position import Position
from bert_jax.model.sharding import over_batch, spec_of


class RelativeKey(Position):
    """Adds the product of a query and a learned vector of the distance (Shaw et al. 2018).

    This is `relative_key` of transformers 4: each block has a table of 2 x
    `max_position_embeddings` - 1 distances that its heads share, the distance is query - key, and
    the product is also divided by sqrt(K). Farther distances use the farthest vector.
    """

    is_per_block = True

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        self.farthest = config.max_position_embeddings - 1
        shape = (2 * self.farthest + 1, config.hidden_size // config.num_attention_heads)
        self.embedding = truncated_normal(rngs, shape, stddev=config.initializer_range)

    @staticmethod
    def rows_for(length: int, *, rows: int) -> np.ndarray:
        """New distances are initialized with the farthest one, which they used so far."""
        return np.clip(np.arange(2 * length - 1) - (length - 1) + rows // 2, 0, rows - 1)

    @staticmethod
    def flops(model: ModelConfig, *, length: int, queries: int) -> int:
        return 2 * (2 * model.max_position_embeddings - 1) * model.hidden_size * queries

    def query_scores(self, q_BHKL: jax.Array, **positions: jax.Array) -> jax.Array:
        rows_BLS = self._rows(**positions)
        found_BHSL = _pick(self._products(q_BHKL), jnp.swapaxes(rows_BLS, 1, 2))
        return jnp.swapaxes(found_BHSL, 2, 3)

    def _rows(self, query_positions_BL: jax.Array, key_positions_BS: jax.Array) -> jax.Array:
        distance_BLS = query_positions_BL[:, :, None] - key_positions_BS[:, None, :]
        return jnp.clip(distance_BLS, -self.farthest, self.farthest) + self.farthest

    def _products(self, x_BHKL: jax.Array) -> jax.Array:
        """Returns the products with all distances, divided by sqrt(K): float32 `[B, H, P, L]`."""
        table_PK = self.embedding[...].astype(x_BHKL.dtype)
        scaled_BHKL = x_BHKL * x_BHKL.shape[2] ** -0.5
        return jnp.einsum(
            "pk,bhkl->bhpl",
            table_PK,
            scaled_BHKL,
            preferred_element_type=jnp.float32,
            out_sharding=over_batch(spec_of(x_BHKL)[1]),
        )


class RelativeKeyQuery(RelativeKey):
    """Also adds the product of the key and that vector (Huang et al. 2020)."""

    @staticmethod
    def flops(model: ModelConfig, *, length: int, queries: int) -> int:
        return RelativeKey.flops(model, length=length, queries=queries + length)

    def scores(self, q_BHKL: jax.Array, k_BHKS: jax.Array, **positions: jax.Array) -> jax.Array:
        rows_BLS = self._rows(**positions)
        return self.query_scores(q_BHKL, **positions) + _pick(self._products(k_BHKS), rows_BLS)


def _pick(numbers_BHPL: jax.Array, rows_BSL: jax.Array) -> jax.Array:
    """Returns the rows `rows_BSL` of each column of `numbers_BHPL`: `[B, H, S, L]`."""
    return jnp.take_along_axis(numbers_BHPL, rows_BSL[:, None], axis=2, mode="clip")
