"""Chooses the updates that are left out: those without a finite number and, if asked for, spikes.

A spike is an update whose gradient norm is many times the median of the last ones. The median of
finite norms only: neither a NaN nor a spike itself moves it far, unlike a mean and its deviation,
which one bad step spoils for as long as it is remembered. Norms of spikes are remembered, too, so
that a level that lasts is the usual one after half a window. (Skipping what lies far from the last
128 steps is the practice of OLMo 2, arXiv:2501.00656; it looks at six standard deviations.)
"""

import jax
import jax.numpy as jnp

WINDOW = 128


def empty_norms() -> jax.Array:
    """Returns the norms that are remembered at the beginning: float32 [WINDOW], newest first; 0
    stands for none.
    """
    return jnp.zeros([WINDOW], jnp.float32)


def should_apply(
    loss: jax.Array, norm: jax.Array, recent: jax.Array, *, spike_factor: float
) -> jax.Array:
    """Returns whether to make this update (a boolean scalar); with a `spike_factor` of 0 if it is
    finite.

    As long as fewer than WINDOW norms are remembered, nothing is a spike.
    """
    is_finite = jnp.isfinite(loss) & jnp.isfinite(norm)
    if not spike_factor:
        return is_finite
    usual = jnp.sort(recent)[WINDOW // 2]
    return is_finite & ((norm <= spike_factor * usual) | (recent[-1] == 0))


def push_norm(norm: jax.Array, recent: jax.Array) -> jax.Array:
    """Returns `recent` with this norm in front, if it is finite."""
    return jnp.where(jnp.isfinite(norm), jnp.concatenate([norm[None], recent[:-1]]), recent)
