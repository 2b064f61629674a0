"""Attention over whole rows that stores one array of L x S.

Dims: B batch, H heads, K head size, L length of the queries, S length of the keys.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.model.attention.implementation import Call, Implementation
from bert_jax.model.attention.plain import FORBIDDEN
from bert_jax.model.dropout import keep_mask
from bert_jax.model.sharding import device_kind


class Fused(Implementation):
    """Supports rows without windows on every platform. `plain` serves scores with a bias."""

    name = "fused"
    takes_dropout = has_deputy = True

    def attend(self, call: Call) -> jax.Array:
        q_BHKL = call.q_BHKL * call.q_BHKL.shape[2] ** -0.5
        allowed_BLS = call.mask.allowed()
        return _attend(q_BHKL, call.k_BHKS, call.v_BHKS, allowed_BLS, call.key, call.rate)


FUSED = Fused()


# The derivative is written out to reduce memory traffic: one array of L x S in the compute type is
# stored (the unnormalized exponentials of the scores), and one is created in the backward pass.
# JAX's own derivative stores three. Normalizing after the product with v, and computing the row
# sums of dP * P from the output, each saves a pass over L x S (Dao et al. 2022, sections 3.1 and
# B.2). The dropout mask is the sign of the stored exponentials, minus where a weight is dropped, so
# that its bits are drawn only in the forward pass.


@partial(jax.custom_vjp, nondiff_argnums=(5,))
def _attend(q_BHKL, k_BHKS, v_BHKS, allowed_BLS, key, rate):
    return forward(q_BHKL, k_BHKS, v_BHKS, allowed_BLS, key, rate)[0]


def forward(q_BHKL, k_BHKS, v_BHKS, allowed_BLS, key, rate) -> tuple[jax.Array, Any]:
    """Returns attention and the residuals of `backward`. The queries are already scaled."""
    dtype = v_BHKS.dtype
    scores_BHLS = _scores(q_BHKL, k_BHKS, allowed_BLS)
    highest_BHL = jnp.max(scores_BHLS, axis=-1)
    if device_kind().startswith("TPU"):
        # The matmul is recomputed and fused with exponentials, mask and sums into one pass: this is
        # cheaper than to write its float32 result and read it twice.
        again_BHKL, highest_BHL = jax.lax.optimization_barrier((q_BHKL, highest_BHL))
        scores_BHLS = _scores(again_BHKL, k_BHKS, allowed_BLS)
    exp_BHLS = jnp.exp(scores_BHLS - highest_BHL[..., None]).astype(dtype)
    if rate:
        assert key is not None
        exp_BHLS = jnp.where(keep_mask(key, exp_BHLS, rate=rate), exp_BHLS, -exp_BHLS)
    # The stored exponentials are divided by their sum before dropout, times the share kept.
    divisor_BHL = jnp.sum(jnp.abs(exp_BHLS.astype(jnp.float32)), axis=-1) * (1 - rate)
    out_BHKL = jnp.einsum(
        "bhls,bhks->bhkl",
        _kept(exp_BHLS, rate),
        v_BHKS,
        preferred_element_type=jnp.float32,
    )
    out_BHKL = (out_BHKL / divisor_BHL[:, :, None]).astype(dtype)
    return out_BHKL, (q_BHKL, k_BHKS, v_BHKS, exp_BHLS, divisor_BHL, out_BHKL)


def _scores(q_BHKL: jax.Array, k_BHKS: jax.Array, allowed_BLS: jax.Array) -> jax.Array:
    scores_BHLS = jnp.einsum("bhkl,bhks->bhls", q_BHKL, k_BHKS, preferred_element_type=jnp.float32)
    return jnp.where(allowed_BLS[:, None], scores_BHLS, FORBIDDEN)


def backward(rate, residuals, g_BHKL) -> tuple:
    """Returns the derivatives of queries, keys and values; None for the other arguments."""
    q_BHKL, k_BHKS, v_BHKS, exp_BHLS, divisor_BHL, out_BHKL = residuals
    dtype = v_BHKS.dtype
    # In its own type: otherwise the TPU compiler copies the float32 of the next line.
    g_BHKL = jax.lax.optimization_barrier(g_BHKL)
    # P = exp * scale, dP is the gradient of the kept P, and dS = P (dP - rowsum(dP P)).
    scaled_g_BHKL = g_BHKL.astype(jnp.float32) / divisor_BHL[:, :, None]
    sums_BHL = jnp.sum(scaled_g_BHKL * out_BHKL.astype(jnp.float32), axis=2) * (1 - rate)
    scaled_g_BHKL = scaled_g_BHKL.astype(dtype)
    dv_BHKS = jnp.einsum("bhls,bhkl->bhks", _kept(exp_BHLS, rate), scaled_g_BHKL)
    dp_BHLS = jnp.einsum(
        "bhkl,bhks->bhls", scaled_g_BHKL, v_BHKS, preferred_element_type=jnp.float32
    )
    exp_BHLS = exp_BHLS.astype(jnp.float32)
    if rate:  # if an exponential is 0, the derivative of its score is 0 for either mask
        dp_BHLS, exp_BHLS = jnp.where(exp_BHLS > 0, dp_BHLS, 0), jnp.abs(exp_BHLS)
    ds_BHLS = (exp_BHLS * (dp_BHLS - sums_BHL[..., None])).astype(dtype)
    dq_BHKL = jnp.einsum("bhls,bhks->bhkl", ds_BHLS, k_BHKS)
    dk_BHKS = jnp.einsum("bhls,bhkl->bhks", ds_BHLS, q_BHKL)
    return dq_BHKL, dk_BHKS, dv_BHKS, None, None


_attend.defvjp(forward, backward)


def _kept(exp_BHLS: jax.Array, rate: float) -> jax.Array:
    """Returns the exponentials that dropout keeps, unscaled, and 0 for the others."""
    return jnp.maximum(exp_BHLS, 0) if rate else exp_BHLS
