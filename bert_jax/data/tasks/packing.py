"""Several examples in one row, so that a step of fine-tuning computes hardly any padding.

Drawn at random, the rows of a batch have many lengths, and the longest sets the cost of all: of the
tokens of SST-2's batches two thirds are padding. Here they stand behind each other. Losses and
gradients stay the same, as a token sees its own sequence only (`sequence_ids`), and positions and
token types begin anew with each (Krell et al. 2021, "Efficient Sequence Packing without
Cross-contamination").

Dims: B examples of a batch, R rows they are packed into, L row length, P slots for examples in a
row.
"""

import numpy as np

from bert_jax.data.tasks.encode_rows import Features

# A batch has at most so many shapes, each of which is compiled once when it first comes.
_SHAPES = 8


class PackedBatches:
    """Batches of `size` examples of `features`, packed; R is a multiple of `multiple`.

    So is `size`. `features` has a label for each row or for each token. All batches have the same
    L, that of the longest example, and the same P; R goes in steps of an eighth of `size`.
    """

    def __init__(self, features: Features, *, size: int, multiple: int = 1):
        assert features.labels is not None and features.weights is not None
        lengths, full = features.lengths, features.input_ids.shape[1]
        self._features, self._size = features, size
        self._labels, self._weights = features.labels, features.weights
        self.length = min(full, -(-int(lengths.max()) // 8) * 8)
        # Twice what fits on average: short ones come together in the last rows.
        average = max(1, int(self.length // lengths.mean()))
        self.slots = min(2 * average, self.length // int(lengths.min()), size)
        step = -(-size // _SHAPES)
        self._step = -(-step // multiple) * multiple

    def __call__(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Returns the batch of the given examples: the `[R, L]` arrays of every batch, and what is
        learned.

        Of texts `text_positions`, `labels` and `weights` `[R, P]`, where a slot without a text has
        weight 0; of tokens `labels` and `weights` `[R, L]`.
        """
        features, labels, weights = self._features, self._labels, self._weights
        lengths = features.lengths[rows]
        row_of, start_of, slot_of = pack(lengths, length=self.length, slots=self.slots)
        count = min(-(-(int(row_of.max()) + 1) // self._step) * self._step, self._size)
        batch: dict[str, np.ndarray] = {
            name: np.zeros((count, self.length), np.int32)
            for name in ("input_ids", "token_type_ids", "position_ids", "sequence_ids")
        }
        is_of_texts = weights.ndim == 1
        learned = self.slots if is_of_texts else self.length
        batch["labels"] = np.zeros((count, learned), labels.dtype)
        batch["weights"] = np.zeros((count, learned), np.float32)
        if is_of_texts:
            batch["text_positions"] = np.zeros((count, learned), np.int32)
        for example, length, row, start, slot in zip(
            rows, lengths, row_of, start_of, slot_of, strict=True
        ):
            here = (row, slice(start, start + length))
            batch["input_ids"][here] = features.input_ids[example, :length]
            batch["token_type_ids"][here] = features.token_type_ids[example, :length]
            batch["position_ids"][here] = np.arange(length)
            batch["sequence_ids"][here] = slot + 1
            if is_of_texts:
                batch["text_positions"][row, slot] = start
                batch["labels"][row, slot] = labels[example]
                batch["weights"][row, slot] = weights[example]
            else:
                batch["labels"][here] = labels[example, :length]
                batch["weights"][here] = weights[example, :length]
        return batch


def pack(
    lengths: np.ndarray, *, length: int, slots: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns row, first token and slot in its row of each of B examples: three int64 `[B]`.

    The longest first, each into the first row that has room for it: at most 11/9 of the fewest
    rows and 6/9 of one (Dosa 2007), but for the limit of `slots` examples a row. `lengths` are at
    most `length`.
    """
    used: list[int] = []
    held: list[int] = []
    found = np.empty((3, len(lengths)), np.int64)
    for example in np.argsort(-lengths, kind="stable").tolist():
        needed = int(lengths[example])
        row = next(
            (r for r, n in enumerate(used) if n + needed <= length and held[r] < slots), len(used)
        )
        if row == len(used):
            used.append(0)
            held.append(0)
        found[:, example] = row, used[row], held[row]
        used[row] += needed
        held[row] += 1
    return found[0], found[1], found[2]
