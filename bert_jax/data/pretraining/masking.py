"""Chooses the tokens to predict and their replacements, for a whole batch at once.

The rule is that of `create_masked_lm_predictions` in google-research/bert
(create_pretraining_data.py). Masks are drawn for each example number, so that a pair is masked
differently in each epoch. The masks of a row depend only on its key, example number and tokens.
"""

import numpy as np

from bert_jax.data import counter_rng
from bert_jax.data.pretraining.batch import Batch, Draw
from bert_jax.data.tokenizer.tokenizer import SpecialIds

# The purposes of a mask's draws.
ORDER, _ACTION, _TOKEN = range(3)


def mask_rows(rows: Batch, draw: Draw) -> Batch:
    """Masks `input_ids` `[R, L]` int32 of `rows`; the first `lengths` `[R]` tokens of each row are
    not padding.

    In each row, min(max_predictions, max(1, round(length * masked_lm_prob))) tokens are predicted.
    As in Google's code, the length includes [CLS] and [SEP], but [CLS], [SEP], [PAD] and [MASK] are
    never predicted. Returns new `input_ids`, and `mlm_positions` (ascending), `mlm_targets` (int32)
    and `mlm_weights` (float32), each `[R, max_predictions]`; 0 after the last prediction of a row.
    """
    input_ids = rows["input_ids"]
    is_candidate = candidates(input_ids, draw.vocabulary.special)
    count = wanted(rows["lengths"], is_candidate, draw)
    positions = _choose(is_candidate, count, draw)
    return replace(input_ids, positions, count, draw)


def candidates(input_ids: np.ndarray, special: SpecialIds) -> np.ndarray:
    """Returns which tokens may be predicted: bool `[R, L]`."""
    is_candidate = input_ids != special.pad
    for token in (special.cls, special.sep, special.mask):
        is_candidate &= input_ids != token
    return is_candidate


def wanted(lengths: np.ndarray, is_candidate: np.ndarray, draw: Draw) -> np.ndarray:
    """Returns how many tokens of each row are to be predicted: int64 `[R]`."""
    share = np.maximum(np.rint(lengths * draw.options.masked_lm_prob).astype(np.int64), 1)
    return np.minimum(np.minimum(share, draw.max_predictions), is_candidate.sum(1))


def replace(
    input_ids: np.ndarray,
    positions: np.ndarray,
    count: np.ndarray,
    draw: Draw,
    *,
    decided_at: np.ndarray | None = None,
) -> Batch:
    """Returns the result of `mask_rows` for chosen `positions` `[R, M]`, ascending, the first
    `count` `[R]` of which are valid.

    Each position draws the replacement of its token: [MASK], a random token, or the token itself.
    `decided_at` `[R, L]` gives the position that draws for each position, such as a span's first.
    """
    vocabulary, options = draw.vocabulary, draw.options
    is_used = np.arange(positions.shape[1]) < count[:, None]
    positions = positions * is_used  # the others point at [CLS], which they write back unchanged
    originals = np.take_along_axis(input_ids, positions, axis=1)
    deciding = positions
    if decided_at is not None:
        deciding = np.take_along_axis(decided_at, positions, axis=1)
    action = counter_rng.uniform(draw.position_keys(_ACTION, deciding))
    is_mask = (action < options.mask_token_prob) & is_used
    is_other = (action < options.mask_token_prob + options.random_token_prob) & is_used
    others = counter_rng.randint(draw.position_keys(_TOKEN, positions), vocabulary.size)
    replaced = np.where(is_mask, vocabulary.special.mask, np.where(is_other, others, originals))
    masked = input_ids.copy()
    np.put_along_axis(masked, positions, replaced.astype(np.int32), axis=1)
    return {
        "input_ids": masked,
        "mlm_positions": positions.astype(np.int32),
        "mlm_targets": originals * is_used,
        "mlm_weights": is_used.astype(np.float32),
    }


def positions_of(is_chosen: np.ndarray, max_predictions: int) -> np.ndarray:
    """Returns the chosen positions of each row, ascending: int64 `[R, M]`; then other positions."""
    length = is_chosen.shape[1]
    kind = np.int16 if length <= 1 << 15 else np.int32  # the smaller type sorts faster
    columns = np.where(is_chosen, np.arange(length, dtype=kind), kind(length - 1))
    columns.sort(axis=1)
    return columns[:, :max_predictions].astype(np.int64)


def _choose(is_candidate: np.ndarray, count: np.ndarray, draw: Draw) -> np.ndarray:
    """Returns `count` of each row's candidates, without replacement, ascending: int64 `[R, M]`.

    Columns beyond `count` are arbitrary.
    """
    most = draw.max_predictions
    chosen = shuffled(is_candidate, draw, most=most)
    chosen[np.arange(most) >= count[:, None]] = is_candidate.shape[1]  # to the end
    chosen.sort(axis=1)
    return chosen


def shuffled(is_there: np.ndarray, draw: Draw, *, most: int) -> np.ndarray:
    """Returns up to `most` of the columns that are true in each row, in random order: int64.

    Every column gets a random rank, and the lowest ranks come first. Later columns are arbitrary.
    """
    length = is_there.shape[1]
    # The low bits hold the column, so that a plain sort moves it with the rank. The number of bits
    # fits a full row even if rows are cut: the order stays the same.
    low = np.uint64((1 << (max(length, draw.sequence_length) - 1).bit_length()) - 1)
    column = np.arange(length)
    rank = counter_rng.bits(draw.row_keys(ORDER), column)
    rank &= ~low
    rank |= column.astype(np.uint64)
    rank[~is_there] = ~np.uint64(0)
    rank.sort(axis=1)
    return np.minimum((rank[:, :most] & low).astype(np.int64), length - 1)
