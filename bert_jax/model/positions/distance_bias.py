"""Positions that add a bias per distance to each score: ALiBi, and T5's buckets."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from bert_jax.config import ModelConfig
from bert_jax.model.layers import look_up, truncated_normal
from bert_jax.model.positions.position import Position


class Alibi(Position):
    """Subtracts a multiple of the distance from each score, per head (Press et al. 2022).

    The distance is symmetric, as in MosaicBERT.
    """

    def bias(
        self, *, query_positions_BL: jax.Array, key_positions_BS: jax.Array, num_heads: int
    ) -> jax.Array:
        distance_BLS = jnp.abs(query_positions_BL[:, :, None] - key_positions_BS[:, None, :])
        slopes_H = jnp.asarray(alibi_slopes(num_heads))
        return -slopes_H[:, None, None] * distance_BLS[:, None].astype(jnp.float32)


class T5(Position):
    """Adds a learned bias per head and bucket of distances (Raffel et al. 2020).

    All blocks share one table. The scores keep the factor 1/sqrt(K), which T5 omits.
    """

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        shape = (_BUCKETS, config.num_attention_heads)
        self.embedding = truncated_normal(rngs, shape, stddev=config.initializer_range)

    def bias(
        self, *, query_positions_BL: jax.Array, key_positions_BS: jax.Array, num_heads: int
    ) -> jax.Array:
        distance_BLS = key_positions_BS[:, None, :] - query_positions_BL[:, :, None]
        distance_BLS = jnp.clip(distance_BLS, -_FARTHEST, _FARTHEST) + _FARTHEST
        # One number per distance first, so that positions need only one lookup.
        buckets_P = t5_buckets(np.arange(-_FARTHEST, _FARTHEST + 1))
        of_distance_PH = self.embedding[...].astype(jnp.float32)[buckets_P]
        return jnp.moveaxis(look_up(of_distance_PH, distance_BLS), -1, 1)


def alibi_slopes(num_heads: int) -> np.ndarray:
    """Returns the slope of each head, float32: 2^(-8/H), 2^(-16/H), ...

    If the number of heads is not a power of two, the slopes of the next lower power come first,
    followed by every second slope of the next higher one, as in the authors' code
    (ofirpress/attention_with_linear_biases) and transformers' Bloom.
    """

    def of_power(heads: int) -> np.ndarray:
        return 2.0 ** (-8.0 * np.arange(1, heads + 1) / heads)

    lower = 2 ** (num_heads.bit_length() - 1)
    more = of_power(2 * lower)[::2][: num_heads - lower]
    return np.concatenate([of_power(lower), more]).astype(np.float32)


# T5's constants: buckets of both directions, and the distance from which all share a bucket.
_BUCKETS, _FARTHEST = 32, 128


def t5_buckets(distance: np.ndarray) -> np.ndarray:
    """Returns the bucket of each distance, key - query, as in T5's encoder.

    Half of the buckets are for keys before the query. In each half, the first 8 are for one
    distance each, and the others grow by a constant factor up to 128. Computed in NumPy while
    tracing: a device's logarithm may round to the neighboring bucket.
    """
    half = _BUCKETS // 2
    exact = half // 2
    far = np.abs(distance)
    ratio = np.log(np.maximum(far, exact) / exact) / np.log(_FARTHEST / exact)
    grown = np.minimum(exact + (ratio * (half - exact)).astype(np.int64), half - 1)
    return half * (distance > 0) + np.where(far < exact, far, grown)
