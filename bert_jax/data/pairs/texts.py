"""Rows of several texts that follow each other, each with its own positions and `sequence_ids`."""

from collections.abc import Mapping

import numpy as np

from bert_jax.data import counter_rng
from bert_jax.data.pretraining.batch import INPUTS, Field


def fields_of_texts(texts: int) -> dict[str, Field]:
    """Returns the arrays of a batch of examples with `texts` texts each: in addition to the inputs
    of every encoder the first token of each text, an id of each text in two words (`text_ids`), and
    the weight of each example.
    """
    names = ("text_positions", "text_ids", "text_ids_high")
    of_texts = dict.fromkeys(names, Field(f"{texts}P", np.int32))
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


def text_ids(batch: Mapping[str, np.ndarray], *, texts: int) -> dict[str, np.ndarray]:
    """Returns `text_ids` and `text_ids_high`, int32 `[R, texts]`: a hash of 64 bits of the tokens
    of each text, by which equal texts are found on any device.

    Text t of a row `[R, L]` is where `sequence_ids` is t + 1. Two of a million texts have the same
    hash with a chance of 3e-8.
    """
    # The position makes the sum depend on the order.
    hashes = counter_rng.bits(0, batch["input_ids"], batch["position_ids"])
    sums = [
        np.sum(hashes, axis=1, where=batch["sequence_ids"] == text + 1, dtype=np.uint64)
        for text in range(texts)
    ]
    words = np.stack(sums, axis=1)[..., None].view(np.int32)
    return {"text_ids": words[..., 0], "text_ids_high": words[..., 1]}
