"""Rows as spans of a corpus: the plan, and the reading of it, that kinds of rows share.

A plan touches no token: since the sentences of a document lie one after the other in the token
store, what a row takes of it is a span, or several.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np

from bert_jax.data.corpus.store import Split
from bert_jax.data.tokenizer.tokenizer import Vocabulary
from bert_jax.errors import UsageError

# Sentences that are looked at together, which bounds the temporaries.
_BLOCK = 1 << 20


@dataclass(frozen=True)
class SpanPlan:
    """R rows of S spans of the split's global token index.

    Row r is [CLS] and its spans, `bounds[r]` to `bounds[r + 1]`, with [SEP] after each that
    `is_last` of its segment. The spans of all rows lie one after the other.
    """

    bounds: np.ndarray  # int64 [R + 1]; a row has one span at least
    start: np.ndarray  # int64 [S]
    length: np.ndarray  # int32 [S], at least 1
    segment: np.ndarray  # uint8 [S], the token type
    is_last: np.ndarray  # bool [S]
    # What else an objective reads of each row: arrays [R], such as `is_random` of sentence pairs.
    labels: Mapping[str, np.ndarray] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        row: np.ndarray,
        start: np.ndarray,
        length: np.ndarray,
        segment: np.ndarray,
        is_last: np.ndarray,
    ) -> Self:
        """Returns the plan of spans, each of which is in `row`: 0, 1, ..., ascending, none left
        out.
        """
        bounds = _bounds(np.bincount(row))
        return cls(bounds, start, length.astype(np.int32), segment.astype(np.uint8), is_last)

    def __len__(self) -> int:
        return self.bounds.size - 1

    @property
    def lengths(self) -> np.ndarray:
        """The tokens of each row, special ones included: int64 `[R]`."""
        return 1 + np.add.reduceat(self.length + self.is_last, self.bounds[:-1], dtype=np.int64)

    def take(self, index: np.ndarray) -> Self:
        count = self.bounds[index + 1] - self.bounds[index]
        spans = ranges(self.bounds[index], count)
        return type(self)(
            _bounds(count),
            self.start[spans],
            self.length[spans],
            self.segment[spans],
            self.is_last[spans],
            {name: array[index] for name, array in self.labels.items()},
        )

    @classmethod
    def join(cls, plans: Sequence[Self]) -> Self:
        labels = {name: [plan.labels[name] for plan in plans] for name in plans[0].labels}
        return cls(
            _bounds(np.concatenate([np.diff(plan.bounds) for plan in plans])),
            np.concatenate([plan.start for plan in plans]),
            np.concatenate([plan.length for plan in plans]),
            np.concatenate([plan.segment for plan in plans]),
            np.concatenate([plan.is_last for plan in plans]),
            {name: np.concatenate(parts) for name, parts in labels.items()},
        )


def _bounds(count: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(count, dtype=np.int64)])


class SpanRows:
    """The base of the entries of `registry.SEQUENCE_FORMATS`; each plans its rows."""

    num_special: int
    # How many texts an example has, each with its own positions and `sequence_ids`.
    texts = 1

    def check(self, split: Split, *, sequence_length: int) -> None:
        """Raises `UsageError` if the length allows no rows. Any split has some."""
        if sequence_length <= self.num_special:
            raise UsageError(f"sequence_length {sequence_length} has no room for a token")

    def read(
        self, split: Split, plan: SpanPlan, *, vocabulary: Vocabulary, sequence_length: int
    ) -> dict[str, np.ndarray]:
        """Returns the four `[R, L]` int32 inputs of a batch, padded; `lengths` int64 `[R]`; and the
        labels of the plan.
        """
        rows = len(plan)
        size = plan.length.astype(np.int64) + plan.is_last
        begin = np.cumsum(size) - size
        row = np.repeat(np.arange(rows), np.diff(plan.bounds))
        target = begin - begin[plan.bounds[:-1]][row] + 1 + row * sequence_length
        column, lengths = np.arange(sequence_length), plan.lengths

        input_ids = np.full((rows, sequence_length), vocabulary.special.pad, np.int32)
        input_ids[:, 0] = vocabulary.special.cls
        flat = input_ids.reshape(-1)
        flat[(target + plan.length)[plan.is_last]] = vocabulary.special.sep
        copy_spans(split, start=plan.start, length=plan.length, target=target, out=flat)
        # The type rises by its segment where a span begins, and falls after it.
        change = np.zeros(rows * sequence_length + 1, np.int32)
        segment = plan.segment.astype(np.int32)
        change[target] += segment
        change[target + size] -= segment
        return {
            "input_ids": input_ids,
            "token_type_ids": np.cumsum(change[:-1], dtype=np.int32).reshape(rows, -1),
            "position_ids": np.tile(column.astype(np.int32), (rows, 1)),
            "sequence_ids": (column < lengths[:, None]).astype(np.int32),
            "lengths": lengths,
            **plan.labels,
        }


def copy_spans(
    split: Split, *, start: np.ndarray, length: np.ndarray, target: np.ndarray, out: np.ndarray
) -> None:
    """Sets `out[target : target + length] = tokens[start : start + length]`, for all spans at
    once.
    """
    shard = np.searchsorted(split.shard_starts, start, side="right") - 1
    order = np.argsort(shard, kind="stable")
    shard, start, length, target = (x[order] for x in (shard, start, length, target))
    span_end = np.cumsum(length)
    span_begin = span_end - length
    each = np.arange(span_end[-1])
    source = each + np.repeat(start - split.shard_starts[shard] - span_begin, length)
    tokens = np.empty(each.size, split.shards[0].dtype)
    # Spans of one shard are neighbours now: one gather for each shard.
    bounds = np.append(np.flatnonzero(np.diff(shard, prepend=-1)), shard.size)
    for first, last in itertools.pairwise(bounds):
        part = slice(span_begin[first], span_end[last - 1])
        # All indices are inside; "clip" spares NumPy a second buffer.
        split.shards[shard[first]].take(source[part], out=tokens[part], mode="clip")
    out[each + np.repeat(target - span_begin, length)] = tokens


def ranges(start: np.ndarray, length: np.ndarray) -> np.ndarray:
    """Returns `start, ..., start + length - 1` of each pair, one after the other: int64."""
    end = np.cumsum(length, dtype=np.int64)
    return np.arange(length.sum(dtype=np.int64)) + np.repeat(start - (end - length), length)


def chain(size: int, ends: Callable[[int, int], np.ndarray]) -> np.ndarray:
    """Returns where rows begin among `size` sentences: int64 `[R]`.

    Row after row is gathered from the first sentence on. `ends(begin, end)` says for each sentence
    of `[begin, end)` where a row ends that begins there, int64: all at once, since a step of this
    walk is then one look-up.
    """
    begins, at = [], 0
    while at < size:
        base, stop = at, min(at + _BLOCK, size)
        end_of = ends(base, stop).data
        found = []
        while at < stop:
            found.append(at)
            at = end_of[at - base]
        begins.append(np.array(found, np.int64))
    return np.concatenate(begins)
