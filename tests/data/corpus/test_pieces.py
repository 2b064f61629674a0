"""Pieces of a split: nothing is lost or repeated, and no piece is empty."""

import dataclasses

import numpy as np
import pytest

from bert_jax.data.corpus.pieces import BLOCKS, Blocks, Pieces
from bert_jax.data.corpus.store import Split
from bert_jax.data.offsets import Offsets
from tests.synthetic_corpus import random_split, split_from_lengths

LONG = split_from_lengths(np.full(3000, 7), np.array([3, 2400, 1, 596]))
SPLITS = {
    "documents of all sizes": random_split(400, num_shards=5),
    "a document of many pieces": LONG,
    "one document": split_from_lengths(np.full(3000, 7), np.array([3000])),
    "two sentences a document": random_split(2000, mean_sentences=2),
}


def lazily(split: Split) -> Split:
    """Opened like a large split."""
    return dataclasses.replace(
        split,
        sentence_starts=Offsets([np.asarray(split.sentence_starts).astype(np.uint32)]),
        document_starts=Offsets([np.asarray(split.document_starts).astype(np.uint32)]),
    )


@pytest.mark.parametrize("opened", [lambda split: split, lazily], ids=["arrays", "offsets"])
@pytest.mark.parametrize("name", SPLITS)
def test_the_pieces_are_the_split(name, opened):
    split = SPLITS[name]
    pieces = Pieces(opened(split), Blocks(tokens=4000, lanes=8, pieces=8))
    assert pieces.blocks == split.tokens // 4000 and len(pieces) == 8 * pieces.blocks > 8
    each = [pieces[number] for number in range(len(pieces))]
    sentences, documents = split.starts()
    # Each sentence is in one piece.
    bounds = [piece.sentence_starts for piece in each]
    assert np.array_equal(np.concatenate([*[b[:-1] for b in bounds], [sentences[-1]]]), sentences)
    usual, most = split.tokens / len(pieces), np.diff(sentences).max()
    begun = []
    for piece in each:
        starts = np.asarray(piece.document_starts)
        assert starts.size > 2, "a pair takes its second segment from another document"
        assert np.all(np.diff(starts) > 0) and (starts[0], starts[-1]) == (
            0,
            piece.sentence_starts.size - 1,
        )
        assert abs(piece.tokens - usual) <= usual / 4 + most
        assert piece.shards is split.shards
        begun.append(np.asarray(piece.sentence_starts)[starts[:-1]])
    # A document begins at the beginning of a document of the split, or inside one that is too long.
    found, own = np.concatenate(begun), sentences[documents[:-1]]
    assert np.isin(own, found).all()
    cut = np.setdiff1d(found, own)
    assert cut.size <= 2 * len(pieces)
    lengths = np.diff(np.append(own, sentences[-1]))
    inside = lengths[np.searchsorted(own, cut, side="right") - 1]
    assert (inside > usual / 4).all()


def test_the_sizes_are_part_of_the_data_order():
    """Other sizes would move the rows of each run on a large corpus that is resumed."""
    assert Blocks(tokens=67_108_864, lanes=64, pieces=256) == BLOCKS


def test_a_split_of_one_block_is_itself():
    split = SPLITS["documents of all sizes"]
    for sizes in (Blocks(split.tokens, 8, 8), Blocks(split.tokens + 1, 8, 8)):
        pieces = Pieces(split, sizes)
        assert len(pieces) == pieces.blocks == pieces.lanes == 1 and pieces[0] is split
    assert len(Pieces(split, Blocks(split.tokens - 1, 8, 8))) == 8


def test_a_sentence_longer_than_a_piece_shares_it_with_the_next():
    split = split_from_lengths(np.array([5, 5, 900, 5, 5]), np.array([1, 1, 1, 1, 1]))
    pieces = Pieces(split, Blocks(tokens=400, lanes=4, pieces=4))
    there = [pieces[number] for number in range(len(pieces))]
    assert all(piece.document_starts.size > 2 for piece in there)
    seen = {token for piece in there for token in range(*piece.sentence_starts[[0, -1]])}
    assert seen == set(range(920))
