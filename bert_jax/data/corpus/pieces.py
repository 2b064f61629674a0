"""Splits a large split into pieces, which are planned independently.

Planning an epoch of 10 billion tokens takes minutes and 11 GB. A split that is larger than a block
is therefore divided into pieces of a few hundred thousand tokens. Each epoch takes the pieces in
another order, one block at a time, and rows are shuffled within a block (stream.py).
"""

import dataclasses
from typing import NamedTuple

import numpy as np

from bert_jax.data.corpus.store import Split

# A piece that ends inside a document is extended to the end of the document, unless this exceeds
# the given share of a piece; then the document is divided between two sentences.
_LONGER = 1 / 4


class Blocks(NamedTuple):
    """The sizes that determine the pieces of a split."""

    tokens: int  # per block, at least
    lanes: int  # per block, at most
    pieces: int  # per block


# A block has 530,000 rows of 128 tokens, like large shuffle buffers, and is planned in two seconds.
# 64 hosts plan one lane of it each. A lane has pieces from four places of the split, so that lanes
# have similar content. The sizes are part of the data order: a change of them moves the rows of a
# corpus that is larger than a block, also in runs that resume.
BLOCKS = Blocks(tokens=1 << 26, lanes=64, pieces=256)


class Pieces:
    """The pieces of a split, in its order; blocks are counted, but not numbered."""

    def __init__(self, split: Split, sizes: Blocks):
        self._split = split
        self.is_cut = sizes.tokens < split.tokens
        self.blocks = split.tokens // sizes.tokens if self.is_cut else 1
        self.lanes = sizes.lanes if self.is_cut else 1
        self._count = self.blocks * sizes.pieces if self.is_cut else 1

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> Split:
        """Returns a piece with its offsets in memory; its spans are those of the split.

        A document longer than a piece spans several pieces. If a piece contains only part of one
        document, its halves become two documents, since a pair of segments needs two.
        """
        if not self.is_cut:
            return self._split
        first, end = self._edge(number), self._edge(number + 1)
        if end - first < 2:  # one sentence of 100,000 tokens: add an adjacent sentence
            first = max(0, min(first, self._split.sentence_starts.size - 3))
            end = first + 2
        documents = self._split.document_starts
        inside = documents[documents.searchsorted(first) : documents.searchsorted(end)]
        starts = np.unique(np.concatenate([[first], inside, [end]])).astype(np.int64)
        sentences = self._split.sentence_starts[first : end + 1]
        if starts.size == 2:
            middle = np.searchsorted(sentences, (sentences[0] + sentences[-1]) // 2)
            starts = np.insert(starts, 1, first + np.clip(middle, 1, end - first - 1))
        return dataclasses.replace(
            self._split,
            sentence_starts=sentences,
            document_starts=starts - first,
            is_piece=True,
        )

    def _edge(self, number: int) -> int:
        """Returns the first sentence of a piece; after the last piece, the number of sentences."""
        sentences, documents = self._split.sentence_starts, self._split.document_starts
        first, tokens = int(sentences[0]), self._split.tokens
        if number in (0, len(self)):
            return sentences.size - 1 if number else 0
        token = first + tokens * number // len(self)
        sentence = int(sentences.searchsorted(token))
        begins = int(documents[int(documents.searchsorted(sentence))])
        is_far = sentences[begins] - token > _LONGER * tokens / len(self)
        return sentence if is_far else begins
