"""Chooses the tokens to predict, and what stands in their place, for a whole batch at once.

The rule is that of `create_masked_lm_predictions` in google-research/bert
(create_pretraining_data.py), drawn afresh for every example number: an epoch later the same pair
is masked differently. A row's masks depend on its key, its example number and its tokens only.
"""

import numpy as np

from bert_jax.config import DataConfig
from bert_jax.data import counter_rng
from bert_jax.data.tokenizer.tokenizer import SpecialIds


def mask_rows(
    input_ids: np.ndarray,
    lengths: np.ndarray,
    *,
    special: SpecialIds,
    vocab_size: int,
    options: DataConfig,
    max_predictions: int,
    key: int,
    example_numbers: np.ndarray,
) -> dict[str, np.ndarray]:
    """Masks `input_ids` `[R, L]` int32, of which the first `lengths` `[R]` are not padding.

    Of each row min(max_predictions, max(1, round(length * masked_lm_prob))) tokens are predicted,
    [CLS] and [SEP] counted in the length as the original counts them, but [CLS], [SEP], [PAD] and
    [MASK] themselves never. Returns new `input_ids`, and `mlm_positions` (ascending),
    `mlm_targets` (int32) and `mlm_weights` (float32), each `[R, max_predictions]`; 0 after a row's
    last prediction. `key` and `example_numbers` `[R]` decide all draws.
    """
    is_candidate = input_ids != special.pad
    for token in (special.cls, special.sep, special.mask):
        is_candidate &= input_ids != token
    wanted = np.maximum(np.rint(lengths * options.masked_lm_prob).astype(np.int64), 1)
    count = np.minimum(np.minimum(wanted, max_predictions), is_candidate.sum(1))

    order_keys, action_keys, token_keys = (
        counter_rng.bits(counter_rng.derive(key, draw), example_numbers)[:, None]
        for draw in range(3)
    )
    positions = _choose(is_candidate, count, max_predictions, order_keys)
    is_used = np.arange(max_predictions) < count[:, None]
    positions *= is_used  # the rest point at [CLS], and put back what they find there
    originals = np.take_along_axis(input_ids, positions, axis=1)

    action = counter_rng.uniform(counter_rng.bits(action_keys, positions))
    is_mask = (action < options.mask_token_prob) & is_used
    is_other = (action < options.mask_token_prob + options.random_token_prob) & is_used
    others = counter_rng.randint(counter_rng.bits(token_keys, positions), vocab_size)
    replaced = np.where(is_mask, special.mask, np.where(is_other, others, originals))
    masked = input_ids.copy()
    np.put_along_axis(masked, positions, replaced.astype(np.int32), axis=1)
    return {
        "input_ids": masked,
        "mlm_positions": positions.astype(np.int32),
        "mlm_targets": originals * is_used,
        "mlm_weights": is_used.astype(np.float32),
    }


def _choose(
    is_candidate: np.ndarray, count: np.ndarray, max_predictions: int, keys: np.ndarray
) -> np.ndarray:
    """Returns `count` of each row's candidates, without replacement, ascending: int64 `[R, M]`.

    Every position gets a random rank, the lowest ranks win. Columns beyond `count` are arbitrary.
    """
    length = is_candidate.shape[1]
    # The position rides in the low bits, so that a plain sort carries it along.
    low = np.uint64((1 << (length - 1).bit_length()) - 1)
    column = np.arange(length)
    rank = counter_rng.bits(keys, column)
    rank &= ~low
    rank |= column.astype(np.uint64)
    rank[~is_candidate] = ~np.uint64(0)
    rank.sort(axis=1)
    chosen = (rank[:, :max_predictions] & low).astype(np.int64)
    chosen[np.arange(max_predictions) >= count[:, None]] = length  # to the end
    chosen.sort(axis=1)
    return chosen
