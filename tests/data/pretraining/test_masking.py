"""Masked tokens: their number, selection and replacements."""

import math

import numpy as np
import pytest

from bert_jax.config import DataConfig
from bert_jax.data import counter_rng
from bert_jax.data.pretraining.batch import Draw
from bert_jax.data.pretraining.masking import mask_rows
from bert_jax.data.tokenizer.tokenizer import Vocabulary
from tests.synthetic_corpus import FIRST_WORD, SPECIAL

VOCAB_SIZE = 1000
# Tolerated standard deviations. At 4.5, one correct statistic in 150,000 would fail.
Z = 4.5


def within(hits: int, trials: int, probability: float) -> bool:
    """A binomial count is within Z standard deviations of its mean."""
    spread = math.sqrt(trials * probability * (1 - probability))
    return abs(hits - trials * probability) < Z * spread


def make_rows(lengths: np.ndarray, row_length: int) -> np.ndarray:
    """`[CLS] words [SEP] words [SEP]` of the given lengths, without special tokens as words."""
    shape = (lengths.size, row_length)
    words = counter_rng.bits(11, np.arange(lengths.size * row_length)).reshape(shape)
    ids = (FIRST_WORD + counter_rng.randint(words, VOCAB_SIZE - FIRST_WORD)).astype(np.int32)
    ids[np.arange(row_length) >= lengths[:, None]] = SPECIAL.pad
    rows = np.arange(lengths.size)
    ids[:, 0] = SPECIAL.cls
    ids[rows, lengths // 2] = SPECIAL.sep
    ids[rows, lengths - 1] = SPECIAL.sep
    return ids


def mask(ids, lengths, *, first=0, max_predictions=20, options=None, key=1):
    draw = Draw(
        vocabulary=Vocabulary(SPECIAL, VOCAB_SIZE),
        options=options or DataConfig(),
        max_predictions=max_predictions,
        key=key,
        example_numbers=first + np.arange(len(ids)),
    )
    return mask_rows({"input_ids": ids, "lengths": lengths}, draw)


def test_number_of_predictions_is_the_original_formula():
    lengths = np.arange(5, 129)
    masked = mask(make_rows(lengths, 128), lengths, max_predictions=16)
    for length, row in zip(lengths, masked["mlm_weights"], strict=True):
        assert row.sum() == min(16, max(1, round(int(length) * 0.15)))
        assert (np.diff(row) <= 0).all()


def test_targets_restore_the_row_and_nothing_else_changes():
    lengths = np.array([128, 60, 5, 33] * 50)
    ids = make_rows(lengths, 128)
    before = ids.copy()
    masked = mask(ids, lengths)
    assert np.array_equal(ids, before)
    restored = masked["input_ids"].copy()
    for row, positions, targets, weights in zip(
        restored,
        masked["mlm_positions"],
        masked["mlm_targets"],
        masked["mlm_weights"],
        strict=True,
    ):
        used = weights == 1
        assert (np.diff(positions[used]) > 0).all()
        assert (positions[~used] == 0).all() and (targets[~used] == 0).all()
        row[positions[used]] = targets[used]
    assert np.array_equal(restored, ids)


def test_special_tokens_are_never_predicted_wherever_they_stand():
    lengths = np.full(400, 64)
    ids = make_rows(lengths, 64)
    for position, token in enumerate((SPECIAL.cls, SPECIAL.sep, SPECIAL.mask, SPECIAL.pad), 10):
        ids[:, position] = token
    masked = mask(ids, lengths)
    targets = masked["mlm_targets"][masked["mlm_weights"] == 1]
    assert targets.size == 400 * 10
    assert not np.isin(targets, [SPECIAL.cls, SPECIAL.sep, SPECIAL.mask, SPECIAL.pad]).any()


def test_rows_with_too_few_candidates_predict_all_of_them():
    lengths = np.array([5, 5])
    ids = make_rows(lengths, 8)
    ids[1, [1, 3]] = SPECIAL.mask
    masked = mask(ids, lengths, max_predictions=4, options=DataConfig(masked_lm_prob=1.0))
    assert masked["mlm_weights"].sum(axis=1).tolist() == [2, 0]
    assert masked["mlm_positions"][0].tolist() == [1, 3, 0, 0]
    assert np.array_equal(masked["input_ids"][1], ids[1])


def before_and_after(lengths: np.ndarray, options: DataConfig) -> tuple[np.ndarray, np.ndarray]:
    """The predicted tokens, and what replaces them."""
    masked = mask(make_rows(lengths, 128), lengths, options=options)
    used = masked["mlm_weights"] == 1
    now = np.take_along_axis(masked["input_ids"], masked["mlm_positions"], axis=1)
    return masked["mlm_targets"][used], now[used]


def test_random_words_come_from_the_whole_vocabulary():
    """Special ids included, as in the original."""
    targets, now = before_and_after(np.full(10_000, 128), DataConfig())
    other = now[(now != SPECIAL.mask) & (now != targets)]
    assert within(other.size, 19 * 10_000, 0.1 * (1 - 2 / VOCAB_SIZE))
    counts = np.bincount(other, minlength=VOCAB_SIZE)
    counts = np.delete(counts, SPECIAL.mask)
    share = 1 / (VOCAB_SIZE - 1)
    spread = math.sqrt(other.size * share)
    assert np.abs(counts - other.size * share)[FIRST_WORD:].max() < (Z + 1) * spread
    assert within(counts[: FIRST_WORD - 1].sum(), other.size, (FIRST_WORD - 1) * share)


@pytest.mark.parametrize(
    ("mask_prob", "random_prob"), [(1.0, 0.0), (0.0, 1.0), (0.0, 0.0), (0.5, 0.5), (0.8, 0.1)]
)
def test_replacement_probabilities_are_options(mask_prob: float, random_prob: float):
    options = DataConfig(mask_token_prob=mask_prob, random_token_prob=random_prob)
    targets, now = before_and_after(np.full(2000, 128), options)
    is_mask = mask_prob + random_prob / VOCAB_SIZE
    is_same = 1 - mask_prob - random_prob * (1 - 1 / VOCAB_SIZE)
    for hits, probability in (((now == SPECIAL.mask), is_mask), ((now == targets), is_same)):
        if probability in (0, 1):
            assert hits.mean() == probability
        else:
            assert within(hits.sum(), now.size, probability)


def test_every_position_is_as_likely():
    lengths = np.full(20_000, 64)
    ids = make_rows(lengths, 64)
    masked = mask(ids, lengths, max_predictions=10)
    hits = np.bincount(masked["mlm_positions"][masked["mlm_weights"] == 1], minlength=64)
    words = ids[0] >= FIRST_WORD
    assert (hits[~words] == 0).all()
    # A row masks a position at most once: counts are binomial in the rows.
    assert all(within(count, 20_000, 10 / 61) for count in hits[words])
    # Pairs of neighbors are masked together as often as in sampling without replacement.
    chosen = np.zeros((20_000, 64), bool)
    np.put_along_axis(chosen, masked["mlm_positions"].astype(np.int64), True, axis=1)
    both = chosen[:, 1:31] & chosen[:, 2:32]
    for count in both.sum(axis=0):
        assert within(count, 20_000, 10 * 9 / (61 * 60))


def test_a_run_says_that_it_has_too_little_room(corpus, tmp_path, monkeypatch, capsys):
    from bert_jax.__main__ import main
    from bert_jax.errors import UsageError

    def stop(*_, **__):
        raise UsageError("far enough")

    monkeypatch.setattr("bert_jax.memory.fit.settle", stop)
    # A higher mask rate, with the slots of a config for the old rate.
    command = ["pretrain", "tiny_docs_cpu", "--corpus", str(corpus), "--workdir", str(tmp_path)]
    small = ["--set", "phases.1.max_predictions=10"]
    assert main([*command, *small, "--set", "data.masked_lm_prob=0.4"]) == 2
    said = capsys.readouterr().err
    assert "warning: phases.1.max_predictions is 10: a full row of 64 has 15.6 %" in said
    assert "(data.masked_lm_prob); --set phases.1.max_predictions=26\n" in said
    assert main(command) == 2
    assert "max_predictions" not in capsys.readouterr().err
