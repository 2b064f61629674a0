"""Scores, which say how well a key answers a query (registry.SCORES): a class each.

Dims: B batch, H heads, K head size, L length of the queries, S length of the keys.
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.config import ModelConfig
from bert_jax.model.layers import truncated_normal
from bert_jax.model.roles import Role
from bert_jax.registry import POSITIONS

# Each head has its own, and the tensor axis cuts between heads.
_BY_HEADS = Role(is_decayed=True, in_compute_type=True, tensor_dim=0)


class Score(nnx.Module):
    """The scaled dot product, q k / sqrt(K) (Vaswani et al. 2017), and the base of the others.

    The parameters of a kind, if any, are `score` of each block.
    """

    # "score.PARAMETER" -> role, as those of a mixer.
    roles: Mapping[str, Role] = MappingProxyType({})
    # Whether it is no product of two vectors, so that it is given to attention as a bias.
    is_added = False

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        del config, rngs

    @classmethod
    def problems(cls, model: ModelConfig) -> Iterator[tuple[str, str]]:
        """Yields the name of each field that a model with this score cannot have so, and why."""
        kind = model.position_embedding_type
        if cls.is_added and POSITIONS[kind].multiplies():
            yield (
                "position_embedding_type",
                f"is {kind}, which works on the product of queries and keys, which this "
                "mixer.score is not; choose learned, sinusoidal, alibi, t5 or none",
            )

    def __call__(
        self, q_BHKL: jax.Array, k_BHKS: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array | None]:
        """Returns queries and keys whose scaled dot product is the score, and what is added to it,
        float32 `[B, H, L, S]`, or None. Positions turn what is returned.
        """
        return q_BHKL, k_BHKS, None

    @staticmethod
    def flops(model: ModelConfig, *, length: int, queries: int, keys: int) -> int:
        """Returns the FLOPs of one row's scores, of which each query has so many `keys`."""
        return 2 * queries * keys * model.hidden_size


class DotProduct(Score):
    """q k, not scaled (Luong et al. 2015)."""

    def __call__(
        self, q_BHKL: jax.Array, k_BHKS: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array | None]:
        return q_BHKL * q_BHKL.shape[2] ** 0.5, k_BHKS, None


class General(DotProduct):
    """q W k with a matrix for each head, not scaled (Luong et al. 2015, "general")."""

    roles = MappingProxyType({"score.kernel": _BY_HEADS})

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        self.kernel = _matrix(config, rngs=rngs)

    def __call__(
        self, q_BHKL: jax.Array, k_BHKS: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array | None]:
        return super().__call__(_mapped(self.kernel, q_BHKL), k_BHKS)

    @staticmethod
    def flops(model: ModelConfig, *, length: int, queries: int, keys: int) -> int:
        maps = 2 * queries * model.hidden_size * _head_size(model)
        return maps + Score.flops(model, length=length, queries=queries, keys=keys)


class Additive(Score):
    """v tanh(W q + U k) with two matrices and a vector for each head (Bahdanau et al. 2015)."""

    roles = MappingProxyType(
        {f"score.{name}": _BY_HEADS for name in ("query_kernel", "key_kernel", "vector")}
    )
    is_added = True

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        self.query_kernel = _matrix(config, rngs=rngs)
        self.key_kernel = _matrix(config, rngs=rngs)
        shape = (config.num_attention_heads, _head_size(config))
        self.vector = truncated_normal(rngs, shape, stddev=config.initializer_range)

    def __call__(
        self, q_BHKL: jax.Array, k_BHKS: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array | None]:
        queries = _mapped(self.query_kernel, q_BHKL).astype(jnp.float32)
        keys = _mapped(self.key_kernel, k_BHKS).astype(jnp.float32)
        vector_HK = self.vector[...].astype(jnp.float32)

        # One column after the other, each computed again in the backward pass: all of them at once
        # are [B, H, K, L, S].
        @jax.checkpoint
        def term(q_BHL: jax.Array, k_BHS: jax.Array, v_H: jax.Array) -> jax.Array:
            return v_H[:, None, None] * jnp.tanh(q_BHL[..., None] + k_BHS[..., None, :])

        def add(scores_BHLS, column):
            return scores_BHLS + term(*column), None

        columns = jnp.moveaxis(queries, 2, 0), jnp.moveaxis(keys, 2, 0), vector_HK.T
        first = jnp.zeros_like(queries[:, :, 0, :, None] + keys[:, :, 0, None])
        scores_BHLS, _ = jax.lax.scan(add, first, columns)
        # All of it is in the scores.
        return jnp.zeros_like(q_BHKL[:, :, :1]), jnp.zeros_like(k_BHKS[:, :, :1]), scores_BHLS

    @staticmethod
    def flops(model: ModelConfig, *, length: int, queries: int, keys: int) -> int:
        maps = 2 * (queries + length) * model.hidden_size * _head_size(model)
        return maps + Score.flops(model, length=length, queries=queries, keys=keys)


def _head_size(model: ModelConfig) -> int:
    return model.hidden_size // model.num_attention_heads


def _matrix(config: ModelConfig, *, rngs: nnx.Rngs) -> nnx.Param:
    shape = (config.num_attention_heads, _head_size(config), _head_size(config))
    return truncated_normal(rngs, shape, stddev=config.initializer_range)


def _mapped(kernel: nnx.Param, x_BHKL: jax.Array) -> jax.Array:
    """Returns the product of each head's vectors with its matrix `[H, K, K]`, inputs first."""
    return jnp.einsum("hkj,bhkl->bhjl", kernel[...].astype(x_BHKL.dtype), x_BHKL)
