"""Self-attention: one function, one signature, so that a kernel can take its place.

Dims: B batch, L length of the queries, S length of the keys (= L), H heads, K head size.
"""

import jax
import jax.numpy as jnp

from bert_jax.model.dropout import DropoutKey, dropout

# What a forbidden score becomes. Finite, so that a row of padding has no NaN, and far below any
# score, so that its softmax is exactly zero beside an allowed one.
_FORBIDDEN = -1e9


def attend(
    q_BLHK: jax.Array,
    k_BSHK: jax.Array,
    v_BSHK: jax.Array,
    *,
    sequence_ids_BL: jax.Array,
    key: DropoutKey | None,
    dropout_rate: float,
) -> jax.Array:
    """softmax(q k^T / sqrt(K)) v, in which a token sees the tokens of its own sequence only.

    `sequence_ids_BL` numbers the sequences of a row from 1; padding is 0. Scores and softmax are
    float32; the result has the type of `v_BSHK` and the shape of `q_BLHK`.
    """
    scale = q_BLHK.shape[-1] ** -0.5
    scores_BHLS = jnp.einsum(
        "blhk,bshk->bhls", q_BLHK * scale, k_BSHK, preferred_element_type=jnp.float32
    )
    allowed_B1LS = (sequence_ids_BL[:, :, None] == sequence_ids_BL[:, None, :])[:, None]
    scores_BHLS = jnp.where(allowed_B1LS, scores_BHLS, _FORBIDDEN)
    weights_BHLS = jax.nn.softmax(scores_BHLS, axis=-1).astype(v_BSHK.dtype)
    weights_BHLS = dropout(weights_BHLS, key, rate=dropout_rate)
    return jnp.einsum("bhls,bshk->blhk", weights_BHLS, v_BSHK)
