"""Sentence pairs: equal to the original algorithm, and to its statistics."""

import itertools
import math
from typing import NamedTuple

import numpy as np
import pytest

from bert_jax.config import DataConfig
from bert_jax.data.corpus.store import Split
from bert_jax.data.pretraining.sentence_pairs import SENTENCE_PAIRS
from bert_jax.data.tokenizer.tokenizer import Vocabulary
from tests.original_examples import KeyedDraws, SequentialDraws, make_pairs
from tests.synthetic_corpus import SPECIAL, random_split, split_from_lengths

NUM_SPECIAL = SENTENCE_PAIRS.num_special
# Tolerated standard deviations. At 4.5, one correct statistic in 150,000 would fail.
Z = 4.5


class Pairs(NamedTuple):
    """A plan as its two segments: arrays `[R]`."""

    a_start: np.ndarray
    a_length: np.ndarray
    b_start: np.ndarray
    b_length: np.ndarray
    is_random: np.ndarray


def pairs_of(plan) -> Pairs:
    (a_start, b_start), (a_length, b_length) = (
        array.reshape(-1, 2).T for array in (plan.start, plan.length)
    )
    return Pairs(a_start, a_length, b_start, b_length, plan.labels["is_random"])


def plan_pairs(split: Split, **arguments) -> Pairs:
    return pairs_of(SENTENCE_PAIRS.plan(split, **arguments))


def documents_of(split: Split) -> list[list[list[int]]]:
    """Documents of sentences of tokens; each token is its global index."""
    sentences = [
        list(range(*bounds))
        for bounds in zip(split.sentence_starts[:-1], split.sentence_starts[1:], strict=True)
    ]
    bounds = zip(split.document_starts[:-1], split.document_starts[1:], strict=True)
    return [sentences[begin:end] for begin, end in bounds]


def pieces_of(documents: list) -> list[tuple[int, list]]:
    """(document number, sentences) for each piece that is walked like a document."""
    pieces = []
    for own, document in enumerate(documents):
        count = math.ceil(len(document) / 1024)
        cuts = [k * len(document) // count for k in range(count + 1)]
        pieces += [(own, document[a:b]) for a, b in itertools.pairwise(cuts)]
    return pieces


def assert_equals_original(split: Split, options: DataConfig, sequence_length: int, key: int):
    plan = plan_pairs(split, options=options, sequence_length=sequence_length, key=key)
    documents = documents_of(split)
    expected = [
        pair
        for lane, (own, piece) in enumerate(pieces_of(documents))
        for pair in make_pairs(
            piece,
            own=own,
            all_documents=documents,
            max_tokens=sequence_length - NUM_SPECIAL,
            short_prob=options.short_seq_prob,
            random_prob=options.random_next_prob,
            draws=KeyedDraws(key, lane),
        )
    ]
    assert len(plan.a_start) == len(expected)
    for i, pair in enumerate(expected):
        assert pair.a == list(range(plan.a_start[i], plan.a_start[i] + plan.a_length[i]))
        assert pair.b == list(range(plan.b_start[i], plan.b_start[i] + plan.b_length[i]))
        assert pair.is_random == plan.is_random[i]


@pytest.mark.parametrize("random_next_prob", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("sequence_length", [8, 32, 128])
def test_equals_the_original_token_by_token(sequence_length: int, random_next_prob: float):
    split = random_split(120, mean_sentences=8, mean_tokens=9)
    options = DataConfig(short_seq_prob=0.3, random_next_prob=random_next_prob)
    assert_equals_original(split, options, sequence_length, key=5)


@pytest.mark.parametrize(
    ("sentences", "documents"),
    [
        ([1, 1], [1, 1]),  # the smallest possible corpus
        ([1] * 40, [20, 20]),
        ([700, 1, 900, 3, 1500], [2, 1, 2]),  # sentences longer than a row, hundreds of drops
        ([3] * 4100, [2049, 1, 1024, 1025, 1]),  # documents that are walked in pieces
    ],
)
def test_equals_the_original_in_corner_cases(sentences: list[int], documents: list[int]):
    split = split_from_lengths(np.array(sentences), np.array(documents))
    for key in range(3):
        assert_equals_original(split, DataConfig(), 64, key)


def statistics_of(a: np.ndarray, b: np.ndarray, is_random: np.ndarray) -> list[float]:
    full = a + b == 125
    return [a.size, a.mean(), b.mean(), full.mean(), is_random.mean(), b[is_random].mean()]


def test_statistics_agree_with_the_original():
    """Epochs of ours and of the original, drawn independently, on one corpus of mixed documents.

    Epochs are independent draws, so their spread gives the error of a mean; lengths, the share of
    full rows and of random pairs may differ by Z of it (with 30 + 30 epochs; t is nearly normal).
    """
    split = random_split(100, mean_sentences=12, mean_tokens=20)
    documents = documents_of(split)
    ours, original = [], []
    for epoch in range(30):
        plan = plan_pairs(split, options=DataConfig(), sequence_length=128, key=epoch)
        ours.append(statistics_of(plan.a_length, plan.b_length, plan.is_random))
        draws = SequentialDraws(epoch)
        pairs = [
            (len(pair.a), len(pair.b), pair.is_random)
            for own, document in enumerate(documents)
            for pair in make_pairs(
                document,
                own=own,
                all_documents=documents,
                max_tokens=125,
                short_prob=0.1,
                random_prob=0.5,
                draws=draws,
            )
        ]
        a, b, is_random = (np.array(column) for column in zip(*pairs, strict=True))
        original.append(statistics_of(a, b, is_random))
    difference = np.mean(ours, axis=0) - np.mean(original, axis=0)
    error = np.sqrt((np.var(ours, axis=0, ddof=1) + np.var(original, axis=0, ddof=1)) / 30)
    assert (np.abs(difference) < Z * error).all(), (difference, error)


@pytest.mark.parametrize("num_shards", [1, 7])
def test_rows_hold_the_pairs_tokens(num_shards: int):
    split = random_split(60, mean_tokens=15, vocab_size=None, num_shards=num_shards)
    plan = SENTENCE_PAIRS.plan(split, options=DataConfig(), sequence_length=64, key=1)
    plan = plan.take(np.arange(len(plan))[::-1])  # shards out of order
    rows = SENTENCE_PAIRS.read(
        split, plan, vocabulary=Vocabulary(SPECIAL, 1000), sequence_length=64
    )
    tokens, pairs = np.concatenate(split.shards), pairs_of(plan)
    for i in range(len(plan)):
        a = tokens[pairs.a_start[i] :][: pairs.a_length[i]].tolist()
        b = tokens[pairs.b_start[i] :][: pairs.b_length[i]].tolist()
        padding = [0] * (64 - len(a) - len(b) - 3)
        ids = [SPECIAL.cls, *a, SPECIAL.sep, *b, SPECIAL.sep]
        assert plan.lengths[i] == len(ids)
        assert rows["input_ids"][i].tolist() == ids + [SPECIAL.pad] * len(padding)
        types = [0] * (len(a) + 2) + [1] * (len(b) + 1)
        assert rows["token_type_ids"][i].tolist() == types + padding
        assert rows["sequence_ids"][i].tolist() == [1] * len(ids) + padding
        assert rows["position_ids"][i].tolist() == list(range(64))
