"""Rows as spans of a corpus: the plan and its reader, which all kinds of rows share.

A plan contains no tokens: the sentences of a document are adjacent in the token store, so that the
text of a row is one span or several.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np

from bert_jax.data.corpus.store import Split
from bert_jax.data.tokenizer.tokenizer import Vocabulary
from bert_jax.errors import UsageError

# Sentences that are processed together, which limits the temporaries.
_BLOCK = 1 << 20


@dataclass(frozen=True)
class SpanPlan:
    """R rows of S spans of the split's global token index.

    Row r consists of [CLS] and its spans, `bounds[r]` to `bounds[r + 1]`, with [SEP] after each
    span that `is_last` of its segment. The spans of all rows are concatenated.
    """

    bounds: np.ndarray  # int64 [R + 1]; a row has at least one span
    start: np.ndarray  # int64 [S]
    length: np.ndarray  # int32 [S], at least 1
    segment: np.ndarray  # uint8 [S], the token type
    is_last: np.ndarray  # bool [S]
    # Further inputs of an objective per row: arrays [R], such as `is_random` of sentence pairs.
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
        """Returns the plan of spans. `row` is the row of each span: ascending from 0, without
        gaps.
        """
        bounds = _bounds(np.bincount(row))
        return cls(bounds, start, length.astype(np.int32), segment.astype(np.uint8), is_last)

    def __len__(self) -> int:
        return self.bounds.size - 1

    @property
    def lengths(self) -> np.ndarray:
        """The tokens of each row, including special tokens: int64 `[R]`."""
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
    """The base class of the entries of `registry.SEQUENCE_FORMATS`; subclasses plan their rows."""

    num_special: int
    # The number of texts per example, each with separate positions and `sequence_ids`.
    texts = 1

    def check(self, split: Split, *, sequence_length: int) -> None:
        """Raises `UsageError` if the length allows no rows. The split does not matter."""
        if sequence_length <= self.num_special:
            raise UsageError(f"sequence_length {sequence_length} is too short for a token")

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
        # The type increases by the segment where a span begins, and decreases after it.
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
    # Spans of one shard are now adjacent: one gather per shard.
    bounds = np.append(np.flatnonzero(np.diff(shard, prepend=-1)), shard.size)
    for first, last in itertools.pairwise(bounds):
        part = slice(span_begin[first], span_end[last - 1])
        # All indices are in range; "clip" avoids a second buffer in NumPy.
        split.shards[shard[first]].take(source[part], out=tokens[part], mode="clip")
    out[each + np.repeat(target - span_begin, length)] = tokens


def ranges(start: np.ndarray, length: np.ndarray) -> np.ndarray:
    """Returns the concatenated ranges `start, ..., start + length - 1` of all pairs: int64."""
    end = np.cumsum(length, dtype=np.int64)
    return np.arange(length.sum(dtype=np.int64)) + np.repeat(start - (end - length), length)


def chain(size: int, ends: Callable[[int, int], np.ndarray]) -> np.ndarray:
    """Returns the first sentences of the rows among `size` sentences: int64 `[R]`.

    Rows are gathered one after the other from the first sentence. `ends(begin, end)` returns, for
    each sentence in `[begin, end)`, the end of a row that begins with it: int64. Computing all ends
    at once makes each step of the walk a single lookup.
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
