"""The base of the kinds of position: a class each, with five hooks.

A kind may add to the embeddings, turn queries and keys, or add to the scores. Those it does not
have cost nothing. `registry.POSITIONS` lists the kinds. All of them read `position_ids` and never
columns, so that each sequence of a row has what it has alone; those in attention read differences
alone.

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
    """The base of all kinds: knows nothing of order, and is the kind `none`.

    The parameters of a kind, if any, are `position`.
    """

    # Whether each block has an instance, and parameters, of its own. All blocks share one else.
    is_per_block = False

    def __init_subclass__(cls, **options: Any):
        super().__init_subclass__(**options)
        if cls.is_per_block and cls._has("add"):
            raise TypeError(
                f"{cls.__name__} is per block, and no block calls its add(): drop one of the two"
            )

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
        """Returns whether scores of a query may depend on the key's bias beyond a common term.

        Where they do not, softmax does not see that bias, and its gradient is zero.
        """
        return cls._has("rotate", "scores")

    @classmethod
    def has_table(cls) -> bool:
        """Returns whether the kind has as many rows of parameters as there are positions."""
        return cls._has("rows_for")

    @staticmethod
    def rows_for(length: int, *, rows: int) -> np.ndarray:
        """Returns which row of a table with so many `rows` each row of one for `length` positions
        begins as.
        """
        return np.arange(rows)

    @staticmethod
    def problems(model: ModelConfig) -> Iterator[tuple[str, str]]:
        """Yields the name of each field that a model of this kind cannot have so, and why."""
        yield from ()

    @staticmethod
    def flops(model: ModelConfig, *, length: int, queries: int) -> int:
        """Returns the FLOPs of its matrix products in one block, of which `queries` are read."""
        return 0

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

    def query_scores(self, q_BHKL: jax.Array, **positions: jax.Array) -> jax.Array | None:
        """Returns the same where it depends on the queries, which `rotate` has turned.

        `positions` are the two of `bias`.
        """
        return self.bias(**positions, num_heads=q_BHKL.shape[1])

    def scores(
        self, q_BHKL: jax.Array, k_BHKS: jax.Array, **positions: jax.Array
    ) -> jax.Array | None:
        """Returns the same where it depends on keys, too."""
        return self.query_scores(q_BHKL, **positions)


def lengthened(params: Any, model: ModelConfig) -> Any:
    """Returns parameters, or moments of them, whose tables serve the positions of `model`.

    They are of the same model with fewer positions. What a new row begins as is the rule of the
    kind (`Position.rows_for`); a kind without a table needs none.
    """
    kind = POSITIONS[model.position_embedding_type]

    def longer(path: tuple, leaf: Any) -> Any:
        if [entry.key for entry in path[-2:]] != ["position", "embedding"]:
            return leaf
        numbers = kind.rows_for(model.max_position_embeddings, rows=leaf.shape[0])
        if isinstance(leaf, np.ndarray):
            return leaf[numbers]
        # Whole on each device, since the rows of a table may lie on several.
        return jax.reshard(leaf, jax.P()).at[numbers].get(out_sharding=jax.P())

    return jax.tree_util.tree_map_with_path(longer, params)


def frequencies(columns: int, *, theta: float) -> np.ndarray:
    """Returns the angle per position of each pair of columns, float32: theta^(-2i / columns)."""
    return (theta ** -(np.arange(0, columns, 2) / columns)).astype(np.float32)
