"""Rows of one or two consecutive segments, as in ELECTRA's pre-training.

The semantics are those of `ExampleBuilder` in google-research/electra
(build_pretraining_dataset.py): sentences are gathered up to a target length and assigned to two
segments. A short sentence joins the first segment if it fits, even after a longer sentence joined
the second, so that the segments need not be contiguous halves of the text. The draws of a row use
the number of its first sentence.
"""

import numpy as np

from bert_jax.config import DataConfig
from bert_jax.data import counter_rng
from bert_jax.data.corpus.store import Split
from bert_jax.data.pretraining.spans import SpanPlan, SpanRows, chain

# [CLS] a [SEP] b [SEP]; the second [SEP] only if b is not empty
_NUM_SPECIAL = 3
_ONE_SEGMENT_PROB, _SHORT_PROB, _LEAST_TARGET = 0.1, 0.05, 5
# The target length of the first segment in rows with one segment.
_ALL = 100_000


class _Draw:
    """The purpose of a random number: the last counter of its key."""

    IS_SHORT, TARGET, IS_ONE_SEGMENT, GOES_OVER = range(4)


class ElectraSegments(SpanRows):
    """The rows `electra_segments`: `[CLS] a [SEP] b [SEP]`; one row in ten is `[CLS] a [SEP]`."""

    num_special = _NUM_SPECIAL

    def plan(
        self, split: Split, *, options: DataConfig, sequence_length: int, key: int
    ) -> SpanPlan:
        """Returns the rows of one epoch. Another `key` gives another epoch."""
        starts, documents = split.starts()
        sentences = starts.size - 1

        def ends(begin: int, end: int) -> np.ndarray:
            sentence = np.arange(begin, end)
            target = _targets(counter_rng.bits(key, sentence), sequence_length)
            reached = np.searchsorted(starts, starts[sentence] + target)
            its_end = documents[np.searchsorted(documents, sentence, side="right")]
            return np.minimum(reached, its_end)

        begin = chain(sentences, ends)
        is_second = _deal(starts, begin, counter_rng.bits(key, begin), sequence_length)
        return _spans(starts, begin, is_second, sequence_length)


def _targets(keys: np.ndarray, sequence_length: int) -> np.ndarray:
    """Returns the target length of the row of each key, in tokens without special tokens."""
    is_short = counter_rng.uniform(counter_rng.bits(keys, _Draw.IS_SHORT)) < _SHORT_PROB
    choices = sequence_length - _LEAST_TARGET + 1
    short = _LEAST_TARGET + counter_rng.randint(counter_rng.bits(keys, _Draw.TARGET), choices)
    return np.where(is_short, short, sequence_length)


def _deal(
    starts: np.ndarray, begin: np.ndarray, keys: np.ndarray, sequence_length: int
) -> np.ndarray:
    """Returns which sentences belong to the second segment of their row: bool, one per sentence.

    The loop handles all rows at once, one sentence of each row per iteration.
    """
    is_one = counter_rng.uniform(counter_rng.bits(keys, _Draw.IS_ONE_SEGMENT)) < _ONE_SEGMENT_PROB
    goal = np.where(is_one, _ALL, (_targets(keys, sequence_length) - 3) // 2)
    # One coin per row is enough: heads means that the first segment is full, tails that a second
    # segment begins.
    goes_over = counter_rng.uniform(counter_rng.bits(keys, _Draw.GOES_OVER)) < 0.5
    first_length = starts[begin + 1] - starts[begin]
    has_second = np.zeros(begin.size, bool)
    is_second = np.zeros(starts.size - 1, bool)
    at, end = begin, np.append(begin[1:], starts.size - 1)
    while True:
        at = at + 1
        left = at < end
        if not left.any():
            return is_second
        at, end, goal, goes_over, first_length, has_second = (
            x[left] for x in (at, end, goal, goes_over, first_length, has_second)
        )
        length = starts[at + 1] - starts[at]
        is_first = first_length + length < goal
        is_first |= ~has_second & (first_length < goal) & goes_over
        first_length = first_length + is_first * length
        has_second = has_second | ~is_first
        is_second[at] = ~is_first


def _spans(
    starts: np.ndarray, begin: np.ndarray, is_second: np.ndarray, sequence_length: int
) -> SpanPlan:
    """Returns the plan of the rows' segments, each truncated at its end to the available length."""
    is_new = np.diff(is_second, prepend=False)
    is_new[begin] = True
    (at,) = np.nonzero(is_new)
    row = np.searchsorted(begin, at, side="right") - 1
    segment = 2 * row + is_second[at]  # the segments of all rows, numbered
    start, length = starts[at], np.diff(starts[at], append=starts[-1])
    order = np.argsort(segment, kind="stable")
    row, segment, start, length = (x[order] for x in (row, segment, start, length))

    total = np.bincount(segment, length, minlength=2 * begin.size).astype(np.int64)
    most_a = np.minimum(total[::2], sequence_length - 2)
    most_b = np.maximum(0, sequence_length - most_a - _NUM_SPECIAL)
    most = np.stack([most_a, most_b], axis=1).reshape(-1)
    before = np.cumsum(length) - length
    before -= before[np.searchsorted(segment, segment)]  # within the segment
    length = np.clip(most[segment] - before, 0, length)

    left = length > 0
    row, segment, start, length = (x[left] for x in (row, segment, start, length))
    is_last = np.diff(segment, append=-1) != 0
    return SpanPlan.of(row, start, length, segment % 2, is_last)


ELECTRA_SEGMENTS = ElectraSegments()
