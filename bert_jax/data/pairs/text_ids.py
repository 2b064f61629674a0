"""Ids of texts, by which equal texts of a batch are found on any device."""

import numpy as np

from bert_jax.data import counter_rng


def text_ids(
    input_ids: np.ndarray, sequence_ids: np.ndarray, position_ids: np.ndarray, *, texts: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns a hash of 64 bits of the tokens of each text as two words, int32 `[R, texts]` each.

    Text t of a row `[R, L]` is where `sequence_ids` is t + 1. Two of a million texts have the same
    hash with a chance of 3e-8.
    """
    # The position makes the sum depend on the order.
    hashes = counter_rng.bits(0, input_ids, position_ids)
    sums = [
        np.sum(hashes, axis=1, where=sequence_ids == text + 1, dtype=np.uint64)
        for text in range(texts)
    ]
    words = np.stack(sums, axis=1)[..., None].view(np.int32)
    return words[..., 0], words[..., 1]
