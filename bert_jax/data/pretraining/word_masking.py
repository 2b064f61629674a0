"""Chooses whole words to predict, as in BERT-Large (Whole Word Masking).

The rule is `do_whole_word_mask` of google-research/bert create_pretraining_data.py: the words of a
row are taken in random order; a word is chosen if all of its pieces still fit. Each piece draws its
replacement independently.
"""

from typing import NamedTuple

import numpy as np

from bert_jax.data.pretraining import masking
from bert_jax.data.pretraining.batch import Batch, Draw


class Words(NamedTuple):
    """The words of rows. `number` `[R, L]` is the word index of each candidate, from 0; `count`
    `[R]` the number of words; `first` and `size` `[R, L]` are the first position and the number of
    pieces of each word, L and 0 after the last word.
    """

    number: np.ndarray
    count: np.ndarray
    first: np.ndarray
    size: np.ndarray


def words_of(input_ids: np.ndarray, is_candidate: np.ndarray, begins_word: np.ndarray) -> Words:
    """Finds the words in `input_ids` `[R, L]`.

    Every piece that follows a special token begins a word. (Google's code adds it to the word
    before that token.)
    """
    follows = np.zeros_like(is_candidate)
    follows[:, 1:] = is_candidate[:, :-1]
    begins = is_candidate & (begins_word[input_ids] | ~follows)
    number = np.cumsum(begins, axis=1, dtype=np.int64) - 1
    rows, length = input_ids.shape
    flat = (number + length * np.arange(rows)[:, None])[is_candidate]
    size = np.bincount(flat, minlength=rows * length).reshape(rows, length)
    first = np.full((rows, length), length)
    row, at = np.nonzero(begins)
    first[row, number[row, at]] = at
    return Words(np.maximum(number, 0), begins.sum(1), first, size)


def mask_words(rows: Batch, draw: Draw) -> Batch:
    """Masks whole words, and returns the result of `masking.mask_rows`. Its number of predictions
    is an upper bound: a word that no longer fits is skipped.
    """
    vocabulary, input_ids = draw.vocabulary, rows["input_ids"]
    assert vocabulary.begins_word is not None
    is_candidate = masking.candidates(input_ids, vocabulary.special)
    most = masking.wanted(rows["lengths"], is_candidate, draw)
    words = words_of(input_ids, is_candidate, vocabulary.begins_word)
    taken, total = _take(words, most, draw)
    is_chosen = np.take_along_axis(taken, words.number, axis=1) & is_candidate
    return masking.replace(
        input_ids,
        masking.positions_of(is_chosen, draw.max_predictions),
        total,
        draw,
    )


def _take(words: Words, most: np.ndarray, draw: Draw) -> tuple[np.ndarray, np.ndarray]:
    """Returns the chosen words, bool `[R, L]` by word index, and their number of pieces."""
    rows, length = words.size.shape
    is_word = np.arange(length) < words.count[:, None]
    order = masking.shuffled(is_word, draw, most=length)
    sizes = np.take_along_axis(words.size, order, axis=1)
    total, fits = np.zeros(rows, np.int64), np.zeros((rows, length), bool)
    for turn in range(int(words.count.max(initial=0))):
        fits[:, turn] = (turn < words.count) & (total + sizes[:, turn] <= most)
        total += sizes[:, turn] * fits[:, turn]
        if (total == most).all():
            break
    taken = np.zeros((rows, length), bool)
    row, turn = np.nonzero(fits)
    taken[row, order[row, turn]] = True
    return taken, total
