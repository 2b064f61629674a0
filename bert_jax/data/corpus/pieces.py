"""A large split cut into pieces, each of which is planned alone.

To plan a pass over 10 billion tokens takes minutes and 11 GB. So a split of more than a block is
cut into pieces of a few hundred thousand tokens. A pass takes them in an order of its own, a block
of them at a time, and rows are shuffled within a block (stream.py). A smaller split is one piece.
"""

import dataclasses
from typing import NamedTuple

import numpy as np

from bert_jax.data.corpus.store import Split

# A piece whose end falls into a document goes on to the end of the document, unless that is
# further than this share of a piece: then the document is cut between two sentences.
_LONGER = 1 / 4


class Blocks(NamedTuple):
    """The sizes by which a split is cut."""

    tokens: int  # of a block, at least
    lanes: int  # that a block is dealt to, at most
    pieces: int  # of a block


# A block is 530,000 rows of 128, as many as large shuffle buffers have, and planned in two seconds.
# 64 hosts plan a lane of it each. What a lane has are pieces from four places of the split, so that
# lanes are nearly alike.
BLOCKS = Blocks(tokens=1 << 26, lanes=64, pieces=256)


class Pieces:
    """The pieces of a split, in its order; blocks are numbered nowhere, but counted."""

    def __init__(self, split: Split, sizes: Blocks):
        self._split = split
        self.is_cut = sizes.tokens < split.tokens
        self.blocks = split.tokens // sizes.tokens if self.is_cut else 1
        self.lanes = sizes.lanes if self.is_cut else 1
        self._count = self.blocks * sizes.pieces if self.is_cut else 1

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> Split:
        """Returns a piece, whose offsets are in memory; its spans are those of the split.

        A document that is longer than a piece is in several; where a piece has a part of one alone,
        its halves are two documents, since a pair of segments takes two.
        """
        if not self.is_cut:
            return self._split
        first, end = self._edge(number), self._edge(number + 1)
        if end - first < 2:  # of a sentence of a hundred thousand tokens: with the one beside it
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
        """Returns the sentence with which a piece begins; after the last one, their number."""
        sentences, documents = self._split.sentence_starts, self._split.document_starts
        first, tokens = int(sentences[0]), self._split.tokens
        if number in (0, len(self)):
            return sentences.size - 1 if number else 0
        token = first + tokens * number // len(self)
        sentence = int(sentences.searchsorted(token))
        begins = int(documents[int(documents.searchsorted(sentence))])
        is_far = sentences[begins] - token > _LONGER * tokens / len(self)
        return sentence if is_far else begins
