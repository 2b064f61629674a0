"""Whole-word and span masking: chosen tokens, and words in every kind of vocabulary."""

import numpy as np
import pytest
import scipy.stats

from bert_jax.config import DataConfig
from bert_jax.data import counter_rng
from bert_jax.data.pretraining import masking, span_masking, word_masking
from bert_jax.data.pretraining.batch import Draw
from bert_jax.data.tokenizer.tokenizer import Vocabulary
from bert_jax.data.tokenizer.training import train_tokenizer
from bert_jax.data.tokenizer.words import begins_word
from bert_jax.registry import MASKINGS
from tests.synthetic_corpus import FIRST_WORD, SPECIAL

_SIZE, _LENGTH, _KEY = 1000, 128, 5
# Odd ids continue the word before them.
_VOCABULARY = Vocabulary(SPECIAL, _SIZE, np.arange(_SIZE) % 2 == 0)
_KINDS = ("whole_words", "spans")


def rows_of(number: int, *, pieces: float = 0.4) -> tuple[np.ndarray, np.ndarray]:
    """`[CLS] A [SEP] B [SEP]` of random lengths, in which this share of tokens continues a word."""
    draw = np.random.default_rng(0)
    lengths = draw.integers(12, _LENGTH + 1, number)
    ids = draw.integers(FIRST_WORD // 2 + 1, _SIZE // 2 - 1, (number, _LENGTH)) * 2
    ids += draw.random(ids.shape) < pieces
    ids[np.arange(_LENGTH) >= lengths[:, None]] = SPECIAL.pad
    row = np.arange(number)
    ids[:, 0] = SPECIAL.cls
    ids[row, lengths // 2] = ids[row, lengths - 1] = SPECIAL.sep
    return ids.astype(np.int32), lengths


def draw_of(numbers, *, options=None, max_predictions=20) -> Draw:
    return Draw(
        vocabulary=_VOCABULARY,
        options=options or DataConfig(),
        max_predictions=max_predictions,
        key=_KEY,
        example_numbers=np.asarray(numbers),
    )


def masked(kind: str, ids, lengths, *, first=0, **rest):
    draw = draw_of(first + np.arange(len(ids)), **rest)
    found = MASKINGS[kind]({"input_ids": ids, "lengths": lengths}, draw)
    used = found["mlm_weights"] == 1
    return found, [row[on] for row, on in zip(found["mlm_positions"], used, strict=True)]


def words_of(row: np.ndarray) -> list[list[int]]:
    """The positions of each word, one after the other."""
    words, before = [], True
    for position, token in enumerate(row):
        if token in (SPECIAL.cls, SPECIAL.sep, SPECIAL.pad, SPECIAL.mask):
            before = True
            continue
        if before or token % 2 == 0:
            words.append([])
        words[-1].append(position)
        before = False
    return words


def wanted(row: np.ndarray, length: int) -> int:
    there = sum(map(len, words_of(row)))
    return min(max(1, round(int(length) * 0.15)), 20, there)


def test_words_are_those_of_the_original_loop():
    """`create_masked_lm_predictions` with `do_whole_word_mask`, for the same order of words."""
    ids, lengths = rows_of(300)
    _, found = masked("whole_words", ids, lengths)
    for number, (row, length, positions) in enumerate(zip(ids, lengths, found, strict=True)):
        words, most = words_of(row), wanted(row, int(length))
        key = draw_of([number]).row_keys(masking.ORDER)
        rank = counter_rng.bits(key, np.arange(_LENGTH))[0]
        chosen: list[int] = []
        # The low seven bits of a rank are the word's number.
        for word in sorted(range(len(words)), key=lambda w: (int(rank[w]) >> 7, w)):
            if len(chosen) >= most:
                break
            if len(chosen) + len(words[word]) <= most:
                chosen += words[word]
        assert positions.tolist() == sorted(chosen)
        taken = set(chosen)
        assert all(taken.issuperset(word) or taken.isdisjoint(word) for word in words)
        left = [len(word) for word in words if taken.isdisjoint(word)]
        assert len(chosen) == most or not left or min(left) > most - len(chosen)


def test_spans_are_those_of_the_original_loop():
    ids, lengths = rows_of(300)
    _, found = masked("spans", ids, lengths)
    for number, (row, length, positions) in enumerate(zip(ids, lengths, found, strict=True)):
        words, most = words_of(row), wanted(row, int(length))
        key = draw_of([number]).row_keys(masking.ORDER)[0]
        there = [position for word in words for position in word]
        chosen: set[int] = set()
        for draw in range(10_000):
            if len(chosen) >= most:
                break
            at = counter_rng.randint(counter_rng.bits(key, 2 * draw), len(there))[0]
            if there[at] in chosen:
                continue
            size = span_masking.span_words(counter_rng.bits(key, 2 * draw + 1))[0]
            word = next(n for n, word in enumerate(words) if there[at] in word)
            before = words[word][0] - 1
            for position in (p for w in words[word : word + size] for p in w):
                if len(chosen) >= most or position != before + 1:  # enough, or a special token
                    break
                chosen.add(position)
                before = position
        assert positions.tolist() == sorted(chosen)
        assert len(positions) == most


def test_span_lengths_are_geometric():
    """Joshi et al. 2020: p = 0.2, at most ten words, 3.8 on average."""
    published = [.2241, .1792, .1434, .1147, .0918, .0734, .0587, .0470, .0376, .0301]  # fmt: skip
    drawn = span_masking.span_words(counter_rng.bits(3, np.arange(200_000)))
    counts = np.bincount(drawn, minlength=11)[1:]
    exact = 0.2 * 0.8 ** np.arange(10)
    exact /= exact.sum()
    np.testing.assert_allclose(exact, published, atol=5e-5)
    assert scipy.stats.chisquare(counts, exact * len(drawn)).pvalue > 1e-3
    assert drawn.mean() == pytest.approx(3.797, abs=0.02)


def test_spans_are_replaced_as_a_whole_and_words_by_piece():
    ids, lengths = rows_of(4000)
    for kind in _KINDS:
        found, positions = masked(kind, ids, lengths)
        mixed = kinds = 0
        shares = np.zeros(3)
        for before, after, where in zip(ids, found["input_ids"], positions, strict=True):
            became = np.where(after == SPECIAL.mask, 0, np.where(after == before, 1, 2))[where]
            shares += np.bincount(became, minlength=3)
            pairs = np.flatnonzero(np.diff(where) == 1)
            mixed += int((became[pairs] != became[pairs + 1]).sum())
            kinds += len(pairs)
        shares /= shares.sum()
        np.testing.assert_allclose(shares, [0.8, 0.1, 0.1], atol=0.02)
        # A random token may be the token itself, once in a thousand.
        expected = 1 - (0.8**2 + 2 * 0.1**2) if kind == "whole_words" else 0.0
        assert mixed / kinds == pytest.approx(expected, abs=0.02)


@pytest.mark.parametrize("kind", _KINDS)
def test_edges(kind):
    """A row without candidates, a row with one long word, and a mask of all tokens."""
    ids = np.full((3, 16), SPECIAL.pad, np.int32)
    ids[:, 0] = SPECIAL.cls
    ids[1, 1:15] = FIRST_WORD | 1
    ids[2, 1:15] = np.arange(14) * 2 + 100
    ids[:, 15] = SPECIAL.sep
    lengths = np.array([16, 16, 16])
    _, found = masked(kind, ids, lengths, max_predictions=4)
    # A word that does not fit is skipped; a span is cut.
    assert [len(row) for row in found] == [0, 0 if kind == "whole_words" else 2, 2]
    everything = DataConfig(masked_lm_prob=1.0)
    _, found = masked(kind, ids, lengths, options=everything, max_predictions=14)
    assert [len(row) for row in found] == [0, 14, 14]


@pytest.mark.parametrize("kind", ["tokens", *_KINDS])
@pytest.mark.parametrize("length", [1 << 15, (1 << 15) + 1, 1 << 17])
def test_rows_may_be_of_any_length(kind, length):
    """The positions of a longer row do not fit into 16 bits."""
    ids = np.full((1, length), FIRST_WORD + FIRST_WORD % 2, np.int32)
    ids[:, 0], ids[:, 1:-9], ids[:, -1] = SPECIAL.cls, SPECIAL.mask, SPECIAL.sep
    _, (found,) = masked(kind, ids, np.array([length]), max_predictions=8)
    np.testing.assert_array_equal(found, np.arange(length - 9, length - 1))


# --- words in vocabularies ------------------------------------------------------------------------

_TEXT = [
    "the unhappiest hippopotamus untangled seventeen tangled ropes near the riverside",
    "happily the hippopotamus swam under seventeen bridges and untied nothing",
]


@pytest.mark.parametrize("kind", ["wordpiece", "sentencepiece", "bpe", "characters"])
def test_words_are_found_in_every_kind_of_vocabulary(kind):
    make = {
        "wordpiece": lambda: train_tokenizer("wordpiece", _TEXT * 5, vocab_size=90, lowercase=True),
        "sentencepiece": lambda: train_tokenizer(
            "sentencepiece", _TEXT * 5, vocab_size=45, lowercase=True
        ),
        "bpe": lambda: train_tokenizer("bpe", _TEXT * 5, vocab_size=300),
        "characters": lambda: train_tokenizer("characters", _TEXT, vocab_size=100),
    }
    tokenizer = make[kind]()
    assert tokenizer.kind == kind
    bits = begins_word(tokenizer)
    assert bits.shape == (tokenizer.vocab_size,)
    several = 0
    for text in _TEXT:
        ids = np.array([tokenizer.encode(text)], np.int32)
        is_candidate = masking.candidates(ids, tokenizer.special)
        words = word_masking.words_of(ids, is_candidate, bits)
        assert words.count[0] == len(text.split())
        for number, word in enumerate(text.split()):
            own = ids[0][is_candidate[0] & (words.number[0] == number)]
            assert tokenizer.decode(own.tolist()).strip() == word
            several += len(own) > 1
    assert several > 8
