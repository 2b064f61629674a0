"""The arrays of a batch of pre-training, and what decides the draws that are in them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from bert_jax.config import DataConfig, PhaseConfig
from bert_jax.data import counter_rng
from bert_jax.data.tokenizer.tokenizer import Vocabulary

Batch = dict[str, np.ndarray]


class Field(NamedTuple):
    """An array of a batch, `[B, size]`.

    `size` is "L" (the sequence length), "M" (the masked positions a row has room for), "P" (the
    sequences it has room for: 1 where rows are not packed) or a number.
    """

    size: str
    dtype: type

    def columns(self, *, sequence_length: int, max_predictions: int, max_sequences: int = 1) -> int:
        sizes = {"L": sequence_length, "M": max_predictions, "P": max_sequences}
        return sizes.get(self.size) or int(self.size)


class ArraySpec(NamedTuple):
    """The shape and the type of an array of a batch."""

    shape: tuple[int, int]
    dtype: type


def signature(
    fields: Mapping[str, Field], phase: PhaseConfig, *, rows: int
) -> dict[str, ArraySpec]:
    """Returns the arrays of `rows` rows of a batch of `phase`, which is resolved."""
    sizes = {
        "sequence_length": phase.sequence_length,
        "max_predictions": phase.max_predictions,
        "max_sequences": phase.sequences,
    }
    return {
        name: ArraySpec((rows, field.columns(**sizes)), field.dtype)
        for name, field in fields.items()
    }


@dataclass(frozen=True, kw_only=True)
class Draw:
    """Everything, beside the tokens of R rows, that decides what a mask or an objective draws.

    A row's draws depend on `key`, which is the seed's and the phase's, and on its example number
    only: not on the other rows of its batch.
    """

    vocabulary: Vocabulary
    options: DataConfig
    max_predictions: int
    key: int
    example_numbers: np.ndarray  # int64 [R]
    # That of a whole row, where rows come cut after the longest of them.
    sequence_length: int = 0

    def row_keys(self, purpose: int) -> np.ndarray:
        """Returns a key for each row and purpose: uint64 `[R, 1]`."""
        return counter_rng.bits(counter_rng.derive(self.key, purpose), self.example_numbers)[
            :, None
        ]

    def position_keys(self, purpose: int, positions: np.ndarray) -> np.ndarray:
        """Returns a key for each of the positions `[R, M]` and purpose: uint64 `[R, M]`."""
        return counter_rng.bits(self.row_keys(purpose), positions)


# What every encoder reads.
INPUTS: Mapping[str, Field] = {
    "input_ids": Field("L", np.int32),
    "token_type_ids": Field("L", np.int32),
    "position_ids": Field("L", np.int32),
    "sequence_ids": Field("L", np.int32),
}
# What a kind of mask (registry.MASKS) adds to them.
PREDICTIONS: Mapping[str, Field] = {
    "mlm_positions": Field("M", np.int32),
    "mlm_targets": Field("M", np.int32),
    "mlm_weights": Field("M", np.float32),
}
