"""Cross-entropy and hits as sums: one mean is formed over the whole global batch.

Dims: V vocabulary.
"""

import jax
import jax.numpy as jnp

from bert_jax.model.sharding import spec_of

# The sums that a step accumulates over its rows and over microbatches.
Sums = dict[str, jax.Array]


@jax.custom_vjp
def cross_entropy(logits: jax.Array, targets: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns -log softmax(logits)[target], and whether no logit exceeds the target's; both
    float32.

    `logits` `[..., V]` is float32, `targets` `[...]` integer. The backward pass is written out as
    one pass over the logits: softmax minus one-hot. XLA's own derivative stores a second array of
    the logits' size, and an argmax would cost another pass.
    """
    return _cross_entropy_forward(logits, targets)[0]


def _cross_entropy_forward(logits, targets):
    highest = jnp.max(logits, axis=-1)
    total = jnp.sum(jnp.exp(logits - highest[..., None]), axis=-1)
    log_normaliser = highest + jnp.log(total)
    if spec_of(logits)[-1] is None:
        chosen = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    else:  # tensor parallelism shards the vocabulary: one device has the target's logit
        onehot = jax.nn.one_hot(targets, logits.shape[-1], dtype=bool)
        chosen = jnp.sum(jnp.where(onehot, logits, 0.0), axis=-1)
    hits = (chosen >= highest).astype(jnp.float32)
    return (log_normaliser - chosen, hits), (logits, log_normaliser, targets)


def _cross_entropy_backward(residuals, cotangents):
    logits, log_normaliser, targets = residuals
    probabilities = jnp.exp(logits - log_normaliser[..., None])
    onehot = jax.nn.one_hot(targets, logits.shape[-1], dtype=logits.dtype)
    return (probabilities - onehot) * cotangents[0][..., None], None


cross_entropy.defvjp(_cross_entropy_forward, _cross_entropy_backward)


@jax.custom_vjp
def cross_entropy_and_normaliser(
    logits: jax.Array, targets: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns the results of `cross_entropy`, and the log-normalizer log(sum(exp(logits))) `[...]`.

    The backward pass is also one pass over the logits.
    """
    return _with_normaliser_forward(logits, targets)[0]


def _with_normaliser_forward(logits, targets):
    (loss, hits), residuals = _cross_entropy_forward(logits, targets)
    return (loss, hits, residuals[1]), residuals


def _with_normaliser_backward(residuals, cotangents):
    logits, log_normaliser, targets = residuals
    of_loss, _, of_normaliser = cotangents
    probabilities = jnp.exp(logits - log_normaliser[..., None])
    onehot = jax.nn.one_hot(targets, logits.shape[-1], dtype=logits.dtype)
    gradient = probabilities * (of_loss + of_normaliser)[..., None] - onehot * of_loss[..., None]
    return gradient, None


cross_entropy_and_normaliser.defvjp(_with_normaliser_forward, _with_normaliser_backward)
