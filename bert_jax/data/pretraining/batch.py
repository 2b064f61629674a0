"""The arrays of a pre-training batch, and the inputs of their random draws."""

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

    `size` is "L" (the sequence length), "M" (the maximum number of masked positions per row), "P"
    (the maximum number of examples per row; 1 if rows are not packed), "2P" (two texts for each
    example, and so on) or a number.
    """

    size: str
    dtype: type

    def columns(self, *, sequence_length: int, max_predictions: int, max_sequences: int = 1) -> int:
        if self.size.endswith("P"):
            return self.of_an_example * max_sequences
        return {"L": sequence_length, "M": max_predictions}.get(self.size) or int(self.size)

    @property
    def of_an_example(self) -> int:
        """Returns the number of columns of one example, for a size in "P"."""
        return int(self.size.removesuffix("P") or 1)


class ArraySpec(NamedTuple):
    """The shape and the type of an array of a batch."""

    shape: tuple[int, int]
    dtype: type


def signature(
    fields: Mapping[str, Field], phase: PhaseConfig, *, rows: int
) -> dict[str, ArraySpec]:
    """Returns the arrays of `rows` rows of a batch of `phase`, which must be resolved."""
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
    """The inputs of the random draws of a mask or an objective, apart from the tokens of R rows.

    The draws of a row depend on `key`, which is derived from the seed and the phase, and on the
    example number of the row; they do not depend on the other rows of the batch.
    """

    vocabulary: Vocabulary
    options: DataConfig
    max_predictions: int
    key: int
    example_numbers: np.ndarray  # int64 [R]
    # The length of a full row, if the arrays are cut after the longest row.
    sequence_length: int = 0

    def row_keys(self, purpose: int) -> np.ndarray:
        """Returns a key for each row and purpose: uint64 `[R, 1]`."""
        return counter_rng.bits(counter_rng.derive(self.key, purpose), self.example_numbers)[
            :, None
        ]

    def position_keys(self, purpose: int, positions: np.ndarray) -> np.ndarray:
        """Returns a key for each of the positions `[R, M]` and purpose: uint64 `[R, M]`."""
        return counter_rng.bits(self.row_keys(purpose), positions)


# The inputs of every encoder.
INPUTS: Mapping[str, Field] = {
    "input_ids": Field("L", np.int32),
    "token_type_ids": Field("L", np.int32),
    "position_ids": Field("L", np.int32),
    "sequence_ids": Field("L", np.int32),
}
# The arrays that a kind of mask (registry.MASKINGS) adds.
PREDICTIONS: Mapping[str, Field] = {
    "mlm_positions": Field("M", np.int32),
    "mlm_targets": Field("M", np.int32),
    "mlm_weights": Field("M", np.float32),
}
