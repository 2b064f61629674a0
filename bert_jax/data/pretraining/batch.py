"""The arrays of a batch of pre-training: their names, sizes and types."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

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
