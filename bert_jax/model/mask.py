"""The keys that each query attends to: one value per forward pass, shared by all layers.

Dims: B batch, L length of the queries, S length of the keys, R positions that are read.
"""

import dataclasses
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax

from bert_jax.model.layers import gather_ids


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["query_ids_BL", "key_ids_BS", "query_positions_BL", "key_positions_BS"],
    meta_fields=["window", "is_causal", "is_square"],
)
@dataclass(frozen=True, kw_only=True)
class Mask:
    """A token attends to its own sequence, limited by `window` and `is_causal`.

    Ids number the sequences of a row from 1; padding is 0. Positions count from 0 in each sequence.
    `window` is the number of positions, half of them on either side of the token; None for all. In
    a square mask every column is a query and a key, and the columns of a sequence are adjacent and
    in the order of its positions. Arrays are JAX or NumPy arrays.
    """

    query_ids_BL: Any
    key_ids_BS: Any
    query_positions_BL: Any
    key_positions_BS: Any
    window: int | None = None
    is_causal: bool = False
    is_square: bool = False

    @classmethod
    def of_rows(cls, sequence_ids_BL: Any, position_ids_BL: Any, **options: Any) -> "Mask":
        """Returns the mask of rows in which every token is a query and a key."""
        return cls(
            query_ids_BL=sequence_ids_BL,
            key_ids_BS=sequence_ids_BL,
            query_positions_BL=position_ids_BL,
            key_positions_BS=position_ids_BL,
            is_square=True,
            **options,
        )

    def at(self, read_BR: jax.Array) -> "Mask":
        """Returns the mask of the queries in the columns `read_BR`."""
        return dataclasses.replace(
            self,
            query_ids_BL=gather_ids(self.query_ids_BL, read_BR),
            query_positions_BL=gather_ids(self.query_positions_BL, read_BR),
            is_square=False,
        )

    def allowed(self) -> Any:
        """Returns bool `[B, L, S]`: whether the query attends to the key."""
        allowed_BLS = self.query_ids_BL[:, :, None] == self.key_ids_BS[:, None, :]
        if self.window is None and not self.is_causal:
            return allowed_BLS
        distance_BLS = self.key_positions_BS[:, None, :] - self.query_positions_BL[:, :, None]
        if self.window is not None:
            allowed_BLS &= abs(distance_BLS) <= self.window // 2
        return allowed_BLS & (distance_BLS <= 0) if self.is_causal else allowed_BLS
