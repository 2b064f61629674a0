"""Rows without next sentence prediction: equal to reference implementations, row by row."""

import dataclasses

import numpy as np
import pytest

from bert_jax.config import DataConfig
from bert_jax.data.corpus.store import Split
from bert_jax.data.pretraining import spans
from bert_jax.data.tokenizer.tokenizer import Vocabulary
from bert_jax.registry import SEQUENCE_FORMATS
from tests import naive_rows
from tests.data.pretraining.test_sentence_pairs import Z, documents_of
from tests.naive_rows import KeyedDraws, Row, SequentialDraws
from tests.synthetic_corpus import FIRST_WORD, SPECIAL, random_split, split_from_lengths

_KINDS = ("full_sentences", "doc_sentences", "documents", "electra_segments")
each_kind = pytest.mark.parametrize("kind", _KINDS)


def plan_of(kind: str, split: Split, length: int, key: int = 5):
    return SEQUENCE_FORMATS[kind].plan(split, options=DataConfig(), sequence_length=length, key=key)


def read(kind: str, split: Split, plan, length: int) -> dict[str, np.ndarray]:
    return SEQUENCE_FORMATS[kind].read(
        split, plan, vocabulary=Vocabulary(SPECIAL, 1000), sequence_length=length
    )


def expected_rows(kind: str, split: Split, length: int, key: int = 5) -> list[Row]:
    documents = documents_of(split)
    if kind == "electra_segments":
        return [*naive_rows.electra_segments(documents, length, KeyedDraws(key))]
    make = {
        "full_sentences": naive_rows.full_sentences,
        "doc_sentences": naive_rows.doc_sentences,
        "documents": naive_rows.whole_documents,
    }[kind]
    return [*make(documents, length - 2)]


def in_ids(row: Row) -> tuple[list[int], list[int]]:
    """The ids and token types of a row in a split with unique tokens."""
    ids, types = [SPECIAL.cls], [0]
    for number, segment in enumerate(row):
        for part in segment:
            ids += [*(FIRST_WORD + token for token in part), SPECIAL.sep]
            types += [number] * (len(part) + 1)
    return ids, types


def assert_equals_the_original(kind: str, split: Split, length: int, key: int = 5) -> None:
    SEQUENCE_FORMATS[kind].check(split, sequence_length=length)
    plan = plan_of(kind, split, length, key)
    rows = read(kind, split, plan, length)
    expected = [in_ids(row) for row in expected_rows(kind, split, length, key)]
    assert len(plan) == len(rows["input_ids"]) == len(expected)
    for i, (ids, types) in enumerate(expected):
        padding = length - len(ids)
        assert plan.lengths[i] == rows["lengths"][i] == len(ids)
        assert rows["input_ids"][i].tolist() == ids + [SPECIAL.pad] * padding
        assert rows["token_type_ids"][i].tolist() == types + [0] * padding
        assert rows["sequence_ids"][i].tolist() == [1] * len(ids) + [0] * padding
        assert rows["position_ids"][i].tolist() == list(range(length))


@each_kind
@pytest.mark.parametrize("length", [8, 32, 128])
def test_equals_the_original_row_by_row(kind, length, monkeypatch):
    monkeypatch.setattr(spans, "_BLOCK", 100)  # the walk continues after a block
    split = random_split(120, mean_sentences=8, mean_tokens=9, vocab_size=None, num_shards=3)
    assert_equals_the_original(kind, split, length)


@each_kind
@pytest.mark.parametrize(
    ("sentences", "documents"),
    [
        ([1], [1]),  # the smallest possible corpus
        ([1] * 40, [1] * 40),  # a separator between any two tokens
        ([30, 30, 62, 1, 61, 1, 62], [2, 1, 2, 1, 1]),  # rows that are exactly full
        ([700, 1, 900, 3, 63, 1500], [2, 1, 3]),  # sentences longer than a row
        ([1] * 2000, [2000]),
    ],
)
def test_equals_the_original_in_corner_cases(kind, sentences, documents):
    split = split_from_lengths(np.array(sentences), np.array(documents), vocab_size=None)
    for key in range(3):
        assert_equals_the_original(kind, split, 64, key)


@each_kind
def test_the_middle_of_a_corpus_makes_valid_rows(kind):
    """A split that begins inside a shard, as in the doctor."""
    split = random_split(30, vocab_size=None)
    first, last = split.document_starts[[10, 20]]
    middle = dataclasses.replace(
        split,
        document_starts=split.document_starts[10:21] - first,
        sentence_starts=split.sentence_starts[first : last + 1],
    )
    assert_equals_the_original(kind, middle, 64)


@pytest.mark.parametrize("kind", ("sentence_pairs", *_KINDS))
def test_a_plan_can_be_taken_from_and_joined(kind):
    split = random_split(60, mean_tokens=15, vocab_size=None, num_shards=7)
    plans = [plan_of(kind, split, 64, key) for key in (1, 2)]
    whole = [read(kind, split, plan, 64) for plan in plans]
    chosen = [np.array([3, 0, 3, 7]), np.array([5])]
    parts = [plan.take(index) for plan, index in zip(plans, chosen, strict=True)]
    joined = read(kind, split, type(parts[0]).join(parts), 64)
    for name, array in joined.items():
        expected = [rows[name][index] for rows, index in zip(whole, chosen, strict=True)]
        assert np.array_equal(array, np.concatenate(expected)), name
    again = parts[0].take(np.array([1]))
    assert np.array_equal(read(kind, split, again, 64)["input_ids"], whole[0]["input_ids"][:1])


def test_cut_sentences_are_counted(caplog):
    split = split_from_lengths(np.array([70, 3, 200]), np.array([2, 1]))
    with caplog.at_level("INFO", logger="bert_jax"):
        plan_of("full_sentences", split, 66)
    assert "train: 2 of 3 sentences are longer than the 64 tokens" in caplog.text


def statistics_of(lengths: np.ndarray, first: np.ndarray, length: int) -> list[float]:
    """Rows, tokens per row, tokens of the first segment, full rows, rows of one segment."""
    is_one = first + 2 == lengths
    return [
        lengths.size, lengths.mean(), first.mean(), (lengths == length).mean(), is_one.mean(),
    ]  # fmt: skip


def test_statistics_of_electras_rows_agree_with_the_original():
    """Epochs of ours and of the original, drawn independently: means may differ by Z errors."""
    split = random_split(100, mean_sentences=12, mean_tokens=20)
    documents = documents_of(split)
    ours, original = [], []
    for epoch in range(20):
        plan = plan_of("electra_segments", split, 128, epoch)
        row = np.repeat(np.arange(len(plan)), np.diff(plan.bounds))
        first = np.bincount(row, plan.length * (plan.segment == 0))
        ours.append(statistics_of(plan.lengths, first, 128))
        rows = [*naive_rows.electra_segments(documents, 128, SequentialDraws(epoch))]
        lengths = np.array([len(in_ids(row)[0]) for row in rows])
        first = np.array([len(row[0][0]) for row in rows])
        original.append(statistics_of(lengths, first, 128))
    difference = np.mean(ours, axis=0) - np.mean(original, axis=0)
    error = np.sqrt((np.var(ours, axis=0, ddof=1) + np.var(original, axis=0, ddof=1)) / 20)
    assert (np.abs(difference) < Z * error).all(), (difference, error)
