"""Several sequences in one row: which of an epoch's examples share one, and how they are placed.

An example is masked first, alone in a row of its own, and then placed. So a packed batch is a
rearrangement of unpacked rows, bit for bit, and where an example lands changes nothing that is
learned from it: a token sees its own sequence only (`sequence_ids`), and positions begin anew with
each (Krell et al. 2021, "Efficient Sequence Packing without Cross-contamination").

Dims: S sequences, R rows, L row length, M predictions that a row has room for, P sequences that it
has room for.
"""

import bisect
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from bert_jax.data.pretraining.batch import Batch, Field
from bert_jax.errors import UsageError


class Fill(NamedTuple):
    """The contents of a packed row, on average over an epoch."""

    sequences: float
    tokens: float


@dataclass(frozen=True)
class Packing:
    """The packed rows of one epoch. Row r holds `examples[starts[r] : starts[r + 1]]`, in this
    order.
    """

    examples: np.ndarray  # int32 [S], each of 0 to S - 1 once
    starts: np.ndarray  # int64 [R + 1]

    def __len__(self) -> int:
        return self.starts.size - 1

    def take(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the examples of some rows, one row after the other, and how many each has."""
        counts = self.starts[rows + 1] - self.starts[rows]
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        return self.examples[np.repeat(self.starts[rows], counts) + within], counts


def best_fit(lengths: np.ndarray, *, length: int, most: int) -> Packing:
    """Returns rows of at most `length` tokens and `most` sequences, for sequences of `lengths`.

    The longest first, each into the fullest row that has room for it. Rows that are alike are
    filled together, which makes it a matter of a second for millions of sequences (Krell et al.
    2021 count lengths in the same way). `lengths` `[S]` are from 1 to `length`.
    """
    counts = np.bincount(lengths, minlength=length + 1)
    # Examples of one length are neighbours, in their own order; `ends` is where those that are left
    # over end.
    order = np.argsort(lengths.astype(np.min_scalar_type(length)), kind="stable").astype(np.int32)
    ends = np.cumsum(counts)
    kinds = _kinds_of_rows(counts, length=length, most=most)
    examples, sizes = np.empty(lengths.size, np.int32), []
    filled = 0
    for members, rows in kinds:
        block = examples[filled : filled + rows * len(members)].reshape(rows, len(members))
        for column, member in enumerate(members):
            block[:, column] = order[ends[member] - rows : ends[member]]
            ends[member] -= rows
        filled += block.size
        sizes.append((len(members), rows))
    each, rows = np.array(sizes, np.int64).reshape(-1, 2).T
    return Packing(examples, np.append(0, np.cumsum(np.repeat(each, rows))))


def _kinds_of_rows(
    counts: np.ndarray, *, length: int, most: int
) -> list[tuple[tuple[int, ...], int]]:
    """Returns the lengths in a row, and how many rows have just these, for all kinds of rows.

    `counts[n]` sequences have length n.
    """
    done: list[tuple[tuple[int, ...], int]] = []
    # Room that is left -> kinds of rows that have just that and may take more; and all such rooms,
    # ascending.
    of_room: defaultdict[int, list[tuple[tuple[int, ...], int]]] = defaultdict(list)
    rooms: list[int] = []

    def put(members: tuple[int, ...], rows: int, room: int) -> None:
        if not room or len(members) == most:
            done.append((members, rows))
            return
        if not of_room[room]:
            bisect.insort(rooms, room)
        of_room[room].append((members, rows))

    for size in np.flatnonzero(counts)[::-1].tolist():
        left = int(counts[size])
        while left:
            members, rows, room = (), left, length  # new rows
            place = bisect.bisect_left(rooms, size)
            if place < len(rooms):
                room = rooms[place]
                members, rows = of_room[room].pop()
                if not of_room[room]:
                    rooms.pop(place)
            # A row that has taken one is the fullest now, and takes the next one, too.
            copies = min(room // size, most - len(members), left)
            used = min(rows, left // copies)
            if members and rows > used:
                put(members, rows - used, room)
            put(members + (size,) * copies, used, room - size * copies)
            left -= used * copies
    return done + [kind for kinds in of_room.values() for kind in kinds]


def place(
    batch: Batch,
    counts: np.ndarray,
    *,
    fields: Mapping[str, Field],
    pad: int,
    sequence_length: int,
    max_sequences: int,
    max_predictions: int = 0,
) -> Batch:
    """Returns a batch of R rows, of which row r holds the next `counts[r]` sequences of `batch`.

    `batch` has a sequence in each of its S rows. Columns of its tokens come one sequence after the
    other, and its predictions, as far as they have weights, in the same order; what there is of a
    sequence once has a column for each. Arrays whose names end with `_positions` go along with
    their sequence. `input_ids` are filled up with `pad`, all else with 0.

    Raises UsageError if the sequences do not fit.
    """
    lengths = np.count_nonzero(batch["sequence_ids"], axis=1)
    first = np.cumsum(counts) - counts
    slot = np.arange(lengths.size) - np.repeat(first, counts)
    before = np.cumsum(lengths) - lengths
    start = (before - np.repeat(before[first], counts)).astype(np.int32)

    # What of each row of `batch` is moved, by the size of an array; it is as many columns of a row
    # from the left, in the same order.
    is_moved = {
        "L": batch["sequence_ids"] != 0,
        "P": np.ones((lengths.size, 1), bool),
    }
    if "mlm_weights" in batch:
        is_moved["M"] = batch["mlm_weights"] != 0
    sizes = {
        "sequence_length": sequence_length,
        "max_predictions": max_predictions,
        "max_sequences": max_sequences,
    }
    is_filled = {}
    for name, field in fields.items():
        if field.size not in is_moved:
            raise UsageError(f"the array {name!r} of the objective, of size {field.size}, cannot "
                             "be packed (data.packing)")  # fmt: skip
        if field.size not in is_filled:
            room = field.columns(**sizes)
            used = np.add.reduceat(is_moved[field.size].sum(1), first)
            if used.max() > room:
                raise UsageError(f"a packed row has {used.max()} columns of {name!r} and room for "
                                 f"{room} (data.packing)")  # fmt: skip
            is_filled[field.size] = np.arange(room) < used[:, None]

    packed = {}
    for name, field in fields.items():
        array = batch[name]
        if name == "sequence_ids":
            array = array + slot[:, None].astype(array.dtype)
        elif name.endswith("_positions"):
            array = array + start[:, None]
        filled = is_filled[field.size]
        packed[name] = np.full(filled.shape, pad if name == "input_ids" else 0, array.dtype)
        packed[name][filled] = array[is_moved[field.size]]
    return packed
