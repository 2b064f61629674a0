"""Rows of one segment, without next sentences: those of RoBERTa, and whole documents.

`full_sentences` and `doc_sentences` are the modes "complete" and "complete_doc" of fairseq
(fairseq/data/token_block_utils_fast.pyx; Liu et al. 2019, section 4.2). As there, the rows of every
epoch are the same; their order and their masks are drawn anew. Where they depart from fairseq is
listed in docs/lineage.md.
"""

from collections.abc import Callable

import numpy as np

from bert_jax.config import DataConfig
from bert_jax.data.corpus.store import Split
from bert_jax.data.pretraining.spans import SpanPlan, SpanRows, chain
from bert_jax.progress import note_once


class OneSegment(SpanRows):
    """An entry of `registry.SEQUENCE_FORMATS`: `[CLS] a [SEP]`, with [SEP] also between documents.

    The rows share out the split's tokens: none is left out, none is in two rows.
    """

    num_special = 2

    def __init__(self, begins: Callable[[Split, int], np.ndarray]):
        """`begins` returns the token with which each row begins, of rows with room for so many."""
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
    """Fills each row with whole sentences, going on in the next document after a separator."""
    return _gather(split, room, between=1)


def doc_sentences(split: Split, room: int) -> np.ndarray:
    """Fills each row with whole sentences of one document."""
    return _gather(split, room, between=room + 1)


def documents(split: Split, room: int) -> np.ndarray:
    """Cuts each document into full rows and a rest, wherever sentences end."""
    sentences, documents = split.starts()
    return _cut(sentences[documents], room)[0][:-1]


def _gather(split: Split, room: int, *, between: int) -> np.ndarray:
    """Returns the first token of each row. Two documents of a row cost `between` tokens more: no
    row has two where that is more than there is room for.
    """
    sentence_starts, document_starts = split.starts()
    starts, first_piece = _cut(sentence_starts, room)
    sentences = first_piece.size - 1
    if starts.size > first_piece.size:
        cut = np.count_nonzero(np.diff(first_piece) > 1)
        # Of each piece, the figures would be another line.
        how_many = "some" if split.is_piece else f"{cut:,} of {sentences:,}"
        note_once(
            f"{split.name}: {how_many} sentences are cut, being longer than the "
            f"{room} tokens that a row has room for"
        )
    openings = first_piece[document_starts]  # of the pieces, those that begin a document

    def ends(begin: int, end: int) -> np.ndarray:
        # A row has no more pieces than room, since none is empty.
        window = starts[begin : end + room + 1]
        cost = np.zeros(window.size, np.int64)
        low, high = np.searchsorted(openings, (begin, begin + window.size))
        cost[openings[low:high] - begin] = between
        np.cumsum(cost, out=cost)
        # The pieces [i, j) take window[j] - window[i] tokens, and separators where one of the
        # pieces i + 1, ..., j - 1 begins a document.
        taken = window[1:] + cost[:-1]
        most = (window + cost)[: end - begin] + room
        return begin + np.searchsorted(taken, most, side="right")

    return starts[chain(starts.size - 1, ends)]


def _cut(bounds: np.ndarray, room: int) -> tuple[np.ndarray, np.ndarray]:
    """Cuts what lies between the `bounds` `[N + 1]` into pieces of `room` tokens and a rest.

    Returns the bounds of the pieces `[P + 1]`, and which piece is the first of each `[N + 1]`.
    """
    length = np.diff(bounds)
    count = -(-length // room)
    first = np.concatenate([[0], np.cumsum(count)])
    number = np.arange(first[-1]) - np.repeat(first[:-1], count)
    return np.append(np.repeat(bounds[:-1], count) + number * room, bounds[-1]), first


FULL_SENTENCES = OneSegment(full_sentences)
DOC_SENTENCES = OneSegment(doc_sentences)
DOCUMENTS = OneSegment(documents)
