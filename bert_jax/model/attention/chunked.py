"""Attention without an array of L x S: chunks of queries, with scores that the backward pass
recomputes (Rabe and Staats 2021, arXiv:2112.05682).

A chunk attends to whole rows of keys, so that its softmax is exact in one pass. A device loops over
rows, groups of heads and chunks: the scores of a chunk and the gradient sums of its keys and values
stay in fast memory.

Dims: B batch, H heads, K head size, L length of the queries, S length of the keys; J groups of G
heads, N chunks of a row, C queries of a chunk.
"""

import dataclasses
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from bert_jax.model.attention.implementation import Call, Implementation
from bert_jax.model.attention.need import Need
from bert_jax.model.attention.plain import FORBIDDEN
from bert_jax.model.mask import Mask
from bert_jax.model.sharding import on_each_device, spec_of

# Queries per chunk, and the maximum number of scores per chunk (but at least one head).
_QUERIES, _SCORES = 1024, 2**23
# Keys per row from which this is used. Devices in `_FAST_FROM` hold a chunk in 128 MiB of fast
# memory and are faster; on others the saved memory decides (benchmarks/results/attention-tpu.md).
_PAYS_FROM = 2048
_FAST_FROM = {"TPU v4": 1024, "TPU v5 lite": 1024, "TPU v6 lite": 1024}


class Chunked(Implementation):
    """Serves whole rows and windows, on every platform."""

    name = "chunked"

    def pays(self, need: Need) -> bool:
        return need.length >= _FAST_FROM.get(need.device_kind, _PAYS_FROM)

    def attend(self, call: Call) -> jax.Array:
        q_BHKL = call.q_BHKL * call.q_BHKL.shape[2] ** -0.5
        return _attend(q_BHKL, call.k_BHKS, call.v_BHKS, call.mask)


@jax.custom_vjp
def _attend(q_BHKL, k_BHKS, v_BHKS, mask):
    return _forward(q_BHKL, k_BHKS, v_BHKS, mask)[0]


def _forward(q_BHKL, k_BHKS, v_BHKS, mask) -> tuple[jax.Array, Any]:
    cut, rows = _partitions(q_BHKL)
    local = on_each_device(_local_forward, takes=(cut, cut, cut, rows), gives=(cut, cut))
    out_BHKL, normaliser_BHL = local(q_BHKL, k_BHKS, v_BHKS, mask)
    return out_BHKL, (q_BHKL, k_BHKS, v_BHKS, mask, out_BHKL, normaliser_BHL)


def _backward(kept, g_BHKL) -> tuple:
    cut, rows = _partitions(g_BHKL)
    takes = (cut, cut, cut, rows, cut, cut, cut)
    local = on_each_device(_local_backward, takes=takes, gives=(cut, cut, cut))
    return *local(*kept, g_BHKL), None


_attend.defvjp(_forward, _backward)


def _partitions(x_BHKL: jax.Array) -> tuple[jax.P, jax.P]:
    rows, heads, *_ = spec_of(x_BHKL)
    return jax.P(rows, heads), jax.P(rows)


def _local_forward(q_BHKL, k_BHKS, v_BHKS, mask) -> tuple[jax.Array, jax.Array]:
    """Returns attention and the log-normalizer of the softmax."""
    cut = _Cut.of(q_BHKL, k_BHKS)

    def row(part):
        q_JNGKC, k_JGKS, v_JGKS, mask = part

        def group(part):
            q_NGKC, k_GKS, v_GKS = part

            def chunk(part):
                q_GKC, queries = part
                scores_GCS = _scores(q_GKC, k_GKS, mask, queries)
                highest_GC = jnp.max(scores_GCS, axis=-1)
                exp_GCS = jnp.exp(scores_GCS - highest_GC[..., None])
                total_GC = jnp.sum(exp_GCS, axis=-1)
                out_GKC = _product("gcs,gks->gkc", exp_GCS.astype(v_GKS.dtype), v_GKS)
                out_GKC = (out_GKC / total_GC[:, None]).astype(v_GKS.dtype)
                return out_GKC, highest_GC + jnp.log(total_GC)

            return jax.lax.map(chunk, (q_NGKC, _queries(mask)))

        return jax.lax.map(group, (q_JNGKC, k_JGKS, v_JGKS))

    keys = (cut.groups(x) for x in (k_BHKS, v_BHKS))
    out, normaliser = jax.lax.map(row, (cut.chunks(q_BHKL), *keys, cut.mask(mask)))
    return cut.rows(out), cut.rows(normaliser)


def _local_backward(q_BHKL, k_BHKS, v_BHKS, mask, out_BHKL, normaliser_BHL, g_BHKL) -> tuple:
    """The row sum of (derivative of weights) x weights equals the row sum of g x out."""
    cut = _Cut.of(q_BHKL, k_BHKS)
    products_BHKL = g_BHKL.astype(jnp.float32) * out_BHKL.astype(jnp.float32)
    of_queries = (q_BHKL, g_BHKL, jnp.sum(products_BHKL, axis=2), normaliser_BHL)

    def row(part):
        *groups, mask = part

        def group(part):
            of_queries, k_GKS, v_GKS = part

            def chunk(sums, part):
                (q_GKC, g_GKC, sums_GC, normaliser_GC), queries = part
                scores_GCS = _scores(q_GKC, k_GKS, mask, queries)
                weights_GCS = jnp.exp(scores_GCS - normaliser_GC[..., None])
                dweights_GCS = _product("gkc,gks->gcs", g_GKC, v_GKS)
                dscores_GCS = weights_GCS * (dweights_GCS - sums_GC[..., None])
                dscores_GCS = dscores_GCS.astype(q_GKC.dtype)
                dq_GKC = _product("gcs,gks->gkc", dscores_GCS, k_GKS).astype(q_GKC.dtype)
                dk_GKS = _product("gcs,gkc->gks", dscores_GCS, q_GKC)
                dv_GKS = _product("gcs,gkc->gks", weights_GCS.astype(g_GKC.dtype), g_GKC)
                return jax.tree.map(jnp.add, sums, (dk_GKS, dv_GKS)), dq_GKC

            zeros = tuple(jnp.zeros(x.shape, jnp.float32) for x in (k_GKS, v_GKS))
            (dk_GKS, dv_GKS), dq_NGKC = jax.lax.scan(chunk, zeros, (of_queries, _queries(mask)))
            return dq_NGKC, dk_GKS.astype(k_GKS.dtype), dv_GKS.astype(v_GKS.dtype)

        return jax.lax.map(group, tuple(groups))

    keys = (cut.groups(x) for x in (k_BHKS, v_BHKS))
    parts = (tuple(cut.chunks(x) for x in of_queries), *keys, cut.mask(mask))
    dq, dk, dv = jax.lax.map(row, parts)
    return cut.rows(dq), jnp.reshape(dk, k_BHKS.shape), jnp.reshape(dv, v_BHKS.shape)


class _Cut(NamedTuple):
    """The split of a row's queries into chunks and of its heads into groups."""

    length: int
    # Queries per chunk, and heads per group.
    size: int
    heads: int

    @classmethod
    def of(cls, q_BHKL: jax.Array, k_BHKS: jax.Array) -> "_Cut":
        _, heads, _, length = q_BHKL.shape
        size = min(_QUERIES, length)
        most = max(1, _SCORES // (size * k_BHKS.shape[3]))
        return cls(
            length, size, next(n for n in range(heads, 0, -1) if n <= most and heads % n == 0)
        )

    def groups(self, x: jax.Array) -> jax.Array:
        """Returns `[B, J, G, ...]` of arrays `[B, H, ...]`."""
        return jnp.reshape(x, (x.shape[0], -1, self.heads, *x.shape[2:]))

    def chunks(self, x: jax.Array) -> jax.Array:
        """Returns `[B, J, N, G, ..., C]` of arrays `[B, H, ..., L]`."""
        return jnp.moveaxis(self._cut(self.groups(x)), -2, 2)

    def mask(self, mask: Mask) -> Mask:
        """Returns the mask with query arrays of shape `[B, N, C]`."""
        ids, positions = (
            self._cut(jnp.asarray(x)) for x in (mask.query_ids_BL, mask.query_positions_BL)
        )
        return dataclasses.replace(mask, query_ids_BL=ids, query_positions_BL=positions)

    def rows(self, x: jax.Array) -> jax.Array:
        """Returns `[B, H, ..., L]`, the inverse of `chunks`."""
        x = jnp.moveaxis(x, 2, -2)
        heads = x.shape[1] * x.shape[2]
        return jnp.reshape(x, (x.shape[0], heads, *x.shape[3:-2], -1))[..., : self.length]

    def _cut(self, x: jax.Array) -> jax.Array:
        """Returns `[..., N, C]`; the last chunk is padded with zeros."""
        ends = ((0, 0),) * (x.ndim - 1) + ((0, -self.length % self.size),)
        return jnp.reshape(jnp.pad(x, ends), (*x.shape[:-1], -1, self.size))


def _queries(mask: Mask) -> tuple[jax.Array, jax.Array]:
    return mask.query_ids_BL, mask.query_positions_BL


def _scores(q_GKC, k_GKS, mask: Mask, queries: tuple) -> jax.Array:
    """Returns float32 `[G, C, S]` of the chunk with these queries; `mask` belongs to its row."""
    ids_C, positions_C = queries
    allowed_CS = dataclasses.replace(
        mask,
        query_ids_BL=ids_C[None],
        query_positions_BL=positions_C[None],
        key_ids_BS=mask.key_ids_BS[None],
        key_positions_BS=mask.key_positions_BS[None],
    ).allowed()[0]
    return jnp.where(allowed_CS, _product("gkc,gks->gcs", q_GKC, k_GKS), FORBIDDEN)


_product = partial(jnp.einsum, preferred_element_type=jnp.float32)

CHUNKED = Chunked()
