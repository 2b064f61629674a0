"""Learning rates as functions of the step; `optimizer.schedule` names one."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.config import OptimizerConfig
from bert_jax.registry import SCHEDULES


def learning_rate(step: jax.Array, *, config: OptimizerConfig, total_steps: int) -> jax.Array:
    """Returns the float32 rate of update number `step` (an int32 scalar from 0)."""
    return SCHEDULES[config.schedule](step, config=config, total_steps=total_steps)


def bert_linear(step: jax.Array, *, config: OptimizerConfig, total_steps: int) -> jax.Array:
    """Rises linearly for `warmup_steps`, and falls linearly to 0 (google-research/bert).

    The falling line is not delayed by the warm-up: it runs from step 0 to the end, and the rising
    line replaces it for the first steps, so that the rate falls by a factor of 1 - warmup/total
    where the two meet. The first update (step 0) has a rate of exactly 0.

    Within one unit in the last place of the formula in float64: the remaining steps are counted in
    integers, and the rate of one step is carried in two floats. TF1 subtracts a rounded quotient
    from 1 instead and is 1.3 % off in the last of a million steps.
    """
    rising = times(step, config.learning_rate / max(config.warmup_steps, 1))
    falling = times(total_steps - step, config.learning_rate / total_steps)
    return jnp.where(step < config.warmup_steps, rising, falling)


def linear(step: jax.Array, *, config: OptimizerConfig, total_steps: int) -> jax.Array:
    """Rises linearly for `warmup_steps`, and falls linearly from there to the end (fairseq's
    polynomial_decay of power 1; transformers' get_linear_schedule_with_warmup).
    """
    return polynomial(step, config=dataclasses.replace(config, power=1.0), total_steps=total_steps)


def electra_linear(step: jax.Array, *, config: OptimizerConfig, total_steps: int) -> jax.Array:
    """Falls linearly from step 0 to the end, times min(1, step / `warmup_steps`) (google-research/
    electra model/optimization.py): the two lines are multiplied, where BERT takes one or the other.
    """
    falling = times(total_steps - step, config.learning_rate / total_steps)
    return falling * _warmup(step, config)


def polynomial(step: jax.Array, *, config: OptimizerConfig, total_steps: int) -> jax.Array:
    """Falls after the warm-up as (share of the steps that are left)^`power`, to `min_lr_ratio` of
    the rate.
    """
    left = (total_steps - step).astype(jnp.float32) / (total_steps - config.warmup_steps)
    # A power of 1 is the line itself, to the last bit.
    shape = left if config.power == 1 else jnp.maximum(left, 0.0) ** config.power
    return _after_warmup(step, shape, config)


def cosine(step: jax.Array, *, config: OptimizerConfig, total_steps: int) -> jax.Array:
    """Falls after the warm-up along half a cosine, to `min_lr_ratio` of the rate (Loshchilov and
    Hutter 2017, SGDR, without restarts).
    """
    done = step - config.warmup_steps
    share = done.astype(jnp.float32) / (total_steps - config.warmup_steps)
    # sin^2 of half the angle keeps its digits where 1 + cos would cancel.
    return _after_warmup(step, jnp.sin(0.5 * jnp.pi * (1 - share)) ** 2, config)


def constant(step: jax.Array, *, config: OptimizerConfig, total_steps: int) -> jax.Array:
    """Stays at the rate after the warm-up."""
    del total_steps
    return config.learning_rate * _warmup(step, config)


def warmup_stable_decay(step: jax.Array, *, config: OptimizerConfig, total_steps: int) -> jax.Array:
    """Stays at the rate after the warm-up, and falls over the last `decay_steps` as 1 - sqrt(share
    of them that is done), to `min_lr_ratio` of the rate.

    Hägele et al. 2024 (arXiv:2405.18392), section 3; ModernBERT decays so.
    """
    decay = max(config.decay_steps, 1)
    left = jnp.minimum(total_steps - step, decay)
    # 1 - sqrt(x) is (1 - x) / (1 + sqrt(x)), which keeps its digits near the end.
    shape = left.astype(jnp.float32) / decay / (1 + jnp.sqrt((decay - left) / decay))
    return _after_warmup(step, shape, config)


def _warmup(step: jax.Array, config: OptimizerConfig) -> jax.Array:
    """Returns min(1, step / `warmup_steps`), which without a warm-up is 1 from step 0 on."""
    if not config.warmup_steps:
        return jnp.float32(1.0)
    return jnp.minimum(1.0, step.astype(jnp.float32) / config.warmup_steps)


def _after_warmup(step: jax.Array, shape: jax.Array, config: OptimizerConfig) -> jax.Array:
    """Returns the warm-up's line; after it `shape`, which falls from 1 to 0, above the floor."""
    floor = config.min_lr_ratio
    falling = config.learning_rate * (floor + (1 - floor) * shape)
    rising = times(step, config.learning_rate / max(config.warmup_steps, 1))
    return jnp.where(step < config.warmup_steps, rising, falling)


def times(count: jax.Array, rate: float) -> jax.Array:
    """Returns count x rate, where float32 cannot hold `rate` but two of them can."""
    high = np.float32(rate)
    low = np.float32(rate - np.float64(high))
    count = count.astype(jnp.float32)
    return count * high + count * low
