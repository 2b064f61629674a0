"""Sentence pairs as index arithmetic: one epoch's examples of a corpus, as arrays of token spans.

The semantics are those of `create_instances_from_document` in google-research/bert
(create_pretraining_data.py), including the reuse of sentences that a random segment displaced. The
original reads one document sentence by sentence. Here vectors hold all documents, one lane per
document, and tokens are not read: the sentences of a document are adjacent in the token store, so
that both segments of a pair are spans, and truncation moves their ends.
"""

import dataclasses
from typing import NamedTuple

import numpy as np

from bert_jax.config import DataConfig
from bert_jax.data import counter_rng
from bert_jax.data.corpus.store import Split
from bert_jax.data.pretraining.spans import SpanPlan, SpanRows
from bert_jax.errors import UsageError

# A longer document is walked in pieces, which limits the walk to 1,024 steps for any corpus.
_MAX_LANE_SENTENCES = 1024
# Examples per block, so that temporaries stay in the processor's cache.
_BLOCK = 1 << 15


class _Draw:
    """The purpose of a random number: the last counter of its key."""

    IS_SHORT, SHORT_LENGTH, A_END, IS_RANDOM, OTHER_DOCUMENT, OTHER_START, A_FRONT, B_FRONT = range(
        8
    )


class _Lanes(NamedTuple):
    """The pieces of documents that are walked in parallel, in the order of the corpus."""

    document: np.ndarray
    begin: np.ndarray  # global sentence index of the first sentence
    end: np.ndarray
    target: np.ndarray  # target length of a pair, in tokens
    key: np.ndarray  # uint64


class _Chunks(NamedTuple):
    """Runs of sentences `[first, last)`, sorted by (lane, turn); segment a ends before `middle`.

    Sentence numbers count from the beginning of the lane, so that they fit in two bytes.
    """

    lane: np.ndarray
    turn: np.ndarray
    first: np.ndarray
    middle: np.ndarray
    last: np.ndarray
    is_random: np.ndarray


def _lanes(split: Split, options: DataConfig, max_tokens: int, key: int) -> _Lanes:
    sentences = np.diff(split.document_starts)
    pieces = -(-sentences // _MAX_LANE_SENTENCES)
    document = np.repeat(np.arange(sentences.size), pieces)
    piece = np.arange(document.size) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    # Pieces of equal size avoid a last piece of one or two sentences.
    begin = split.document_starts[document] + piece * sentences[document] // pieces[document]
    end = np.append(begin[1:], split.document_starts[-1])
    keys = counter_rng.bits(key, np.arange(document.size))
    is_short = counter_rng.uniform(counter_rng.bits(keys, _Draw.IS_SHORT)) < options.short_seq_prob
    short = 2 + counter_rng.randint(counter_rng.bits(keys, _Draw.SHORT_LENGTH), max_tokens - 1)
    return _Lanes(document, begin, end, np.where(is_short, short, max_tokens), keys)


def _walk(sentence_starts: np.ndarray, lanes: _Lanes, random_next_prob: float) -> _Chunks:
    """Splits every lane into chunks: each iteration takes one chunk from each remaining lane."""
    lane = np.arange(lanes.begin.size, dtype=np.int32)
    at, end, target, key = lanes.begin, lanes.end, lanes.target, lanes.key
    chunks_of_lane = np.zeros(lane.size, np.int64)
    turns: list[tuple[np.ndarray, ...]] = []
    while lane.size:
        last = np.searchsorted(sentence_starts, sentence_starts[at] + target)
        np.minimum(last, end, out=last)
        count = last - at
        draw = counter_rng.bits(key, len(turns))
        middle = at + 1 + counter_rng.randint(counter_rng.bits(draw, _Draw.A_END), count - 1)
        is_random = counter_rng.uniform(counter_rng.bits(draw, _Draw.IS_RANDOM)) < random_next_prob
        is_random |= count == 1
        begin = lanes.begin[lane]
        within = ((x - begin).astype(np.uint16) for x in (at, middle, last))
        turns.append((lane, *within, is_random))
        chunks_of_lane[lane] += 1
        # Sentences that a random second segment displaces are put back.
        at = np.where(is_random, middle, last)
        left = at < end
        if not left.all():
            lane, at, end, target, key = (x[left] for x in (lane, at, end, target, key))
    return _in_order(turns, chunks_of_lane)


def _in_order(turns: list[tuple[np.ndarray, ...]], chunks_of_lane: np.ndarray) -> _Chunks:
    """Sorts chunks from the order of their creation, (turn, lane), to (lane, turn)."""
    size = int(chunks_of_lane.sum())
    first_of_lane = np.cumsum(chunks_of_lane) - chunks_of_lane
    dtypes = (np.int32, np.uint16, np.uint16, np.uint16, np.uint16, np.bool_)
    chunks = _Chunks(*(np.empty(size, dtype) for dtype in dtypes))
    for turn, (lane, *values) in enumerate(turns):
        index = first_of_lane[lane] + turn
        for array, value in zip(chunks, (lane, turn, *values), strict=True):
            array[index] = value
    return chunks


def _pairs(
    split: Split, lanes: _Lanes, chunks: _Chunks, max_tokens: int
) -> tuple[np.ndarray, np.ndarray]:
    """Chooses second segments, and truncates pairs to `max_tokens`.

    Returns the first token and the length of both segments: two int64 arrays `[R, 2]`.
    """
    starts = split.sentence_starts
    lane = chunks.lane
    begin = lanes.begin[lane]
    keys = counter_rng.bits(lanes.key[lane], chunks.turn)
    a_start = starts[begin + chunks.first]
    b_start = starts[begin + chunks.middle]
    b_end = starts[begin + chunks.last]
    a_length = b_start - a_start

    (row,) = np.nonzero(chunks.is_random)
    first, last = _other_spans(
        split,
        document=lanes.document[lane[row]],
        target=lanes.target[lane[row]] - a_length[row],
        keys=keys[row],
    )
    b_start[row], b_end[row] = starts[first], starts[last]
    b_length = b_end - b_start

    # Tokens are dropped one by one from the longer segment, from b if both are equal. The length
    # difference is therefore dropped first, then tokens are dropped alternately, beginning with b.
    excess = np.maximum(a_length + b_length - max_tokens, 0)
    longer = a_length - b_length
    from_a = np.minimum(excess, np.maximum(longer, 0))
    from_b = np.minimum(excess, np.maximum(-longer, 0))
    shared = excess - from_a - from_b
    from_a += shared // 2
    from_b += shared - shared // 2
    # Each dropped token is the first or the last of its segment, with equal chances.
    a_start += counter_rng.binomial_half(from_a, counter_rng.bits(keys, _Draw.A_FRONT))
    b_start += counter_rng.binomial_half(from_b, counter_rng.bits(keys, _Draw.B_FRONT))
    return np.stack([a_start, b_start], 1), np.stack([a_length - from_a, b_length - from_b], 1)


def _other_spans(
    split: Split, *, document: np.ndarray, target: np.ndarray, keys: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Returns sentences `[first, last)` of another document: up to `target` tokens, or to the end
    of the document.
    """
    other = counter_rng.randint(
        counter_rng.bits(keys, _Draw.OTHER_DOCUMENT), split.document_starts.size - 2
    )
    other += other >= document  # uniform over every document but `document`
    begin, end = split.document_starts[other], split.document_starts[other + 1]
    first = begin + counter_rng.randint(counter_rng.bits(keys, _Draw.OTHER_START), end - begin)
    # If segment a reaches the target without b, b still gets one sentence.
    wanted = split.sentence_starts[first] + np.maximum(target, 1)
    last = np.searchsorted(split.sentence_starts, wanted)
    return first, np.minimum(last, end)


class SentencePairs(SpanRows):
    """The rows `sentence_pairs`: `[CLS] a [SEP] b [SEP]`, where b follows a or does not."""

    num_special = 3

    def check(self, split: Split, *, sequence_length: int) -> None:
        """Raises `UsageError` if the split or the length allow no pairs."""
        documents = split.document_starts.size - 1
        if documents < 2:
            raise UsageError(
                f"the {split.name} split of the corpus has {documents} document(s), but half of "
                "the pairs take a segment from another document: prepare a corpus with more "
                "documents (in text files a blank line ends a document)"
            )
        if sequence_length - self.num_special < 2:
            raise UsageError(
                f"sequence_length {sequence_length} is too short for a pair of segments"
            )

    def plan(
        self, split: Split, *, options: DataConfig, sequence_length: int, key: int
    ) -> SpanPlan:
        """Returns all sentence pairs of one pass over `split`, in the order of the corpus.

        A pair and its three special tokens fit in `sequence_length`. Another `key` gives another
        epoch. The split needs at least two documents. The label `is_random` is true if segment b
        comes from another document than segment a, and false if b follows a.
        """
        max_tokens = sequence_length - self.num_special
        sentences, documents = split.starts()
        split = dataclasses.replace(split, sentence_starts=sentences, document_starts=documents)
        lanes = _lanes(split, options, max_tokens, key)
        chunks = _walk(sentences, lanes, options.random_next_prob)
        pairs = chunks.lane.size
        start, length = np.empty((pairs, 2), np.int64), np.empty((pairs, 2), np.int32)
        for begin in range(0, pairs, _BLOCK):
            block = slice(begin, begin + _BLOCK)
            part = _Chunks(*(array[block] for array in chunks))
            start[block], length[block] = _pairs(split, lanes, part, max_tokens)
        return SpanPlan(
            bounds=np.arange(0, 2 * pairs + 1, 2),
            start=start.reshape(-1),
            length=length.reshape(-1),
            segment=np.tile(np.array([0, 1], np.uint8), pairs),
            is_last=np.ones(2 * pairs, bool),
            labels={"is_random": chunks.is_random},
        )


SENTENCE_PAIRS = SentencePairs()
