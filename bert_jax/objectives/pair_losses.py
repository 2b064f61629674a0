"""Losses of the vectors of texts: the kinds of `embedding.loss`.

Each is a pure function of the vectors of a global batch, in float32. The formulas and their numbers
are those of sentence-transformers 6.2 (sentence_transformer/losses/).

Dims: N examples (a query and its documents), C documents of an example, the first one its own, M =
N x C documents of the batch, K columns of a softmax, D width of a vector.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from bert_jax.config.embedding import InfoNCE, PairLoss
from bert_jax.config.fields import Positive, section, setting
from bert_jax.model.microbatches import in_microbatches, joined_microbatches
from bert_jax.model.sharding import (
    batch_spec,
    laid_out,
    on_every_device,
    over_batch,
    reshaped,
    row_shards,
)

# torch.nn.functional.normalize divides by this at least.
_LEAST_NORM = 1e-12
# Similarities that a device has at a time, of 4 bytes; the backward pass computes them again.
_TILE = 1 << 24
_EXACT = jax.lax.Precision.HIGHEST

Mean = tuple[jax.Array, jax.Array]


class Texts(NamedTuple):
    """The texts of a global batch. All arrays are cut by examples."""

    queries_ND: jax.Array
    documents_NCD: jax.Array
    # 1, or 0 for an example that fills up the batch.
    weights_N: jax.Array
    # A number for each text of an example, int32: the same for equal texts of the batch.
    ids_NT: jax.Array
    # The scores of a file: one for each document, or one for the pair.
    scores_NC: jax.Array

    def with_width(self, width: int, *, is_cosine: bool) -> "Texts":
        """Returns the texts with the first columns of each vector, of length 1 where similarities
        are cosines.
        """
        cut = [vectors[..., :width] for vectors in (self.queries_ND, self.documents_NCD)]
        queries, documents = map(normalized, cut) if is_cosine else cut
        return self._replace(queries_ND=queries, documents_NCD=documents)

    def all_documents(self) -> jax.Array:
        """Returns the documents of all queries `[M, D]`, whole on every device, for the operations
        that `on_every_device` names.
        """
        return on_every_device(reshaped(self.documents_NCD, (-1, self.documents_NCD.shape[-1])))

    def own(self) -> jax.Array:
        """Returns the similarity of each query and its own documents `[N, C]`."""
        return jnp.einsum("nd,ncd->nc", self.queries_ND, self.documents_NCD, precision=_EXACT)


def normalized(vectors: jax.Array) -> jax.Array:
    """Returns vectors of length 1; zeros stay."""
    squares = jnp.sum(jnp.square(vectors), axis=-1, keepdims=True)
    # The root has no derivative at 0.
    return vectors / jnp.sqrt(jnp.maximum(squares, _LEAST_NORM**2))


def _weighted(values_N: jax.Array, weights_N: jax.Array) -> jax.Array:
    """Returns the mean over the examples that count."""
    return jnp.sum(weights_N * values_N) / jnp.maximum(jnp.sum(weights_N), 1.0)


# --- a softmax over the batch


class _Columns(NamedTuple):
    """The texts that a row may find, whole on every device."""

    vectors_KD: jax.Array
    is_candidate_K: jax.Array
    ids_K: jax.Array
    # The id of the text that a column belongs to, and whether it is that text's own.
    owner_ids_K: jax.Array
    is_own_K: jax.Array


class _Rows(NamedTuple):
    """The texts that look for their own column, cut by examples."""

    vectors_ND: jax.Array
    ids_N: jax.Array
    target_ids_N: jax.Array
    target_N: jax.Array  # the own column: int32


def info_nce(options: InfoNCE, texts: Texts) -> Mean:
    """Returns the mean of -log softmax of each query's own document among the documents of all
    queries (van den Oord et al. 2018; MultipleNegativesRankingLoss). A query is right if no
    document has a higher similarity than its own.

    With `mask_duplicates` the loss is that of the batch without repetitions: of equal documents the
    first one is a candidate, the others only for their own queries; copies of a query's own
    document and the own documents of equal queries are no negatives; an example that repeats both
    texts of an earlier one does not count.
    """
    examples, count = texts.documents_NCD.shape[:2]
    number_N = jax.lax.broadcasted_iota(jnp.int32, (examples,), 0, out_sharding=over_batch())
    query_ids_N, own_ids_N = texts.ids_NT[:, 0], texts.ids_NT[:, 1]
    is_there_N = on_every_device((texts.weights_N > 0).astype(jnp.int32)) > 0
    queries_N = on_every_device(query_ids_N)
    documents_M = on_every_device(reshaped(texts.ids_NT[:, 1:], (-1,)))
    is_there_M = jnp.repeat(is_there_N, count)
    weights_N, first_N, first_M = texts.weights_N, is_there_N, is_there_M
    if options.mask_duplicates:
        counts_N = _is_first(is_there_N, queries_N, documents_M[::count]).astype(jnp.float32)
        weights_N = weights_N * laid_out(counts_N, batch_spec())
        first_N, first_M = _is_first(is_there_N, queries_N), _is_first(is_there_M, documents_M)
    documents = _Columns(
        vectors_KD=texts.all_documents(),
        is_candidate_K=first_M,
        ids_K=documents_M,
        owner_ids_K=jnp.repeat(queries_N, count),
        is_own_K=jnp.arange(examples * count) % count == 0,
    )
    rows = _Rows(texts.queries_ND, query_ids_N, own_ids_N, number_N * count)
    loss_N, hits_N = _softmax(rows, documents, options)
    loss = _weighted(loss_N, weights_N)
    if options.symmetric:
        queries = _Columns(
            vectors_KD=on_every_device(texts.queries_ND),
            is_candidate_K=first_N,
            ids_K=queries_N,
            owner_ids_K=documents_M[::count],
            is_own_K=jnp.ones(examples, bool),
        )
        rows = _Rows(texts.documents_NCD[:, 0], own_ids_N, query_ids_N, number_N)
        loss = (loss + _weighted(_softmax(rows, queries, options)[0], weights_N)) / 2
    return loss, _weighted(hits_N, weights_N)


def _softmax(rows: _Rows, columns: _Columns, options: InfoNCE) -> Mean:
    """Returns the loss of each row `[N]`, and whether no candidate exceeds its own column."""

    def of_some(rows: _Rows) -> Mean:
        products = jnp.einsum("nd,kd->nk", rows.vectors_ND, columns.vectors_KD, precision=_EXACT)
        is_target = rows.target_N[:, None] == jnp.arange(products.shape[1])
        own_N = jnp.sum(jnp.where(is_target, products, 0.0), axis=1)
        is_seen = columns.is_candidate_K[None]
        if options.mask_duplicates:
            is_copy = rows.target_ids_N[:, None] == columns.ids_K
            is_answer = (rows.ids_N[:, None] == columns.owner_ids_K) & columns.is_own_K
            is_seen = is_seen & ~is_copy & ~is_answer
        if options.false_negative_margin is not None:
            limit_N = jax.lax.stop_gradient(own_N) + options.false_negative_margin
            is_seen = is_seen & (products <= limit_N[:, None])
        logits = jnp.where(is_seen | is_target, products / options.temperature, -jnp.inf)
        highest_N = jax.lax.stop_gradient(jnp.max(logits, axis=1))
        total_N = jnp.sum(jnp.exp(logits - highest_N[:, None]), axis=1)
        own_N = own_N / options.temperature
        return highest_N + jnp.log(total_N) - own_N, (own_N >= highest_N).astype(jnp.float32)

    tiles = _tiles(rows.target_N.shape[0], columns.is_candidate_K.shape[0])
    if tiles == 1:
        return of_some(rows)

    def one(_: None, some: _Rows) -> tuple[None, Mean]:
        return None, jax.checkpoint(of_some)(some)

    _, found = jax.lax.scan(one, None, in_microbatches(rows, tiles))
    loss_N, hits_N = (joined_microbatches(x) for x in found)
    return loss_N, hits_N


def _tiles(rows: int, columns: int) -> int:
    """Returns into how many parts a device cuts its rows, so that no part exceeds `_TILE`."""
    of_device = rows // row_shards(jax.sharding.get_abstract_mesh())
    parts = (n for n in range(1, of_device + 1) if of_device % n == 0)
    return next((n for n in parts if of_device // n * columns <= _TILE), max(of_device, 1))


def _is_first(is_there_K: jax.Array, *ids_K: jax.Array) -> jax.Array:
    """Returns which texts are there and have no text with equal ids before them."""
    number_K = jnp.arange(is_there_K.size)
    words = [~is_there_K, *ids_K, number_K]
    *keys, order_K = jax.lax.sort(words, num_keys=len(words))
    is_new_K = jnp.zeros(number_K.shape, bool).at[0].set(True)
    for key in keys:
        is_new_K = is_new_K | (key != jnp.roll(key, 1))
    return jnp.zeros(number_K.shape, bool).at[order_K].set(is_new_K) & is_there_K


# --- losses with scores


@section
class CoSENT(PairLoss, kind="cosent"):
    """Orders pairs as their scores do: log(1 + sum of exp(s_j - s_i) over all pairs i, j of the
    batch with a higher score of i) (https://kexue.fm/archives/8847; CoSENTLoss).
    """

    needs_scores = True

    temperature: Positive = setting(0.05, "Similarities are divided by it.")

    def mean(self, texts: Texts) -> Mean:
        """A pair of pairs is right if its similarities have the order of the scores."""
        # Whole on every device, for any operation.
        logits_N, scores_N, is_there_N = (
            laid_out(x, jax.P())
            for x in (texts.own()[:, 0] / self.temperature, texts.scores_NC[:, 0], texts.weights_N)
        )
        is_above = scores_N[:, None] > scores_N[None]
        is_above = is_above & (is_there_N[:, None] > 0) & (is_there_N[None] > 0)
        differences = logits_N[None] - logits_N[:, None]  # of row i: s_j - s_i
        terms = jnp.where(is_above, differences, -jnp.inf).reshape(-1)
        loss = jax.nn.logsumexp(jnp.append(terms, 0.0))
        right = jnp.sum(is_above & (differences < 0)) / jnp.maximum(jnp.sum(is_above), 1)
        return loss, right.astype(jnp.float32)


@section
class MarginMSE(PairLoss, kind="margin_mse"):
    """Squared error of the differences between the own document's similarity and those of the
    negatives, against those of a teacher (Hofstätter et al. 2020, arXiv:2010.02666; MarginMSELoss).
    """

    needs_scores = needs_negatives = True

    def mean(self, texts: Texts) -> Mean:
        own_NC, scores_NC = texts.own(), texts.scores_NC
        margins = own_NC[:, :1] - own_NC[:, 1:]
        wanted = scores_NC[:, :1] - scores_NC[:, 1:]
        loss_N = jnp.mean(jnp.square(margins - wanted), axis=1)
        return _weighted(loss_N, texts.weights_N), _best_is_own(own_NC, texts.weights_N)


@section
class KullbackLeibler(PairLoss, kind="kl"):
    """KL divergence of the similarities of a query's documents from a teacher's scores
    (DistillKLDivLoss).
    """

    needs_scores = needs_negatives = True

    temperature: Positive = setting(1.0, "Similarities and scores are divided by it.")

    def mean(self, texts: Texts) -> Mean:
        """The gradient is that of a temperature of 1: the loss has its square as a factor."""
        own_NC = texts.own()
        teacher_NC = jax.nn.log_softmax(texts.scores_NC / self.temperature)
        ours_NC = jax.nn.log_softmax(own_NC / self.temperature)
        loss_N = jnp.sum(jnp.exp(teacher_NC) * (teacher_NC - ours_NC), axis=1)
        loss = _weighted(loss_N, texts.weights_N) * self.temperature**2
        return loss, _best_is_own(own_NC, texts.weights_N)


def _best_is_own(own_NC: jax.Array, weights_N: jax.Array) -> jax.Array:
    is_right_N = own_NC[:, 0] >= jnp.max(own_NC, axis=1)
    return _weighted(is_right_N.astype(jnp.float32), weights_N)
