"""Rows of several texts that follow each other, each with its own positions and `sequence_ids`."""

from collections.abc import Mapping

import numpy as np

from bert_jax.data import counter_rng
from bert_jax.data.pretraining.batch import INPUTS, Field


def fields_of_texts(texts: int) -> dict[str, Field]:
    """Returns the arrays of a batch of examples with `texts` texts each: in addition to the inputs
    of every encoder the first token and an id of each text (`text_ids`), and the weight of each
    example.
    """
    of_texts = dict.fromkeys(("text_positions", "text_ids"), Field(f"{texts}P", np.int32))
    return {**INPUTS, **of_texts, "weights": Field("P", np.float32)}


def places_of_texts(text_lengths: np.ndarray, *, length: int) -> dict[str, np.ndarray]:
    """Returns `position_ids`, `sequence_ids` int32 `[N, L]` and `text_positions` int32 `[N, T]` for
    rows of several texts with `text_lengths` `[N, T]` tokens.
    """
    ends = np.cumsum(text_lengths, axis=1)
    begins = ends - text_lengths
    column = np.arange(length)
    # The text of each column; T after the last text.
    text = np.sum(column[:, None] >= ends[:, None], axis=-1)
    is_token = text < text_lengths.shape[1]
    begin = np.take_along_axis(begins, np.minimum(text, text_lengths.shape[1] - 1), axis=1)
    return {
        "position_ids": ((column - begin) * is_token).astype(np.int32),
        "sequence_ids": ((text + 1) * is_token).astype(np.int32),
        "text_positions": begins.astype(np.int32),
    }


def text_ids(batch: Mapping[str, np.ndarray], *, texts: int) -> np.ndarray:
    """Returns a hash of the tokens of each text, int32 `[R, texts]`, by which equal texts are found
    on any device.

    Text t of a row `[R, L]` is where `sequence_ids` is t + 1. Two different texts have the same
    hash with a chance of 2**-32 and are then treated as equal: of 32,768 pairs, one query or
    document in about four batches.
    """
    # The position makes the sum depend on the order.
    hashes = counter_rng.bits(0, batch["input_ids"], batch["position_ids"])
    sums = [
        np.sum(hashes, axis=1, where=batch["sequence_ids"] == text + 1, dtype=np.uint64)
        for text in range(texts)
    ]
    return np.stack(sums, axis=1).astype(np.uint32).view(np.int32)
