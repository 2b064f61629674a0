"""Chooses spans of whole words to predict: SpanBERT's masks (Joshi et al. 2020, section 3.1).

As in facebookresearch/SpanBERT (pretraining/fairseq/data/masking.py), a token is drawn; if it is
not masked yet, a span starts at the first token of its word and has a geometric number of words
(p = 0.2, at most 10). Spans are drawn until enough tokens are masked; the last span is cut, if
necessary inside a word. Adjacent spans form one span, and one draw replaces all tokens of a span.
"""

import numpy as np

from bert_jax.data import counter_rng
from bert_jax.data.pretraining import masking, word_masking
from bert_jax.data.pretraining.batch import Batch, Draw

_P, _LONGEST = 0.2, 10
_SHARES = _P * (1 - _P) ** np.arange(_LONGEST)
# The probability of at most 1, 2, ..., 10 words.
_UP_TO = np.cumsum(_SHARES / _SHARES.sum())
# The limit of draws per token of a row, after which a row may have fewer predictions: covering
# nearly all tokens would need many draws.
_MOST_DRAWS = 8


def mask_spans(rows: Batch, draw: Draw) -> Batch:
    """Masks spans of words, and returns the result of `masking.mask_rows`.

    The number of predicted tokens is the same; no span contains a special token.
    """
    vocabulary, input_ids = draw.vocabulary, rows["input_ids"]
    assert vocabulary.begins_word is not None
    is_candidate = masking.candidates(input_ids, vocabulary.special)
    most = masking.wanted(rows["lengths"], is_candidate, draw)
    words = word_masking.words_of(input_ids, is_candidate, vocabulary.begins_word)
    is_chosen = _draw_spans(is_candidate, words, most, draw.row_keys(masking.ORDER))
    column = np.arange(input_ids.shape[1])
    begins = is_chosen.copy()
    begins[:, 1:] &= ~is_chosen[:, :-1]
    first = np.maximum.accumulate(np.where(begins, column, 0), axis=1)
    return masking.replace(
        input_ids,
        masking.positions_of(is_chosen, draw.max_predictions),
        is_chosen.sum(1),
        draw,
        decided_at=first,
    )


def span_words(random_bits: np.ndarray) -> np.ndarray:
    """Returns the number of words of each span: int64 from 1 to 10, 3.8 on average."""
    return np.searchsorted(_UP_TO[:-1], counter_rng.uniform(random_bits), side="right") + 1


def _draw_spans(
    is_candidate: np.ndarray, words: word_masking.Words, most: np.ndarray, keys: np.ndarray
) -> np.ndarray:
    """Returns which tokens are in spans, bool `[R, L]`: `most` of each row."""
    length = is_candidate.shape[1]
    column = np.arange(length)
    # The candidates of each row, moved to the front; and the end of the run that contains each.
    there = masking.positions_of(is_candidate, length)
    ends = np.where(is_candidate, length, column)[:, ::-1]
    ends = np.minimum.accumulate(ends, axis=1)[:, ::-1]

    number = is_candidate.sum(1)
    is_chosen = np.zeros_like(is_candidate)
    left = most.copy()
    rows = np.arange(len(left))
    for draw in range(_MOST_DRAWS * length):
        rows = rows[left[rows] > 0]
        if not rows.size:
            break
        random = counter_rng.bits(keys[rows, 0], 2 * draw)
        anchor = there[rows, counter_rng.randint(random, number[rows])]
        is_new = ~is_chosen[rows, anchor]
        drawn, anchor = rows[is_new], anchor[is_new]
        word = words.number[drawn, anchor]
        after = word + span_words(counter_rng.bits(keys[drawn, 0], 2 * draw + 1))
        begin = words.first[drawn, word]
        # Where the word after the last one begins, or L.
        end = words.first[drawn, np.minimum(after, length - 1)]
        end = np.minimum(end, ends[drawn, anchor])
        # Most spans are short, so only the longest span's width is examined.
        window = begin[:, None] + np.arange(int((end - begin).max(initial=0)))
        inside = np.minimum(window, length - 1)
        span = (window < end[:, None]) & ~is_chosen[drawn[:, None], inside]
        span &= np.cumsum(span, axis=1) <= left[drawn][:, None]
        row, at = np.nonzero(span)
        is_chosen[drawn[row], window[row, at]] = True
        left[drawn] -= span.sum(1)
    return is_chosen
