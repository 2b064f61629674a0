"""Rows of one segment, without next sentence prediction: RoBERTa's rows, and whole documents.

`full_sentences` and `doc_sentences` are the modes "complete" and "complete_doc" of fairseq
(fairseq/data/token_block_utils_fast.pyx; Liu et al. 2019, section 4.2). As in fairseq, every epoch
has the same rows; their order and their masks are drawn again.
"""

from collections.abc import Callable

import numpy as np

from bert_jax.config import DataConfig
from bert_jax.data.corpus.store import Split
from bert_jax.data.pretraining.spans import SpanPlan, SpanRows, chain
from bert_jax.progress import note_once


class OneSegment(SpanRows):
    """Rows of one segment: `[CLS] a [SEP]`, with [SEP] also between two documents.

    Each token of the split is in exactly one row.
    """

    num_special = 2

    def __init__(self, begins: Callable[[Split, int], np.ndarray]):
        """`begins` returns the first token of each row, given the tokens that fit in a row."""
        self._begins = begins

    def plan(
        self, split: Split, *, options: DataConfig, sequence_length: int, key: int
    ) -> SpanPlan:
        """Returns the rows of one epoch, which are the same for every key."""
        begins = self._begins(split, sequence_length - self.num_special)
        sentences, documents = split.starts()
        documents = sentences[documents]
        start = np.union1d(begins, documents[:-1])
        length = np.diff(start, append=documents[-1])
        row = np.searchsorted(begins, start, side="right") - 1
        first_segment, is_last = np.zeros(start.size, np.uint8), np.ones(start.size, bool)
        return SpanPlan.of(row, start, length, first_segment, is_last)


def full_sentences(split: Split, room: int) -> np.ndarray:
    """Fills each row with whole sentences, continuing in the next document after a separator."""
    return _gather(split, room, between=1)


def doc_sentences(split: Split, room: int) -> np.ndarray:
    """Fills each row with whole sentences of one document."""
    return _gather(split, room, between=room + 1)


def documents(split: Split, room: int) -> np.ndarray:
    """Splits each document into full rows and a remainder, regardless of sentence boundaries."""
    sentences, documents = split.starts()
    return _cut(sentences[documents], room)[0][:-1]


def _gather(split: Split, room: int, *, between: int) -> np.ndarray:
    """Returns the first token of each row. Each document boundary in a row costs `between` tokens;
    if this exceeds `room`, no row has two documents.
    """
    sentence_starts, document_starts = split.starts()
    starts, first_piece = _cut(sentence_starts, room)
    sentences = first_piece.size - 1
    if starts.size > first_piece.size:
        cut = np.count_nonzero(np.diff(first_piece) > 1)
        # For one piece of a split, counts would print another line for each piece.
        how_many = "some" if split.is_piece else f"{cut:,} of {sentences:,}"
        note_once(
            f"{split.name}: {how_many} sentences are longer than the {room} tokens that fit in a "
            "row, and are split"
        )
    openings = first_piece[document_starts]  # the pieces that begin a document

    def ends(begin: int, end: int) -> np.ndarray:
        # A row has at most `room` pieces, since no piece is empty.
        window = starts[begin : end + room + 1]
        cost = np.zeros(window.size, np.int64)
        low, high = np.searchsorted(openings, (begin, begin + window.size))
        cost[openings[low:high] - begin] = between
        np.cumsum(cost, out=cost)
        # The pieces [i, j) take window[j] - window[i] tokens, plus a separator for each of the
        # pieces i + 1, ..., j - 1 that begins a document.
        taken = window[1:] + cost[:-1]
        most = (window + cost)[: end - begin] + room
        return begin + np.searchsorted(taken, most, side="right")

    return starts[chain(starts.size - 1, ends)]


def _cut(bounds: np.ndarray, room: int) -> tuple[np.ndarray, np.ndarray]:
    """Splits the tokens between the `bounds` `[N + 1]` into pieces of `room` tokens and remainders.

    Returns the bounds of the pieces `[P + 1]`, and the number of the first piece of each `[N + 1]`.
    """
    length = np.diff(bounds)
    count = -(-length // room)
    first = np.concatenate([[0], np.cumsum(count)])
    number = np.arange(first[-1]) - np.repeat(first[:-1], count)
    return np.append(np.repeat(bounds[:-1], count) + number * room, bounds[-1]), first


FULL_SENTENCES = OneSegment(full_sentences)
DOC_SENTENCES = OneSegment(doc_sentences)
DOCUMENTS = OneSegment(documents)
