"""Attention by its formula: the basis for experiments and the reference for all other entries.

Dims: B batch, H heads, K head size, L length of the queries, S length of the keys.
"""

import jax
import jax.numpy as jnp

from bert_jax.model.attention.implementation import Call, Implementation
from bert_jax.model.attention.need import Need
from bert_jax.model.dropout import DropoutKey, dropout
from bert_jax.model.mask import Mask

# The value of a masked score. It is finite, so that a row of padding gives no NaN, and so low that
# its softmax is exactly zero in a row with an allowed score.
FORBIDDEN = -1e9


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
    """Returns softmax(q k^T / sqrt(K) + bias) v, limited to the keys that `mask` allows; JAX
    derives the backward pass, which stores three arrays of L x S.
    """
    scale = q_BHKL.shape[2] ** -0.5
    scores_BHLS = jnp.einsum(
        "bhkl,bhks->bhls", q_BHKL * scale, k_BHKS, preferred_element_type=jnp.float32
    )
    if bias_BHLS is not None:
        scores_BHLS = scores_BHLS + bias_BHLS
    scores_BHLS = jnp.where(mask.allowed()[:, None], scores_BHLS, FORBIDDEN)
    weights_BHLS = dropout(jax.nn.softmax(scores_BHLS, axis=-1), key, rate=dropout_rate)
    return jnp.einsum("bhls,bhks->bhkl", weights_BHLS.astype(v_BHKS.dtype), v_BHKS)


class Plain(Implementation):
    """Supports every need, and never delegates if a config names it."""

    name = "plain"
    takes_bias = takes_dropout = True

    def chosen(self, need: Need) -> Implementation:
        return self

    def attend(self, call: Call) -> jax.Array:
        *arrays, mask, bias_BHLS, key, rate = call
        return plain(*arrays, mask=mask, bias_BHLS=bias_BHLS, key=key, dropout_rate=rate)


PLAIN = Plain()
