"""Chooses the updates to skip: non-finite ones and, optionally, spikes.

A spike is an update whose gradient norm is many times the median of recent finite norms. Neither a
NaN nor a spike moves the median far, whereas one bad step distorts a mean and a standard deviation
for the whole window. The norms of spikes are also stored, so that a lasting new level becomes
normal after half a window. (OLMo 2, arXiv:2501.00656, skips updates that are six standard
deviations from the last 128 steps.)
"""

import jax
import jax.numpy as jnp

WINDOW = 128


def empty_norms() -> jax.Array:
    """Returns the norms stored at the start: float32 [WINDOW], newest first; 0 means no norm."""
    return jnp.zeros([WINDOW], jnp.float32)


def should_apply(
    loss: jax.Array, norm: jax.Array, recent: jax.Array, *, spike_factor: float
) -> jax.Array:
    """Returns whether to apply this update (a boolean scalar); if `spike_factor` is 0, whether it
    is finite.

    With fewer than WINDOW stored norms, no update is a spike.
    """
    is_finite = jnp.isfinite(loss) & jnp.isfinite(norm)
    if not spike_factor:
        return is_finite
    usual = jnp.sort(recent)[WINDOW // 2]
    return is_finite & ((norm <= spike_factor * usual) | (recent[-1] == 0))


def push_norm(norm: jax.Array, recent: jax.Array) -> jax.Array:
    """Returns `recent` with this norm in front, if it is finite."""
    return jnp.where(jnp.isfinite(norm), jnp.concatenate([norm[None], recent[:-1]]), recent)
