"""Positions that are added to the embeddings: learned vectors, or sines and cosines."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from bert_jax.config import ModelConfig
from bert_jax.model.layers import look_up, truncated_normal
from bert_jax.model.positions.position import Position, frequencies
from bert_jax.model.sharding import over_batch


class Learned(Position):
    """A learned vector for each position (Devlin et al. 2019)."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        shape = (config.max_position_embeddings, config.table_size)
        self.embedding = truncated_normal(rngs, shape, stddev=config.initializer_range)

    @staticmethod
    def rows_for(length: int, *, rows: int) -> np.ndarray:
        """The table is repeated, as Longformer initializes from RoBERTa (Beltagy et al. 2020,
        section 5): adjacent positions stay adjacent except where a copy begins.
        """
        return np.arange(length) % rows

    def add(self, x_BLD: jax.Array, position_ids_BL: jax.Array) -> jax.Array:
        return x_BLD + look_up(self.embedding[...], position_ids_BL)


class Sinusoidal(Position):
    """Sines in the even columns and cosines in the odd ones (Vaswani et al. 2017, section 3.5).

    They are multiplied by sqrt(2) x `initializer_range`, the initial size of the word vectors. With
    an amplitude of 1, the normalization that follows would leave almost nothing of a word; the
    paper instead multiplies its word vectors by the square root of the width.
    """

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        self.amplitude = 2**0.5 * config.initializer_range

    @staticmethod
    def problems(model: ModelConfig) -> Iterator[tuple[str, str]]:
        if model.table_size % 2:
            yield "hidden_size", f"is {model.table_size}; sinusoidal positions need an even size"

    def add(self, x_BLD: jax.Array, position_ids_BL: jax.Array) -> jax.Array:
        turns = frequencies(x_BLD.shape[-1], theta=10_000.0)
        angles = position_ids_BL[:, :, None].astype(jnp.float32) * turns
        waves = jnp.stack([jnp.sin(angles), jnp.cos(angles)], axis=-1)
        waves_BLD = jnp.reshape(waves, x_BLD.shape, out_sharding=over_batch())
        return x_BLD + (self.amplitude * waves_BLD).astype(x_BLD.dtype)
