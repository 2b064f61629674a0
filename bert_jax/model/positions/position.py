"""The base of the position kinds: one class per kind, with five hooks.

A kind may add to the embeddings, rotate queries and keys, or add to the scores; a hook that is not
overridden costs nothing. `registry.POSITIONS` lists the kinds. All of them read `position_ids`
instead of columns, so that a packed sequence has the positions of a sequence without neighbors;
hooks in attention read only differences of positions.

Dims: B batch, L length of the queries, S length of the keys, D width, H heads, K head size, P
distances.
"""

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from flax import nnx

from bert_jax.config import ModelConfig
from bert_jax.registry import POSITIONS


class Position(nnx.Module):
    """The base of all kinds, and the kind `none`: without any positions.

    The parameters of a kind, if any, are `position`.
    """

    # Whether each block has a separate instance, with separate parameters and without `add`.
    # Otherwise all blocks share one instance.
    is_per_block = False

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        del config, rngs

    @classmethod
    def _has(cls, *hooks: str) -> bool:
        return any(getattr(cls, hook) is not getattr(Position, hook) for hook in hooks)

    @classmethod
    def is_in_attention(cls) -> bool:
        """Returns whether the kind has a hook that blocks call."""
        return cls._has("rotate") or cls.adds_to_scores()

    @classmethod
    def adds_to_scores(cls) -> bool:
        return cls._has("bias", "query_scores", "scores")

    @classmethod
    def multiplies(cls) -> bool:
        """Returns whether the kind is made for scores that are products of queries and keys."""
        return cls._has("rotate", "query_scores", "scores")

    @classmethod
    def sees_key_bias(cls) -> bool:
        """Returns whether the scores of a query depend on the bias of the keys other than by a
        common term.

        If they do not, that bias does not change the softmax, and its gradient is zero.
        """
        return cls._has("rotate", "scores")

    @classmethod
    def has_table(cls) -> bool:
        """Returns whether the kind has as many rows of parameters as there are positions."""
        return cls._has("rows_for")

    @staticmethod
    def rows_for(length: int, *, rows: int) -> np.ndarray:
        """Returns, for each row of a table for `length` positions, the row of a table with `rows`
        rows that initializes it.
        """
        return np.arange(rows)

    @staticmethod
    def problems(model: ModelConfig) -> Iterator[tuple[str, str]]:
        """Yields the name and the problem of each field that does not fit this kind."""
        yield from ()

    @staticmethod
    def flops(model: ModelConfig, *, length: int, queries: int) -> int:
        """Returns the FLOPs of its matmuls in one block for a row with `queries` queries."""
        return 0

    def add(self, x_BLD: jax.Array, position_ids_BL: jax.Array) -> jax.Array:
        """Returns the embeddings plus the term of the positions."""
        return x_BLD

    def rotate(
        self,
        q_BHKL: jax.Array,
        k_BHKS: jax.Array,
        *,
        query_positions_BL: jax.Array,
        key_positions_BS: jax.Array,
    ) -> tuple[jax.Array, jax.Array]:
        """Returns queries and keys, rotated by their positions."""
        return q_BHKL, k_BHKS

    def bias(
        self, *, query_positions_BL: jax.Array, key_positions_BS: jax.Array, num_heads: int
    ) -> jax.Array | None:
        """Returns the term to add to the scores, float32 `[B, H, L, S]`, or None."""
        return None

    def query_scores(self, q_BHKL: jax.Array, **positions: jax.Array) -> jax.Array | None:
        """Returns the same term for kinds in which it depends on the (rotated) queries.

        `positions` are the two arguments of `bias`.
        """
        return self.bias(**positions, num_heads=q_BHKL.shape[1])

    def scores(
        self, q_BHKL: jax.Array, k_BHKS: jax.Array, **positions: jax.Array
    ) -> jax.Array | None:
        """Returns the same term for kinds in which it also depends on the keys."""
        return self.query_scores(q_BHKL, **positions)


def lengthened(params: Any, model: ModelConfig) -> Any:
    """Returns parameters, or their moments, with tables for the positions of `model`.

    `params` belong to the same model with fewer positions. `Position.rows_for` of the kind
    initializes the new rows; kinds without a table are unchanged.
    """
    kind = POSITIONS[model.position_embedding_type]

    def longer(path: tuple, leaf: Any) -> Any:
        if [entry.key for entry in path[-2:]] != ["position", "embedding"]:
            return leaf
        numbers = kind.rows_for(model.max_position_embeddings, rows=leaf.shape[0])
        if isinstance(leaf, np.ndarray):
            return leaf[numbers]
        # Gathered on each device first: the rows of a table may be on several devices.
        return jax.reshard(leaf, jax.P()).at[numbers].get(out_sharding=jax.P())

    return jax.tree_util.tree_map_with_path(longer, params)


def frequencies(columns: int, *, theta: float) -> np.ndarray:
    """Returns the angle per position of each pair of columns, float32: theta^(-2i / columns)."""
    return (theta ** -(np.arange(0, columns, 2) / columns)).astype(np.float32)
