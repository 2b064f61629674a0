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


def document_of(split: Split, token: np.ndarray) -> np.ndarray:
    sentence = np.searchsorted(split.sentence_starts, token, side="right") - 1
    return np.searchsorted(split.document_starts, sentence, side="right") - 1


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


@pytest.mark.parametrize("sequence_length", [8, 32, 128])
def test_equals_the_original_token_by_token(sequence_length: int):
    split = random_split(120, mean_sentences=8, mean_tokens=9)
    assert_equals_original(split, DataConfig(short_seq_prob=0.3), sequence_length, key=5)


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


def test_pairs_fit_and_no_segment_is_empty():
    split = random_split(3000, mean_sentences=6, mean_tokens=30)
    for sequence_length in (8, 128, 512):
        plan = plan_pairs(split, options=DataConfig(), sequence_length=sequence_length, key=1)
        assert plan.a_length.min() >= 1 and plan.b_length.min() >= 1
        assert (plan.a_length + plan.b_length).max() == sequence_length - NUM_SPECIAL
        for start, length in ((plan.a_start, plan.a_length), (plan.b_start, plan.b_length)):
            # Each segment is inside one document.
            assert np.array_equal(document_of(split, start), document_of(split, start + length - 1))
        same = document_of(split, plan.a_start) == document_of(split, plan.b_start)
        assert np.array_equal(same, ~plan.is_random)
        follows = plan.b_start >= plan.a_start + plan.a_length
        assert follows[~plan.is_random].all()


def test_another_key_is_another_epoch_and_the_same_key_the_same():
    split = random_split(500)
    plans = [
        plan_pairs(split, options=DataConfig(), sequence_length=128, key=key) for key in (1, 1, 2)
    ]
    assert np.array_equal(plans[0].b_start, plans[1].b_start)
    size = min(len(plan.a_start) for plan in plans)
    assert (plans[0].b_start[:size] != plans[2].b_start[:size]).mean() > 0.9


def first_pairs(split: Split, plan: Pairs) -> np.ndarray:
    """Index of the first pair of every document."""
    return np.unique(document_of(split, plan.a_start), return_index=True)[1]


def test_half_of_the_second_segments_are_random():
    """First chunks of documents of short sentences: never forced, and independent."""
    split = split_from_lengths(np.ones(400_000, np.int64), np.full(20_000, 20))
    plan = plan_pairs(split, options=DataConfig(), sequence_length=16, key=3)
    first = first_pairs(split, plan)
    assert first.size == 20_000
    assert abs(plan.is_random[first].sum() - 10_000) < Z * math.sqrt(20_000 / 4)


@pytest.mark.parametrize("probability", [0.0, 1.0])
def test_random_next_prob_is_an_option(probability: float):
    split = random_split(500, mean_tokens=5)
    options = DataConfig(random_next_prob=probability)
    plan = plan_pairs(split, options=options, sequence_length=128, key=3)
    # A chunk of one sentence has no continuation: random even if random_next_prob is 0.
    assert plan.is_random.all() if probability else 0 < plan.is_random.mean() < 0.2


def test_one_document_in_ten_is_short():
    """Documents of one-token sentences: the first pair has exactly the target length."""
    documents, sentences, sequence_length = 40_000, 30, 20
    max_tokens = sequence_length - NUM_SPECIAL
    split = split_from_lengths(
        np.ones(documents * sentences, np.int64), np.full(documents, sentences)
    )
    plan = plan_pairs(split, options=DataConfig(), sequence_length=sequence_length, key=4)
    first = first_pairs(split, plan)
    first = first[~plan.is_random[first]]
    length = plan.a_length[first] + plan.b_length[first]
    counts = np.bincount(length, minlength=max_tokens + 1)[2:]
    each = 0.1 / (max_tokens - 1)  # 2 to max_tokens, the maximum included, as in the original
    for count, share in zip(counts, [each] * (max_tokens - 2) + [0.9 + each], strict=True):
        assert abs(count - first.size * share) < Z * math.sqrt(first.size * share * (1 - share))


def test_random_segments_come_from_all_other_documents_alike():
    documents = 25
    split = split_from_lengths(np.full(documents * 400, 3), np.full(documents, 400))
    offsets = []
    for key in range(40):
        plan = plan_pairs(split, options=DataConfig(), sequence_length=64, key=key)
        own = document_of(split, plan.a_start[plan.is_random])
        other = document_of(split, plan.b_start[plan.is_random])
        offsets.append((other - own) % documents)
    counts = np.bincount(np.concatenate(offsets), minlength=documents)
    assert counts[0] == 0
    total, share = counts.sum(), 1 / (documents - 1)
    assert np.abs(counts[1:] - total * share).max() < Z * math.sqrt(total * share * (1 - share))


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
