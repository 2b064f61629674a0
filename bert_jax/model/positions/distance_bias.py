"""Positions that add a number for the distance to each score: ALiBi, and T5's buckets."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from bert_jax.config import ModelConfig
from bert_jax.model.layers import look_up, truncated_normal
from bert_jax.model.positions.position import Position


class Alibi(Position):
    """Takes a multiple of the distance from each score, in each head another (Press et al. 2022).

    The distance counts both ways, as in MosaicBERT.
    """

    def bias(
        self, *, query_positions_BL: jax.Array, key_positions_BS: jax.Array, num_heads: int
    ) -> jax.Array:
        distance_BLS = jnp.abs(query_positions_BL[:, :, None] - key_positions_BS[:, None, :])
        slopes_H = jnp.asarray(alibi_slopes(num_heads))
        return -slopes_H[:, None, None] * distance_BLS[:, None].astype(jnp.float32)


class T5(Position):
    """Adds a learned number for each head and range of distances (Raffel et al. 2020).

    One table serves all blocks. The scores keep their 1/sqrt(K), which T5 leaves out.
    """

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        shape = (_BUCKETS, config.num_attention_heads)
        self.embedding = truncated_normal(rngs, shape, stddev=config.initializer_range)

    def bias(
        self, *, query_positions_BL: jax.Array, key_positions_BS: jax.Array, num_heads: int
    ) -> jax.Array:
        distance_BLS = key_positions_BS[:, None, :] - query_positions_BL[:, :, None]
        distance_BLS = jnp.clip(distance_BLS, -_FARTHEST, _FARTHEST) + _FARTHEST
        # A number for each distance first, so that positions look up once.
        buckets_P = t5_buckets(np.arange(-_FARTHEST, _FARTHEST + 1))
        of_distance_PH = self.embedding[...].astype(jnp.float32)[buckets_P]
        return jnp.moveaxis(look_up(of_distance_PH, distance_BLS), -1, 1)


def alibi_slopes(num_heads: int) -> np.ndarray:
    """Returns the slope of each head, float32: 2^(-8/H), 2^(-16/H), ...

    Where the number of heads is no power of two, those of the next lower one come first, and every
    second of those of the next higher one after them, as in the authors' code (ofirpress/
    attention_with_linear_biases) and transformers' Bloom.
    """

    def of_power(heads: int) -> np.ndarray:
        return 2.0 ** (-8.0 * np.arange(1, heads + 1) / heads)

    lower = 2 ** (num_heads.bit_length() - 1)
    more = of_power(2 * lower)[::2][: num_heads - lower]
    return np.concatenate([of_power(lower), more]).astype(np.float32)


# T5's own numbers: buckets of both directions, and the distance from which on all are alike.
_BUCKETS, _FARTHEST = 32, 128


def t5_buckets(distance: np.ndarray) -> np.ndarray:
    """Returns the bucket of each distance, key - query, as T5's encoder has it.

    Half of the buckets are for keys behind the query. Of a half, the first 8 are for one distance
    each, and the others grow by a constant factor up to 128. In NumPy, when the program is traced:
    a device's logarithm may round to the neighbouring bucket.
    """
    half = _BUCKETS // 2
    exact = half // 2
    far = np.abs(distance)
    ratio = np.log(np.maximum(far, exact) / exact) / np.log(_FARTHEST / exact)
    grown = np.minimum(exact + (ratio * (half - exact)).astype(np.int64), half - 1)
    return half * (distance > 0) + np.where(far < exact, far, grown)
