"""Packs several sequences into one row: chooses the examples of each row, and places them.

An example is masked first, as a separate row, and then placed. A packed batch is therefore an exact
rearrangement of unpacked rows, and its position in a batch does not change what is learned from an
example: a token only attends to its own sequence (`sequence_ids`), and positions restart with each
sequence (Krell et al. 2021, "Efficient Sequence Packing without Cross-contamination").

Dims: S sequences, R rows, L row length, M predictions per row at most, P sequences per row at most.
"""

import bisect
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from bert_jax.data.pretraining.batch import Batch, Field
from bert_jax.data.pretraining.spans import ranges
from bert_jax.errors import UsageError


class Fill(NamedTuple):
    """The mean contents of the packed rows of an epoch."""

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
        """Returns the concatenated examples of some rows, and the number of examples of each."""
        counts = self.starts[rows + 1] - self.starts[rows]
        return self.examples[ranges(self.starts[rows], counts)], counts


def best_fit(lengths: np.ndarray, *, length: int, most: int) -> Packing:
    """Returns rows of at most `length` tokens and `most` sequences, for sequences of `lengths`.

    Best-fit decreasing: the longest sequence first, each into the fullest row with enough space.
    Identical rows are filled together, so that millions of sequences take about a second (Krell et
    al. 2021 also count lengths). `lengths` `[S]` are from 1 to `length`.
    """
    counts = np.bincount(lengths, minlength=length + 1)
    # Examples of equal length are adjacent, in their original order; `ends` marks the end of the
    # examples that are left.
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
    """Returns every kind of row: the lengths in a row, and the number of rows with these lengths.

    `counts[n]` is the number of sequences of length n.
    """
    done: list[tuple[tuple[int, ...], int]] = []
    # Free space -> kinds of rows with this free space that can take more sequences; and all such
    # amounts of free space, ascending.
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
            # A row that has just taken a sequence is the fullest one and also takes the next one.
            copies = min(room // size, most - len(members), left)
            used = min(rows, left // copies)
            if members and rows > used:
                put(members, rows - used, room)
            put(members + (size,) * copies, used, room - size * copies)
            left -= used * copies
    return done + [kind for kinds in of_room.values() for kind in kinds]


# Sequences of at most this length are masked together, then those up to twice this length, etc.
_SHORT = 128


def by_width(lengths: np.ndarray, *, sequence_length: int) -> list[tuple[np.ndarray, int]]:
    """Groups sequences by table width: returns the sequences, ascending, and the columns of each.

    A row of 8,192 tokens may hold thirty documents: in a table with 8,192 columns per document,
    nearly everything would be padding.
    """
    widths = [_SHORT]
    while widths[-1] < sequence_length:
        widths.append(min(2 * widths[-1], sequence_length))
    kinds = np.searchsorted(widths, lengths)
    return [(np.flatnonzero(kinds == kind), widths[kind]) for kind in np.unique(kinds)]


def place(
    parts: Sequence[tuple[np.ndarray, Batch]],
    counts: np.ndarray,
    *,
    fields: Mapping[str, Field],
    pad: int,
    sequence_length: int,
    max_sequences: int,
    max_predictions: int = 0,
) -> Batch:
    """Returns a batch of R rows; row r holds the next `counts[r]` sequences.

    Each of `parts` contains the numbers of some of the S sequences, ascending, and a batch with one
    sequence per row. Columns of tokens are concatenated sequence by sequence; so are predictions
    with nonzero weights; arrays with one value per sequence have one column per sequence.
    Arrays with names that end with `_positions` are shifted with their sequence. `input_ids` are
    padded with `pad`, all other arrays with 0.

    Raises UsageError if the sequences do not fit.
    """
    of_examples = {f.size: f.of_an_example for f in fields.values() if f.size.endswith("P")}
    of_examples = {"P": 1} | of_examples
    rooms = {"L": sequence_length}
    rooms |= {size: columns * max_sequences for size, columns in of_examples.items()}
    # An example has as many sequences as the array with the most columns per example.
    sequences = max(of_examples, key=lambda size: of_examples[size])
    if "mlm_weights" in parts[0][1]:
        rooms["M"] = max_predictions
    slots = {size: _slots(size, room, parts, counts) for size, room in rooms.items()}
    packed = {}
    for name, field in fields.items():
        if field.size not in slots:
            raise UsageError(f"the array {name!r} of the objective has size {field.size}, which "
                             "cannot be packed; set data.packing to none")  # fmt: skip
        room, slot = rooms[field.size], slots[field.size]
        if slot.most > room:
            raise UsageError(f"a packed row needs {slot.most} columns of {name!r} but has "
                             f"{room} (data.packing)")  # fmt: skip
        added = None
        if name == "sequence_ids":
            added = slots[sequences].begin
        elif name.endswith("_positions"):
            added = slots["L"].begin
        filled = pad if name == "input_ids" else 0
        out = np.full((len(counts), room), filled, parts[0][1][name].dtype)
        for (chosen, batch), moved in zip(parts, slot.moved, strict=True):
            values = batch[name].reshape(-1)[moved.source]
            if added is not None:
                values += np.repeat(added[chosen].astype(values.dtype), moved.columns)
            out.reshape(-1)[moved.target] = values
        packed[name] = out
    return packed


class _Moved(NamedTuple):
    """V values of a part with S sequences: the leftmost values of each row."""

    columns: np.ndarray  # int64 [S], number of values of each row
    source: np.ndarray  # int64 [V], index in the part's array
    target: np.ndarray  # int64 [V], index in the packed array


class _Slots(NamedTuple):
    """The target positions of all columns of one size."""

    moved: list[_Moved]  # one per part
    begin: np.ndarray  # int64 [S], the first target column of each sequence
    most: int  # the largest number of filled columns in a row


def _slots(
    size: str, room: int, parts: Sequence[tuple[np.ndarray, Batch]], counts: np.ndarray
) -> _Slots:
    if size == "L":
        tables = [batch["sequence_ids"] for _, batch in parts]
    elif size == "M":
        tables = [batch["mlm_weights"] for _, batch in parts]
    else:
        of_an_example = Field(size, bool).of_an_example
        tables = [np.ones((chosen.size, of_an_example), bool) for chosen, _ in parts]
    each = [np.count_nonzero(table, axis=1) for table in tables]
    columns = np.zeros(counts.sum(), np.int64)
    for (chosen, _), count in zip(parts, each, strict=True):
        columns[chosen] = count
    first = np.cumsum(counts) - counts
    before = np.cumsum(columns) - columns
    begin = before - np.repeat(before[first], counts)
    target = begin + np.repeat(room * np.arange(counts.size), counts)
    moved = [
        _Moved(
            count,
            source=ranges(table.shape[1] * np.arange(count.size), count),
            target=ranges(target[chosen], count),
        )
        for (chosen, _), table, count in zip(parts, tables, each, strict=True)
    ]
    return _Slots(
        moved,
        begin=begin,
        most=int(np.add.reduceat(columns, first).max()),
    )
