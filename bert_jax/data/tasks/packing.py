"""Packs several examples into one row, so that fine-tuning computes little padding.

The rows of a random batch have many lengths, and the longest row sets the cost of all: two thirds
of the tokens in SST-2's batches are padding. Here several examples share a row. Losses and
gradients stay the same, since a token only attends to its own sequence (`sequence_ids`), and
positions and token types restart with each example (Krell et al. 2021, "Efficient Sequence Packing
without Cross-contamination").

Dims: B examples of a batch, R packed rows, L row length, P slots for examples in a row.
"""

import numpy as np

from bert_jax.data.pairs.texts import fields_of_texts, text_ids
from bert_jax.data.pretraining.batch import INPUTS, Field
from bert_jax.data.pretraining.packing import place
from bert_jax.data.tasks.encode_rows import Features, arrays_of

# The most shapes of a batch; each shape is compiled once.
_SHAPES = 8


class PackedBatches:
    """Batches of `size` examples of `features`, packed; R is a multiple of `multiple`.

    `size` is also a multiple of it. `features` has a label for each row or for each token. All
    batches have the L of the longest example and the same P; R has steps of an eighth of `size`.
    """

    def __init__(self, features: Features, *, size: int, multiple: int = 1):
        assert features.labels is not None and features.weights is not None
        lengths, full = features.lengths, features.input_ids.shape[1]
        self._features, self._size = features, size
        self.length = min(full, -(-int(lengths.max()) // 8) * 8)
        # Twice the average that fits: short examples gather in the last rows.
        average = max(1, int(self.length // lengths.mean()))
        self.slots = min(2 * average, self.length // int(lengths.min()), size)
        step = -(-size // _SHAPES)
        self._step = -(-step // multiple) * multiple
        texts = features.text_lengths
        if texts is not None:
            count = texts.shape[1]
            scores = Field(f"{count - 1}P", np.float32)
            self._fields = {**fields_of_texts(count), "labels": scores}
            return
        learned = Field("P" if features.weights.ndim == 1 else "L", features.labels.dtype.type)
        self._fields = {**INPUTS, "labels": learned, "weights": learned._replace(dtype=np.float32)}
        if learned.size == "P":
            self._fields["text_positions"] = Field("P", np.int32)

    def __call__(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Returns the batch of the given examples: the `[R, L]` arrays of every batch, and the
        labels.

        For labels of texts: `text_positions`, `labels` and `weights` `[R, P]`, with weight 0 in
        empty slots; for labels of tokens: `labels` and `weights` `[R, L]`.
        """
        order, counts = first_fit(
            self._features.lengths[rows], length=self.length, slots=self.slots
        )
        batch = arrays_of(self._features, rows[order], length=self.length)
        if "text_ids" in self._fields:
            texts = batch["text_positions"].shape[1]
            ids, weights_R = text_ids(batch, texts=texts), batch["weights"]
            batch |= {"text_ids": ids, "weights": weights_R[:, None]}
        elif "text_positions" in self._fields:
            batch["text_positions"] = np.zeros(len(rows), np.int32)
            batch |= {name: batch[name][:, None] for name in self._fields.keys() - INPUTS.keys()}
        packed = place(
            [(np.arange(len(rows)), batch)],
            counts,
            fields=self._fields,
            pad=0,
            sequence_length=self.length,
            max_sequences=self.slots,
        )
        count = min(-(-len(counts) // self._step) * self._step, self._size)
        empty = ((0, count - len(counts)), (0, 0))
        return {name: np.pad(array, empty) for name, array in packed.items()}


def first_fit(lengths: np.ndarray, *, length: int, slots: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns B examples in the order of their rows, int64 `[B]`, and the number in each row.

    First-fit decreasing: the longest example first, each into the first row with enough space, at
    most 11/9 of the minimum plus 6/9 of a row (Dosa 2007), unless the limit of `slots` examples per
    row binds. `lengths` are at most `length`. (Pre-training's `best_fit` scales to millions.)
    """
    rows: list[list[int]] = []
    rooms: list[int] = []
    for example in np.argsort(-lengths, kind="stable").tolist():
        needed = int(lengths[example])
        fitting = (r for r, room in enumerate(rooms) if needed <= room and len(rows[r]) < slots)
        row = next(fitting, len(rows))
        if row == len(rows):
            rows.append([])
            rooms.append(length)
        rows[row].append(example)
        rooms[row] -= needed
    return np.concatenate(rows), np.array([len(row) for row in rows])
