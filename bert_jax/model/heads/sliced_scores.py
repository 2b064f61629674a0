"""Scores over the vocabulary that the loss computes in slices, once in the forward and once in the
backward pass, so that they are never stored completely.

Dims: B batch, M masked positions, N = B M on one device, D width, V vocabulary on one device, C
tokens of a slice.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from bert_jax.model.sharding import (
    BATCH,
    axes_summed_late,
    highest_over,
    index_along,
    on_each_device,
    spec_of,
    sum_over,
)

# Below any score, and finite: the difference of two of them is not NaN.
_LOWEST = jnp.finfo(jnp.float32).min


class SlicedScores(NamedTuple):
    """The factors of scores `[B, M, V]`: `x_BMD` times `table_VD`, and `bias_V` added.

    The table is sharded as by `layers.split_rows`, and so is the bias, in float32.
    """

    x_BMD: jax.Array
    table_VD: jax.Array
    bias_V: jax.Array
    # Slices of the vocabulary on each device.
    slices: int

    def cross_entropy(self, targets_BM: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Returns the results of `losses.cross_entropy_and_normaliser` for the scores."""
        return _cross_entropy(self.x_BMD, self.table_VD, self.bias_V, targets_BM, self.slices)


@partial(jax.custom_vjp, nondiff_argnums=(4,))
def _cross_entropy(x_BMD, table_VD, bias_V, targets_BM, slices):
    return _forward(x_BMD, table_VD, bias_V, targets_BM, slices)[0]


def _forward(x_BMD, table_VD, bias_V, targets_BM, slices) -> tuple[Any, Any]:
    rows, table, words = _partitions(x_BMD, table_VD)
    local = on_each_device(
        partial(_local_forward, slices=slices), takes=(rows, table, words, rows), gives=rows
    )
    loss, hits, log_normaliser = local(x_BMD, table_VD, bias_V, targets_BM)
    kept = (x_BMD, table_VD, bias_V, targets_BM, log_normaliser)
    return (loss, hits, log_normaliser), kept


def _backward(slices, kept, cotangents) -> tuple:
    rows, table, words = _partitions(*kept[:2])
    late = axes_summed_late(kept[1])
    local = on_each_device(
        partial(_local_backward, slices=slices, is_summed_late=bool(late)),
        takes=(rows, table, words, *(rows,) * 4),
        gives=(rows, words.update(unreduced=late), words),
    )
    of_loss, _, of_normaliser = cotangents
    return *local(*kept, of_loss, of_normaliser), None


_cross_entropy.defvjp(_forward, _backward)


def _partitions(x_BMD: jax.Array, table_VD: jax.Array) -> tuple[jax.P, jax.P, jax.P]:
    """Returns the partitions of rows, of the table, and of vectors over the vocabulary."""
    words = jax.P(spec_of(table_VD)[0])
    return jax.P(spec_of(x_BMD)[0]), words.update(reduced=axes_summed_late(table_VD)), words


def _local_forward(x_BMD, table_VD, bias_V, targets_BM, *, slices) -> tuple[jax.Array, ...]:
    """Accumulates the normalizer slice by slice, relative to the highest score so far."""
    x_ND, targets_N = x_BMD.reshape(-1, x_BMD.shape[-1]), targets_BM.reshape(-1)

    def add(sums, number):
        highest_N, total_N, chosen_N = sums
        _, _, scores_NC, word_C = _slice(number, x_ND, table_VD, bias_V, slices)
        higher_N = jnp.maximum(highest_N, jnp.max(scores_NC, axis=-1))
        total_N = total_N * jnp.exp(highest_N - higher_N)
        total_N += jnp.sum(jnp.exp(scores_NC - higher_N[:, None]), axis=-1)
        is_target_NC = targets_N[:, None] == word_C
        chosen_N += jnp.sum(jnp.where(is_target_NC, scores_NC, 0.0), axis=-1)
        return (higher_N, total_N, chosen_N), None

    zeros_N = jnp.zeros(targets_N.shape, jnp.float32)
    first = (jnp.full_like(zeros_N, _LOWEST), zeros_N, zeros_N)
    (own_N, total_N, chosen_N), _ = jax.lax.scan(add, first, jnp.arange(slices))
    highest_N = highest_over("tensor", own_N)
    total_N = sum_over("tensor", total_N * jnp.exp(own_N - highest_N))
    chosen_N = sum_over("tensor", chosen_N)
    log_normaliser_N = highest_N + jnp.log(total_N)
    hits_N = (chosen_N >= highest_N).astype(jnp.float32)
    found = (log_normaliser_N - chosen_N, hits_N, log_normaliser_N)
    return tuple(each.reshape(targets_BM.shape) for each in found)


def _local_backward(
    x_BMD,
    table_VD,
    bias_V,
    targets_BM,
    log_normaliser_BM,
    of_loss_BM,
    of_normaliser_BM,
    *,
    slices,
    is_summed_late,
) -> tuple[jax.Array, ...]:
    """The derivative of a score is as in `losses`; each row of the table belongs to one slice."""
    x_ND = x_BMD.reshape(-1, x_BMD.shape[-1])
    targets_N1, log_normaliser_N1, of_loss_N1, of_normaliser_N1 = (
        each.reshape(-1, 1)
        for each in (targets_BM, log_normaliser_BM, of_loss_BM, of_normaliser_BM)
    )

    def add(gradients, number):
        dx_ND, dtable_VD, dbias_V = gradients
        begin, rows_CD, scores_NC, word_C = _slice(number, x_ND, table_VD, bias_V, slices)
        d_NC = jnp.exp(scores_NC - log_normaliser_N1) * (of_loss_N1 + of_normaliser_N1)
        d_NC -= jnp.where(targets_N1 == word_C, of_loss_N1, 0.0)
        rounded_NC = d_NC.astype(x_ND.dtype)
        dx_ND += _product(rounded_NC, rows_CD, 1, 0)
        drows_CD = _product(rounded_NC, x_ND, 0, 0)
        if not is_summed_late:
            # Summed before rounding, as with unsliced scores.
            drows_CD = sum_over(BATCH, drows_CD)
        return (dx_ND, _add(dtable_VD, drows_CD, begin), _add(dbias_V, d_NC.sum(0), begin)), None

    zeros = (jnp.zeros(x_ND.shape, jnp.float32), jnp.zeros_like(table_VD), jnp.zeros_like(bias_V))
    (dx_ND, dtable_VD, dbias_V), _ = jax.lax.scan(add, zeros, jnp.arange(slices))
    dx_BMD = sum_over("tensor", dx_ND).astype(x_BMD.dtype).reshape(x_BMD.shape)
    return dx_BMD, dtable_VD, sum_over(BATCH, dbias_V)


def _slice(
    number: jax.Array, x_ND: jax.Array, table_VD: jax.Array, bias_V: jax.Array, slices: int
) -> tuple[jax.Array, ...]:
    """Returns the first row of a slice, its rows `[C, D]`, its scores `[N, C]` and token ids `[C]`.

    If the slices do not divide the vocabulary, the last one starts earlier, so that all have the
    same size. Tokens that it repeats get the id -1 and the score -inf.
    """
    words = table_VD.shape[0]
    size = -(-words // slices)
    begin = jnp.minimum(number * size, words - size)
    rows_CD, bias_C = (jax.lax.dynamic_slice_in_dim(x, begin, size) for x in (table_VD, bias_V))
    place_C = begin + jnp.arange(size)
    is_new_C = place_C >= number * size
    word_C = jnp.where(is_new_C, place_C + index_along("tensor") * words, -1)
    scores_NC = _product(x_ND, rows_CD, 1, 1) + bias_C
    return begin, rows_CD, jnp.where(is_new_C, scores_NC, -jnp.inf), word_C


def _product(a: jax.Array, b: jax.Array, of_a: int, of_b: int) -> jax.Array:
    """Returns the product of two matrices over one dim of each, float32."""
    dims = (((of_a,), (of_b,)), ((), ()))
    return jax.lax.dot_general(a, b, dims, preferred_element_type=jnp.float32)


def _add(whole: jax.Array, part: jax.Array, begin: jax.Array) -> jax.Array:
    """Returns `whole` with `part` added to the rows from `begin`."""
    there = jax.lax.dynamic_slice_in_dim(whole, begin, len(part))
    return jax.lax.dynamic_update_slice_in_dim(whole, there + part.astype(whole.dtype), begin, 0)
