"""Sentence pairs as index arithmetic: one epoch's examples of a corpus, as arrays of token spans.

The semantics are those of `create_instances_from_document` in google-research/bert
(create_pretraining_data.py), put-back of unused sentences included. That function walks through a
document sentence by sentence; here all documents are walked at once, each a lane of vectors, and
no token is touched: since the sentences of a document lie one after the other in the token store,
both segments of a pair are spans, and truncating one moves its ends. Where this departs from the
original is listed in docs/data.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple, Self

import numpy as np

from bert_jax.config import DataConfig
from bert_jax.data import counter_rng
from bert_jax.data.corpus.store import Split
from bert_jax.data.pretraining.spans import copy_spans
from bert_jax.data.tokenizer.tokenizer import Vocabulary
from bert_jax.errors import UsageError

# [CLS] a [SEP] b [SEP]
NUM_SPECIAL = 3
# A longer document is walked in pieces, which bounds the steps of the walk: 1,024 for any corpus.
_MAX_LANE_SENTENCES = 1024
# Examples finished at a time, so that the temporaries stay in the processor's cache.
_BLOCK = 1 << 15


class _Draw:
    """The purpose of a random number: the last counter of its key."""

    IS_SHORT, SHORT_LENGTH, A_END, IS_RANDOM, OTHER_DOCUMENT, OTHER_START, A_FRONT, B_FRONT = range(
        8
    )


@dataclass(frozen=True)
class PairPlan:
    """Sentence pairs: spans `[start, start + length)` of the split's global token index.

    All arrays have one entry for each example. `is_random` says that segment b comes from another
    document than segment a; otherwise it follows it.
    """

    a_start: np.ndarray  # int64
    a_length: np.ndarray  # int32, at least 1
    b_start: np.ndarray  # int64
    b_length: np.ndarray  # int32, at least 1
    is_random: np.ndarray  # bool

    def __len__(self) -> int:
        return self.a_start.size

    @property
    def lengths(self) -> np.ndarray:
        """The tokens of each row, special ones included: int64 `[R]`."""
        return self.a_length.astype(np.int64) + self.b_length + NUM_SPECIAL

    def take(self, index: np.ndarray) -> Self:
        return type(self)(*(getattr(self, field.name)[index] for field in fields(self)))

    @classmethod
    def join(cls, plans: Sequence[Self]) -> Self:
        arrays = ([getattr(plan, field.name) for plan in plans] for field in fields(cls))
        return cls(*(np.concatenate(parts) for parts in arrays))

    @classmethod
    def empty(cls, size: int) -> Self:
        dtypes = (np.int64, np.int32, np.int64, np.int32, np.bool_)
        return cls(*(np.empty(size, dtype) for dtype in dtypes))


class _Lanes(NamedTuple):
    """The pieces of documents that are walked side by side, in the order of the corpus."""

    document: np.ndarray
    begin: np.ndarray  # global sentence index of the first sentence
    end: np.ndarray
    target: np.ndarray  # tokens a pair aims at
    key: np.ndarray  # uint64


class _Chunks(NamedTuple):
    """Runs of sentences `[first, last)`, in the order (lane, turn); a takes those before `middle`.

    Sentence numbers count from the beginning of the lane, so that two bytes hold them.
    """

    lane: np.ndarray
    turn: np.ndarray
    first: np.ndarray
    middle: np.ndarray
    last: np.ndarray
    is_random: np.ndarray


def plan_epoch(split: Split, *, options: DataConfig, sequence_length: int, key: int) -> PairPlan:
    """Returns all sentence pairs of one pass over `split`, in the order of the corpus.

    A pair and its three special tokens fit in `sequence_length`. Another `key` gives another
    epoch. The split needs two documents at least.
    """
    max_tokens = sequence_length - NUM_SPECIAL
    lanes = _lanes(split, options, max_tokens, key)
    chunks = _walk(split.sentence_starts, lanes, options.random_next_prob)
    plan = PairPlan.empty(chunks.lane.size)
    for start in range(0, len(plan), _BLOCK):
        block = slice(start, start + _BLOCK)
        pairs = _pairs(split, lanes, _Chunks(*(array[block] for array in chunks)), max_tokens)
        for field in fields(PairPlan):
            getattr(plan, field.name)[block] = getattr(pairs, field.name)
    return plan


def _lanes(split: Split, options: DataConfig, max_tokens: int, key: int) -> _Lanes:
    sentences = np.diff(split.document_starts)
    pieces = -(-sentences // _MAX_LANE_SENTENCES)
    document = np.repeat(np.arange(sentences.size), pieces)
    piece = np.arange(document.size) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    # Pieces of equal size: no piece of one or two sentences is left at the end.
    begin = split.document_starts[document] + piece * sentences[document] // pieces[document]
    end = np.append(begin[1:], split.document_starts[-1])
    keys = counter_rng.bits(key, np.arange(document.size))
    is_short = counter_rng.uniform(counter_rng.bits(keys, _Draw.IS_SHORT)) < options.short_seq_prob
    short = 2 + counter_rng.randint(counter_rng.bits(keys, _Draw.SHORT_LENGTH), max_tokens - 1)
    return _Lanes(document, begin, end, np.where(is_short, short, max_tokens), keys)


def _walk(sentence_starts: np.ndarray, lanes: _Lanes, random_next_prob: float) -> _Chunks:
    """Cuts every lane into chunks: each turn of the loop takes one chunk from each lane left."""
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
        # Sentences that a random second segment has displaced are put back.
        at = np.where(is_random, middle, last)
        left = at < end
        if not left.all():
            lane, at, end, target, key = (x[left] for x in (lane, at, end, target, key))
    return _in_order(turns, chunks_of_lane)


def _in_order(turns: list[tuple[np.ndarray, ...]], chunks_of_lane: np.ndarray) -> _Chunks:
    """Sorts chunks from the order (turn, lane), in which they were found, to (lane, turn)."""
    size = int(chunks_of_lane.sum())
    first_of_lane = np.cumsum(chunks_of_lane) - chunks_of_lane
    dtypes = (np.int32, np.uint16, np.uint16, np.uint16, np.uint16, np.bool_)
    chunks = _Chunks(*(np.empty(size, dtype) for dtype in dtypes))
    for turn, (lane, *values) in enumerate(turns):
        index = first_of_lane[lane] + turn
        for array, value in zip(chunks, (lane, turn, *values), strict=True):
            array[index] = value
    return chunks


def _pairs(split: Split, lanes: _Lanes, chunks: _Chunks, max_tokens: int) -> PairPlan:
    """Chooses second segments, and truncates pairs to `max_tokens`."""
    starts = split.sentence_starts
    lane, is_random = chunks.lane, chunks.is_random
    begin = lanes.begin[lane]
    keys = counter_rng.bits(lanes.key[lane], chunks.turn)
    a_start = starts[begin + chunks.first]
    b_start = starts[begin + chunks.middle]
    b_end = starts[begin + chunks.last]
    a_length = b_start - a_start

    (row,) = np.nonzero(is_random)
    first, last = _other_spans(
        split,
        document=lanes.document[lane[row]],
        target=lanes.target[lane[row]] - a_length[row],
        keys=keys[row],
    )
    b_start[row], b_end[row] = starts[first], starts[last]
    b_length = b_end - b_start

    # Tokens are dropped one by one from the longer segment, from b where both are equal. So the
    # difference goes first, and what remains is shared out in turns, beginning with b.
    excess = np.maximum(a_length + b_length - max_tokens, 0)
    longer = a_length - b_length
    from_a = np.minimum(excess, np.maximum(longer, 0))
    from_b = np.minimum(excess, np.maximum(-longer, 0))
    shared = excess - from_a - from_b
    from_a += shared // 2
    from_b += shared - shared // 2
    # Each dropped token is the first or the last of its segment, with equal chances.
    return PairPlan(
        a_start=a_start + counter_rng.binomial_half(from_a, counter_rng.bits(keys, _Draw.A_FRONT)),
        a_length=a_length - from_a,
        b_start=b_start + counter_rng.binomial_half(from_b, counter_rng.bits(keys, _Draw.B_FRONT)),
        b_length=b_length - from_b,
        is_random=is_random,
    )


def _other_spans(
    split: Split, *, document: np.ndarray, target: np.ndarray, keys: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Returns sentences `[first, last)` of another document: `target` tokens or to the document's
    end.
    """
    other = counter_rng.randint(
        counter_rng.bits(keys, _Draw.OTHER_DOCUMENT), split.document_starts.size - 2
    )
    other += other >= document  # every document but `document`, all alike
    begin, end = split.document_starts[other], split.document_starts[other + 1]
    first = begin + counter_rng.randint(counter_rng.bits(keys, _Draw.OTHER_START), end - begin)
    # Where segment a alone has reached the target, one sentence still follows.
    wanted = split.sentence_starts[first] + np.maximum(target, 1)
    last = np.searchsorted(split.sentence_starts, wanted)
    return first, np.minimum(last, end)


# --- rows of token ids ---------------------------------------------------------------------------


def read_rows(
    split: Split, pairs: PairPlan, *, cls: int, sep: int, pad: int, sequence_length: int
) -> dict[str, np.ndarray]:
    """Returns the pairs as `[CLS] a [SEP] b [SEP]`, padded: the four `[R, L]` int32 inputs of a
    batch.
    """
    rows = len(pairs)
    a_length, b_length = pairs.a_length.astype(np.int64), pairs.b_length.astype(np.int64)
    first_sep = a_length + 1
    last_sep = first_sep + b_length + 1
    base = np.arange(rows) * sequence_length
    column = np.arange(sequence_length)

    input_ids = np.full((rows, sequence_length), pad, np.int32)
    flat = input_ids.reshape(-1)
    flat[base] = cls
    flat[base + first_sep] = sep
    flat[base + last_sep] = sep
    copy_spans(
        split,
        start=np.concatenate([pairs.a_start, pairs.b_start]),
        length=np.concatenate([a_length, b_length]),
        target=np.concatenate([base + 1, base + first_sep + 1]),
        out=flat,
    )
    is_token = column <= last_sep[:, None]
    return {
        "input_ids": input_ids,
        "token_type_ids": (is_token & (column > first_sep[:, None])).astype(np.int32),
        "position_ids": np.tile(column.astype(np.int32), (rows, 1)),
        "sequence_ids": is_token.astype(np.int32),
    }


class SentencePairs:
    """The entry of `registry.ROWS`: `[CLS] a [SEP] b [SEP]`, where b follows a or does not."""

    num_special = NUM_SPECIAL

    def check(self, split: Split, *, sequence_length: int) -> None:
        """Raises `UsageError` if the split or the length allow no pairs."""
        documents = split.document_starts.size - 1
        if documents < 2:
            raise UsageError(
                f"the {split.name} split of the corpus has {documents} document(s), but every "
                "second pair takes a segment from another document: prepare a corpus of more "
                "documents (in text files a blank line ends a document)"
            )
        if sequence_length - NUM_SPECIAL < 2:
            raise UsageError(
                f"sequence_length {sequence_length} has no room for a pair of segments"
            )

    def plan(
        self, split: Split, *, options: DataConfig, sequence_length: int, key: int
    ) -> PairPlan:
        """Returns the rows of one epoch (`plan_epoch`), of which `take` chooses some."""
        return plan_epoch(split, options=options, sequence_length=sequence_length, key=key)

    def read(
        self, split: Split, plan: PairPlan, *, vocabulary: Vocabulary, sequence_length: int
    ) -> dict[str, np.ndarray]:
        """Returns the four inputs of a batch; `lengths` int64 `[R]`; `is_random` bool `[R]`."""
        special = vocabulary.special
        inputs = read_rows(
            split,
            plan,
            cls=special.cls,
            sep=special.sep,
            pad=special.pad,
            sequence_length=sequence_length,
        )
        return {**inputs, "lengths": plan.lengths, "is_random": plan.is_random}


SENTENCE_PAIRS = SentencePairs()
