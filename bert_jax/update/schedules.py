"""Learning rates as functions of the step; `optimizer.schedule` names one."""

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


def times(count: jax.Array, rate: float) -> jax.Array:
    """Returns count x rate, where float32 cannot hold `rate` but two of them can."""
    high = np.float32(rate)
    low = np.float32(rate - np.float64(high))
    count = count.astype(jnp.float32)
    return count * high + count * low
