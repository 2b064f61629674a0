"""Positions that rotate queries and keys (Su et al. 2021)."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.config import ModelConfig
from bert_jax.model.positions.position import Position, frequencies
from bert_jax.model.sharding import over_batch, spec_of


class Rotary(Position):
    """Rotates each pair of columns of queries and keys by an angle proportional to the position, so
    that a score depends only on the distance (Su et al. 2021, RoFormer).

    Column i is paired with column i + K/2, as in transformers' ModernBERT and Llama. The
    computation is in float32: in bfloat16, adjacent positions above 256 would have the same angle.
    Each block has an instance, because local layers may have another theta than global ones.
    """

    is_per_block = True

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        """`config.rope_theta` is the theta of the block."""
        self.theta = config.rope_theta

    @staticmethod
    def problems(model: ModelConfig) -> Iterator[tuple[str, str]]:
        size, kind = model.hidden_size // model.num_attention_heads, model.position_embedding_type
        if size % 2:
            made = f"gives a head size of {size} for a hidden_size of {model.hidden_size}"
            yield "num_attention_heads", f"{made}; {kind} positions need an even head size"

    def rotate(
        self,
        q_BHKL: jax.Array,
        k_BHKS: jax.Array,
        *,
        query_positions_BL: jax.Array,
        key_positions_BS: jax.Array,
    ) -> tuple[jax.Array, jax.Array]:
        return self._turn(q_BHKL, query_positions_BL), self._turn(k_BHKS, key_positions_BS)

    def _turn(self, x_BHKL: jax.Array, positions_BL: jax.Array) -> jax.Array:
        turns = frequencies(x_BHKL.shape[2], theta=self.theta)
        angles = positions_BL[:, None, None].astype(jnp.float32) * turns[:, None]
        cos, sin = jnp.cos(angles), jnp.sin(angles)
        a, b = self._split(x_BHKL.astype(jnp.float32))
        return self._join(a * cos - b * sin, b * cos + a * sin).astype(x_BHKL.dtype)

    def _split(self, x_BHKL: jax.Array) -> tuple[jax.Array, jax.Array]:
        half = x_BHKL.shape[2] // 2
        return x_BHKL[:, :, :half], x_BHKL[:, :, half:]

    def _join(self, a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.concatenate([a, b], axis=2)


class RotaryInterleaved(Rotary):
    """The same with column 2i paired with column 2i + 1, as in RoFormer's code and GPT-J."""

    def _split(self, x_BHKL: jax.Array) -> tuple[jax.Array, jax.Array]:
        return x_BHKL[:, :, 0::2], x_BHKL[:, :, 1::2]

    def _join(self, a: jax.Array, b: jax.Array) -> jax.Array:
        batch, heads, half, length = a.shape
        both = jnp.stack([a, b], axis=3)
        shape = (batch, heads, 2 * half, length)
        return jnp.reshape(both, shape, out_sharding=over_batch(spec_of(a)[1]))
