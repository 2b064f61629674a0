"""Samples tokens from scores with noise that depends only on counters.

Dims: B batch, M masked positions, V vocabulary.
"""

import jax
import jax.numpy as jnp

from bert_jax.model.dropout import hashed
from bert_jax.model.sharding import spec_of

# 2^-32, which scales 32 random bits to a number between 0 and 1.
_UNIT = 2.0**-32


def sample(
    logits_BMV: jax.Array, *, keys: tuple[jax.Array, jax.Array], vocab_size: int
) -> jax.Array:
    """Returns a token for each position, drawn from softmax(`logits_BMV`): int32 `[B, M]`.

    The result is the token with the highest sum of score and Gumbel noise (Gumbel 1954;
    google-research/electra pretrain_helpers.py, `sample_from_softmax`). The noise depends on two
    key words per position, `keys` (int32 `[B, M]`), and the token id: it is the same on every mesh.
    There is no gradient. Under tensor parallelism V is sharded and padded beyond `vocab_size`.
    """
    logits_BMV = jax.lax.stop_gradient(logits_BMV)
    cut = spec_of(logits_BMV)[-1]
    layout = None if cut is None else jax.P(None, None, cut)
    words_V = jax.lax.broadcasted_iota(
        jnp.uint32, (1, 1, logits_BMV.shape[-1]), 2, out_sharding=layout
    )
    noisy_BMV = logits_BMV + gumbel(words_V, keys=keys)
    highest_BM = jnp.max(noisy_BMV, axis=-1, keepdims=True)
    # Not argmax, because `tensor` may shard the dim.
    words_BMV = jnp.where(noisy_BMV >= highest_BM, words_V, jnp.uint32(vocab_size - 1))
    return jnp.min(words_BMV, axis=-1).astype(jnp.int32)


def gumbel(words_V: jax.Array, *, keys: tuple[jax.Array, jax.Array]) -> jax.Array:
    """Returns float32 Gumbel noise `[B, M, V]` for the token ids `words_V`, uint32 `[1, 1, V]`."""
    word_1_BM, word_2_BM = (jax.lax.bitcast_convert_type(key, jnp.uint32) for key in keys)
    bits_BMV = hashed(words_V + word_1_BM[..., None], word_2_BM[..., None])
    # The largest noise comes from the smallest numbers, where float32 has the finest resolution.
    uniform_BMV = (bits_BMV.astype(jnp.float32) + 0.5) * _UNIT
    return -jnp.log(-jnp.log1p(-jnp.minimum(uniform_BMV, 1 - 2.0**-24)))
