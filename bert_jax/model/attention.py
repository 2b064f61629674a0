"""Self-attention: back ends of one signature, which `compute.attention` chooses from.

Dims: B batch, H heads, K head size, L length of the queries, S length of the keys.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.model.dropout import DropoutKey, dropout, keep_mask
from bert_jax.model.mask import Mask
from bert_jax.model.sharding import over_batch, spec_of

# What a forbidden score becomes. Finite, so that a row of padding has no NaN, and far below any
# score, so that its softmax is exactly zero beside an allowed one.
_FORBIDDEN = -1e9


def split_heads(x_BDL: jax.Array, num_heads: int) -> jax.Array:
    """Returns `[B, H, K, L]`; the tensor axis, where it cuts the width, cuts between heads."""
    batch, width, length = x_BDL.shape
    shape = (batch, num_heads, width // num_heads, length)
    return jnp.reshape(x_BDL, shape, out_sharding=over_batch(spec_of(x_BDL)[1]))


def join_heads(x_BHKL: jax.Array) -> jax.Array:
    """Returns `[B, D, L]`, the inverse of `split_heads`."""
    batch, heads, size, length = x_BHKL.shape
    shape = (batch, heads * size, length)
    return jnp.reshape(x_BHKL, shape, out_sharding=over_batch(spec_of(x_BHKL)[1]))


def fused(
    q_BHKL: jax.Array,
    k_BHKS: jax.Array,
    v_BHKS: jax.Array,
    *,
    mask: Mask,
    bias_BHLS: jax.Array | None = None,
    key: DropoutKey | None,
    dropout_rate: float,
) -> jax.Array:
    """Returns softmax(q k^T / sqrt(K)) v, in which a query sees what `mask` allows.

    Scores and softmax are float32; the result has the type of `v_BHKS` and the shape of `q_BHKL`. A
    bias of the scores is left to `plain`.
    """
    if bias_BHLS is not None:
        options = {"mask": mask, "key": key, "dropout_rate": dropout_rate}
        return plain(q_BHKL, k_BHKS, v_BHKS, bias_BHLS=bias_BHLS, **options)
    scale = q_BHKL.shape[2] ** -0.5
    rate = 0.0 if key is None else dropout_rate
    return _attend(q_BHKL * scale, k_BHKS, v_BHKS, mask.allowed(), key, rate)


def plain(
    q_BHKL: jax.Array,
    k_BHKS: jax.Array,
    v_BHKS: jax.Array,
    *,
    mask: Mask,
    bias_BHLS: jax.Array | None = None,
    key: DropoutKey | None,
    dropout_rate: float,
) -> jax.Array:
    """Returns the same by the formula, its derivative by jax; `bias_BHLS` is added to the scores.

    For new ideas, and what `fused` is compared with: it keeps three arrays of L x S for the
    backward pass instead of one.
    """
    scale = q_BHKL.shape[2] ** -0.5
    scores_BHLS = jnp.einsum(
        "bhkl,bhks->bhls", q_BHKL * scale, k_BHKS, preferred_element_type=jnp.float32
    )
    if bias_BHLS is not None:
        scores_BHLS = scores_BHLS + bias_BHLS
    scores_BHLS = jnp.where(mask.allowed()[:, None], scores_BHLS, _FORBIDDEN)
    weights_BHLS = dropout(jax.nn.softmax(scores_BHLS, axis=-1), key, rate=dropout_rate)
    return jnp.einsum("bhls,bhks->bhkl", weights_BHLS.astype(v_BHKS.dtype), v_BHKS)


# The derivative is written out, for what passes between memory and the units that compute: one
# array of L x S in the compute type is kept (the exponentials of the scores, not normalised), and
# one is made in the backward pass. What jax derives keeps three. Normalising after the product with
# v, and taking the row sums of dP * P from the output, each saves a pass over L x S (Dao et al.
# 2022, sections 3.1 and B.2).


@partial(jax.custom_vjp, nondiff_argnums=(5,))
def _attend(q_BHKL, k_BHKS, v_BHKS, allowed_BLS, key, rate):
    return _forward(q_BHKL, k_BHKS, v_BHKS, allowed_BLS, key, rate)[0]


def _forward(q_BHKL, k_BHKS, v_BHKS, allowed_BLS, key, rate) -> tuple[jax.Array, Any]:
    dtype = v_BHKS.dtype
    scores_BHLS = jnp.einsum("bhkl,bhks->bhls", q_BHKL, k_BHKS, preferred_element_type=jnp.float32)
    scores_BHLS = jnp.where(allowed_BLS[:, None], scores_BHLS, _FORBIDDEN)
    exp_BHLS = jnp.exp(scores_BHLS - jnp.max(scores_BHLS, axis=-1, keepdims=True))
    # What the kept exponentials are divided by: their sum, before dropout, times the share kept.
    divisor_BHL = jnp.sum(exp_BHLS, axis=-1) * (1 - rate)
    exp_BHLS = exp_BHLS.astype(dtype)
    out_BHKL = jnp.einsum(
        "bhls,bhks->bhkl",
        _dropped(exp_BHLS, key, rate),
        v_BHKS,
        preferred_element_type=jnp.float32,
    )
    out_BHKL = (out_BHKL / divisor_BHL[:, :, None]).astype(dtype)
    return out_BHKL, (q_BHKL, k_BHKS, v_BHKS, exp_BHLS, divisor_BHL, out_BHKL, key)


def _backward(rate, residuals, g_BHKL):
    q_BHKL, k_BHKS, v_BHKS, exp_BHLS, divisor_BHL, out_BHKL, key = residuals
    dtype = v_BHKS.dtype
    # P = exp * scale, dP is the gradient of the kept P, and dS = P (dP - rowsum(dP P)).
    scaled_g_BHKL = g_BHKL.astype(jnp.float32) / divisor_BHL[:, :, None]
    sums_BHL = jnp.sum(scaled_g_BHKL * out_BHKL.astype(jnp.float32), axis=2) * (1 - rate)
    scaled_g_BHKL = scaled_g_BHKL.astype(dtype)
    dv_BHKS = jnp.einsum("bhls,bhkl->bhks", _dropped(exp_BHLS, key, rate), scaled_g_BHKL)
    dp_BHLS = jnp.einsum(
        "bhkl,bhks->bhls", scaled_g_BHKL, v_BHKS, preferred_element_type=jnp.float32
    )
    ds_BHLS = exp_BHLS.astype(jnp.float32) * (_dropped(dp_BHLS, key, rate) - sums_BHL[..., None])
    ds_BHLS = ds_BHLS.astype(dtype)
    dq_BHKL = jnp.einsum("bhls,bhks->bhkl", ds_BHLS, k_BHKS)
    dk_BHKS = jnp.einsum("bhls,bhkl->bhks", ds_BHLS, q_BHKL)
    return dq_BHKL, dk_BHKS, dv_BHKS, None, None


_attend.defvjp(_forward, _backward)


def _dropped(x_BHLS: jax.Array, key: DropoutKey | None, rate: float) -> jax.Array:
    """Returns `x` where the mask keeps it, not scaled."""
    if not rate:
        return x_BHLS
    assert key is not None
    return jnp.where(keep_mask(key, x_BHLS, rate=rate), x_BHLS, jnp.zeros((), x_BHLS.dtype))
