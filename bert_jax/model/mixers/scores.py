"""Scores of a query and a key (registry.SCORES): one class per score.

Dims: B batch, H heads, K head size, L length of the queries, S length of the keys.
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType

import jax
from flax import nnx

from bert_jax.config import ModelConfig
from bert_jax.model.roles import Role
from bert_jax.registry import POSITIONS


class Score(nnx.Module):
    """The scaled dot product, q k / sqrt(K) (Vaswani et al. 2017), and the base of other scores.

    The parameters of a score, if any, are `score` of each block.
    """

    # "score.PARAMETER" -> role, as in a mixer.
    roles: Mapping[str, Role] = MappingProxyType({})
    # Whether it is a sum, not a product of two vectors: attention gets it as a bias.
    is_added = False

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        del config, rngs

    @classmethod
    def problems(cls, model: ModelConfig) -> Iterator[tuple[str, str]]:
        """Yields the name of each field that does not fit this score, and why."""
        kind = model.position_embedding_type
        if cls.is_added and POSITIONS[kind].multiplies():
            yield (
                "position_embedding_type",
                f"is {kind}, which works on the product of queries and keys, but this mixer.score "
                "is a sum; choose learned, sinusoidal, alibi, t5 or none",
            )

    def __call__(
        self, q_BHKL: jax.Array, k_BHKS: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array | None]:
        """Returns queries and keys with the score as their scaled dot product, and a term to add,
        float32 `[B, H, L, S]`, or None. Rotary positions turn the returned queries and keys.
        """
        return q_BHKL, k_BHKS, None

    @staticmethod
    def flops(model: ModelConfig, *, length: int, queries: int, keys: int) -> int:
        """Returns the FLOPs of the scores of one row, with `keys` keys per query."""
        return 2 * queries * keys * model.hidden_size
