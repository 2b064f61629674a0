"""Pairs of texts of one document: where their tokens come from, and how a row holds them."""

import numpy as np
import pytest

from bert_jax.config import DataConfig
from bert_jax.data.pairs.texts import text_ids
from bert_jax.data.tokenizer.tokenizer import Vocabulary
from bert_jax.errors import UsageError
from bert_jax.registry import SEQUENCE_FORMATS
from tests.synthetic_corpus import FIRST_WORD, SPECIAL, random_split, split_from_lengths

KINDS = ("crops", "adjacent", "title_body", "same")
LENGTH = 32
SPLIT = random_split(40, mean_sentences=5, mean_tokens=9, vocab_size=None, num_shards=3)


def plan_of(kind: str, *, key: int = 5, split=SPLIT, length: int = LENGTH):
    return SEQUENCE_FORMATS[kind].plan(split, options=DataConfig(), sequence_length=length, key=key)


def read(kind: str, plan, *, split=SPLIT, length: int = LENGTH) -> dict[str, np.ndarray]:
    vocabulary = Vocabulary(SPECIAL, 100_000)
    return SEQUENCE_FORMATS[kind].read(split, plan, vocabulary=vocabulary, sequence_length=length)


def texts_of(rows: dict[str, np.ndarray]) -> list[list[np.ndarray]]:
    """The tokens of both texts of each row, as indices of the split, which are unique."""
    found = []
    for ids, sequences, positions in zip(
        rows["input_ids"], rows["sequence_ids"], rows["position_ids"], strict=True
    ):
        texts = []
        for number in (1, 2):
            own = sequences == number
            assert ids[own][0] == SPECIAL.cls and ids[own][-1] == SPECIAL.sep
            assert (positions[own] == np.arange(own.sum())).all()
            texts.append(ids[own][1:-1] - FIRST_WORD)
        assert (ids[sequences == 0] == SPECIAL.pad).all()
        found.append(texts)
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_both_texts_are_spans_of_one_document(kind):
    plan = plan_of(kind)
    rows = read(kind, plan)
    bounds = SPLIT.sentence_starts[SPLIT.document_starts]
    for texts, positions, length in zip(
        texts_of(rows), rows["text_positions"], plan.lengths, strict=True
    ):
        of = [np.searchsorted(bounds, text, side="right") for text in texts]
        assert all((np.diff(text) == 1).all() for text in texts)
        assert np.unique(np.concatenate(of)).size == 1
        assert positions.tolist() == [0, len(texts[0]) + 2]
        assert length == len(texts[0]) + len(texts[1]) + 4 <= LENGTH
    assert not rows["token_type_ids"].any()


def test_each_kind_cuts_as_its_paper_does():
    room = LENGTH - 4
    for query, document in texts_of(read("crops", plan_of("crops"))):
        assert all(1 <= len(text) <= room / 2 for text in (query, document))
    for query, document in texts_of(read("adjacent", plan_of("adjacent"))):
        assert document[0] == query[-1] + 1
    for query, document in texts_of(read("title_body", plan_of("title_body"))):
        assert query[0] in SPLIT.sentence_starts[SPLIT.document_starts]
        assert document[0] in SPLIT.sentence_starts and document[0] > query[-1]
    for query, document in texts_of(read("same", plan_of("same"))):
        assert query.tolist() == document.tolist() and len(query) <= room / 2


def test_crops_only_depend_on_the_key():
    first, again, other = (read("crops", plan_of("crops", key=key)) for key in (5, 5, 6))
    assert (first["input_ids"] == again["input_ids"]).all()
    assert (first["input_ids"] != other["input_ids"]).any()
    lengths = [len(text) for row in texts_of(first) for text in row]
    assert len(set(lengths)) > 5  # drawn between a twentieth and a half


def test_a_split_without_pairs_is_rejected():
    single = split_from_lengths(np.array([1, 1]), np.array([1, 1]))
    for kind in ("crops", "title_body"):
        with pytest.raises(UsageError, match="long enough for a pair"):
            plan_of(kind, split=single)


def test_ids_of_texts_depend_on_tokens_and_their_order():
    ids = np.array([[7, 8, 9, 7, 8, 9, 0], [9, 8, 7, 7, 8, 9, 5]], np.int32)
    sequences = np.array([[1, 1, 1, 2, 2, 2, 0]] * 2, np.int32)
    positions = np.array([[0, 1, 2, 0, 1, 2, 0]] * 2, np.int32)
    batch = {"input_ids": ids, "sequence_ids": sequences, "position_ids": positions}
    found = text_ids(batch, texts=2)
    assert found.dtype == np.int32
    (first, second), (third, fourth) = found.tolist()
    assert first == second == fourth != third
