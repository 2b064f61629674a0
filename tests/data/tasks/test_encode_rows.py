"""Encoding texts and words as rows of ids, and making batches of rows."""

import contextlib
import itertools
import random
from typing import Any

import numpy as np
import pytest

from bert_jax.data.tasks import encode_rows
from bert_jax.data.tasks.conll import Sentence
from bert_jax.data.tasks.tables import TextRow
from bert_jax.errors import UsageError


def row(*texts: str) -> TextRow:
    return TextRow("file, line 1", texts, None, "0")


def test_a_pair_has_the_layout_of_bert(tokenizer):
    found = encode_rows.encode_texts(
        [row("the cat", "a hat")], tokenizer, length=10, truncation="never"
    )
    tokens = tokenizer.tokens(found.input_ids[0].tolist())
    assert tokens == ["[CLS]", "the", "cat", "[SEP]", "a", "hat", "[SEP]", "[PAD]"]
    assert found.token_type_ids[0].tolist() == [0, 0, 0, 0, 1, 1, 1, 0]
    assert found.lengths.tolist() == [7]


def test_longest_first_cuts_as_the_original_does():
    def one_by_one(a: int, b: int, room: int) -> list[int]:
        while a + b > room:
            a, b = (a - 1, b) if a > b else (a, b - 1)
        return [a, b]

    for a in range(12):
        for b in range(12):
            for room in range(1, 14):
                ours = encode_rows._kept([a, b], room, "longest_first")
                assert ours == one_by_one(a, b, room)


def test_truncations(tokenizer):
    texts = row("the cat sat on mat", "a hat and")
    lengths = {}
    for truncation in ("longest_first", "only_first", "only_second"):
        found = encode_rows.encode_texts([texts], tokenizer, length=9, truncation=truncation)
        types = found.token_type_ids[0]
        lengths[truncation] = (9 - types.sum() - 2, types.sum() - 1)
    assert lengths == {"longest_first": (3, 3), "only_first": (3, 3), "only_second": (5, 1)}
    with pytest.raises(UsageError, match=r"file, line 1: 5 \+ 3 tokens do not fit in 6"):
        encode_rows.encode_texts([texts], tokenizer, length=9, truncation="never")
    with pytest.raises(UsageError, match="do not fit in 2"):
        encode_rows.encode_texts([texts], tokenizer, length=5, truncation="only_second")


@pytest.mark.parametrize(
    "texts, length, least", [(["cat"], 2, 3), (["cat"], -5, 3), (["cat", "hat"], 4, 5)]
)
def test_a_length_has_room_for_a_token_of_each_text(tokenizer, texts, length, least):
    for given in (length, least):
        refused = pytest.raises(UsageError, match=f"`length` {length}: it must be at least {least}")
        with refused if given == length else contextlib.nullcontext():
            encode_rows.encode_texts(
                [row(*texts)], tokenizer, length=given, truncation="longest_first"
            )


def test_arrays_are_as_wide_as_the_longest_row(tokenizer):
    """For any number of positions in the model."""
    rows = [row("cat"), row("the cat sat on the mat " * 2)]
    how: Any = {"tokenizer": tokenizer, "truncation": "longest_first"}
    assert encode_rows.encode_texts(rows, length=1 << 40, **how).input_ids.shape == (2, 16)
    assert encode_rows.encode_texts(rows, length=13, **how).input_ids.shape == (2, 13)
    assert encode_rows.encode_texts(rows, length=32, width=32, **how).input_ids.shape == (2, 32)


def test_a_batch_has_the_needed_length_and_empty_padding(tokenizer):
    rows = [row("cat"), row("the cat sat on the mat"), row("cat " * 20)]
    found = encode_rows.encode_texts(rows, tokenizer, length=32, truncation="longest_first")
    found = encode_rows.Features(
        found.input_ids, found.token_type_ids, found.lengths, np.array([5, 6, 7]), np.ones(3)
    )
    batches = encode_rows.Batches(found, size=3)
    assert batches.lengths == (8, 24)
    short = batches(np.array([0, 1]))
    assert short["input_ids"].shape == (3, 8)
    assert short["weights"].tolist() == [1, 1, 0] and short["labels"].tolist() == [5, 6, 5]
    assert short["sequence_ids"].sum(axis=1).tolist() == [3, 8, 3]
    assert batches(np.array([2]))["input_ids"].shape == (3, 24)


@pytest.mark.parametrize("longest", [5, 8, 60, 61])
def test_lengths_of_batches_waste_the_least(longest):
    """Compared with all possible choices, each tried on many batches."""
    draw = np.random.default_rng(longest)
    lengths = np.minimum(draw.geometric(0.12, 4000) + 2, longest).astype(np.int32)
    ids = np.zeros((len(lengths), 61), np.int32)
    found = encode_rows.batch_lengths(encode_rows.Features(ids, ids, lengths), size=16)
    assert len(found) <= 3 and found[-1] >= lengths.max()
    assert all(n % 8 == 0 or n == 61 for n in found)
    batches = draw.choice(lengths, (20_000, 16)).max(axis=1)

    def tokens(limits):
        return np.asarray(limits)[np.searchsorted(limits, batches)].mean()

    *shorter, last = sorted({min(n, 61) for n in range(8, int(lengths.max()) + 8, 8)})
    others = [(*two, last) for n in (0, 1, 2) for two in itertools.combinations(shorter, n)]
    assert tokens(found) <= min(map(tokens, others)) * 1.01


def test_an_epoch_has_every_row_once_and_its_own_order():
    rows, size = 37, 8
    numbers = np.concatenate(
        [encode_rows.training_rows(step, rows=rows, batch_size=size, seed=1) for step in range(14)]
    )
    first, second = numbers[:rows], numbers[rows : 2 * rows]
    assert sorted(first) == sorted(second) == list(range(rows))
    assert first.tolist() != second.tolist()
    other = encode_rows.training_rows(0, rows=rows, batch_size=size, seed=2)
    assert other.tolist() != numbers[:size].tolist()


def test_the_first_sub_word_carries_the_label(tokenizer):
    sentence = Sentence("here", ("the", "cats", "played", "\u200b"), ("O", "B-x", "I-x", "O"))
    found = encode_rows.encode_words([sentence], tokenizer, length=10, labels=["O", "B-x", "I-x"])
    tokens = tokenizer.tokens(found.features.input_ids[0].tolist())[:7]
    assert tokens == ["[CLS]", "the", "cats", "play", "##ed", "[UNK]", "[SEP]"]
    assert found.words[0, :7].tolist() == [-1, 0, 1, 2, -1, 3, -1]
    assert found.features.labels[0, :7].tolist() == [0, 0, 1, 2, 0, 0, 0]
    assert found.features.weights[0, :7].tolist() == [0, 1, 1, 1, 0, 1, 0]


def test_long_sentences_keep_all_words(tokenizer):
    draw = random.Random(0)
    sentences = [
        Sentence("here", tuple(draw.choice(("the", "played", "cats")) for _ in range(n)), None)
        for n in (1, 6, 7, 40)
    ]
    found = encode_rows.encode_words(sentences, tokenizer, length=8, labels=None)
    for number, sentence in enumerate(sentences):
        words = found.words[found.sentences == number]
        assert words[words >= 0].tolist() == list(range(len(sentence.words)))
    with pytest.raises(UsageError, match="the tag 'B-y' does not occur in the training file"):
        known = [Sentence("here", ("the",), ("B-y",))]
        encode_rows.encode_words(known, tokenizer, length=8, labels=["O"])
