"""Random batches of the contract's shape, for tests of model and step."""

import numpy as np


def random_batch(
    *, rows: int, length: int, predictions: int, vocab_size: int, seed: int = 0
) -> dict[str, np.ndarray]:
    """A batch with ragged padding, two segments a row and some unused predictions."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(length // 2, length + 1, (rows, 1))
    lengths[0] = length  # one row without padding
    places = np.arange(length)
    real = (places < lengths).astype(np.int32)
    ids = rng.integers(5, vocab_size, (rows, length)) * real
    weights = (np.arange(predictions) < rng.integers(1, predictions + 1, (rows, 1))) * 1.0
    positions = np.stack([rng.permutation(length // 2 - 1)[:predictions] + 1 for _ in range(rows)])
    return {
        "input_ids": ids.astype(np.int32),
        "token_type_ids": ((places >= lengths // 2) * real).astype(np.int32),
        "position_ids": np.tile(places, (rows, 1)).astype(np.int32),
        "sequence_ids": real,
        "mlm_positions": np.sort(positions).astype(np.int32) * (weights > 0).astype(np.int32),
        "mlm_targets": rng.integers(5, vocab_size, (rows, predictions)).astype(np.int32),
        "mlm_weights": weights.astype(np.float32),
        "nsp_positions": np.zeros((rows, 1), np.int32),
        "nsp_labels": rng.integers(0, 2, (rows, 1)).astype(np.int32),
        "nsp_weights": np.ones((rows, 1), np.float32),
    }
