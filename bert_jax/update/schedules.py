"""Learning rates as functions of the step: the kinds of `optimizer.schedule`.

A schedule is a section with `kind=` that overrides `Schedule.rate`, or a function with the
arguments of `rate`.
"""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.config import Optimizer, Schedule
from bert_jax.config.fields import Natural, Positive, Share, section, setting


def bert_linear(step: jax.Array, *, config: Optimizer, total_steps: int) -> jax.Array:
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


@section
class ElectraLinear(Schedule, kind="electra_linear"):
    """Falls linearly from step 0 to the end, times min(1, step / `warmup_steps`)
    (google-research/electra model/optimization.py): BERT uses one of these two factors at a time.
    """

    def rate(self, step: jax.Array, *, config: Optimizer, total_steps: int) -> jax.Array:
        falling = times(total_steps - step, config.learning_rate / total_steps)
        return falling * _warmup(step, config)


@section
class Constant(Schedule, kind="constant"):
    """Stays at the learning rate after warm-up."""

    def rate(self, step: jax.Array, *, config: Optimizer, total_steps: int) -> jax.Array:
        del total_steps
        return config.learning_rate * _warmup(step, config)


@section
class _ToFloor(Schedule):
    """Rises for `warmup_steps`, then falls to a floor."""

    min_lr_ratio: Share = setting(0.0, "The final learning rate, as a share of `learning_rate`.")

    def _after_warmup(self, step: jax.Array, shape: jax.Array, config: Optimizer):
        """Returns the linear warm-up, then `shape`, which falls from 1 to 0, above the floor."""
        floor = self.min_lr_ratio
        falling = config.learning_rate * (floor + (1 - floor) * shape)
        rising = times(step, config.learning_rate / max(config.warmup_steps, 1))
        return jnp.where(step < config.warmup_steps, rising, falling)


@section
class LinearDecay(_ToFloor, kind="linear"):
    """Rises linearly for `warmup_steps`, and falls linearly from there to the end (fairseq's
    polynomial_decay of power 1; transformers' get_linear_schedule_with_warmup).
    """

    def rate(self, step: jax.Array, *, config: Optimizer, total_steps: int) -> jax.Array:
        return self._after_warmup(step, _left(step, config, total_steps), config)


@section
class PolynomialDecay(_ToFloor, kind="polynomial"):
    """After warm-up, falls as (share of the remaining steps)^`power` to `min_lr_ratio` of the
    learning rate.
    """

    power: Positive = setting(1.0, "Exponent of the share of remaining steps.")

    def rate(self, step: jax.Array, *, config: Optimizer, total_steps: int) -> jax.Array:
        left = _left(step, config, total_steps)
        # A power of 1 is exactly linear.
        shape = left if self.power == 1 else jnp.maximum(left, 0.0) ** self.power
        return self._after_warmup(step, shape, config)


@section
class CosineDecay(_ToFloor, kind="cosine"):
    """After warm-up, falls along half a cosine to `min_lr_ratio` of the learning rate (Loshchilov
    and Hutter 2017, SGDR, without restarts).
    """

    def rate(self, step: jax.Array, *, config: Optimizer, total_steps: int) -> jax.Array:
        done = step - config.warmup_steps
        share = done.astype(jnp.float32) / (total_steps - config.warmup_steps)
        # sin^2 of half the angle is precise where 1 + cos would cancel.
        return self._after_warmup(step, jnp.sin(0.5 * jnp.pi * (1 - share)) ** 2, config)


@section
class WarmupStableDecay(_ToFloor, kind="warmup_stable_decay"):
    """Stays constant after warm-up, then falls over the last `decay_steps` as 1 - sqrt(share of
    them that is done), to `min_lr_ratio` of the learning rate.

    Hägele et al. 2024 (arXiv:2405.18392), section 3; ModernBERT uses this decay.
    """

    in_steps = ("decay_steps",)

    decay_steps: Natural = setting(0, "Steps of the decay at the end of the run.")

    def problems(self, config: Optimizer, total_steps: int) -> Iterator[tuple[str, str]]:
        warmup, third = config.warmup_steps, max(total_steps // 3, 1)
        most = total_steps - warmup
        # A warm-up as long as the run is reported as a separate error.
        if most < 1 or 1 <= self.decay_steps <= most:
            return
        remedy = f"set optimizer.schedule.decay_steps={third} (a third of the steps)"
        if warmup > third:
            remedy = (
                f"set optimizer.warmup_steps={total_steps // 10} and set "
                f"optimizer.schedule.decay_steps={third} (a tenth and a third of the steps)"
            )
        yield (
            "schedule.decay_steps",
            f"is {self.decay_steps}, but must be from 1 to {most} (the {total_steps} steps minus "
            f"the warm-up); {remedy}",
        )

    def rate(self, step: jax.Array, *, config: Optimizer, total_steps: int) -> jax.Array:
        decay = max(self.decay_steps, 1)
        left = jnp.minimum(total_steps - step, decay)
        # 1 - sqrt(x) is (1 - x) / (1 + sqrt(x)), which is precise near the end.
        shape = left.astype(jnp.float32) / decay / (1 + jnp.sqrt((decay - left) / decay))
        return self._after_warmup(step, shape, config)


def _left(step: jax.Array, config: Optimizer, total_steps: int) -> jax.Array:
    """Returns the remaining share of the steps after warm-up."""
    return (total_steps - step).astype(jnp.float32) / (total_steps - config.warmup_steps)


def _warmup(step: jax.Array, config: Optimizer) -> jax.Array:
    """Returns min(1, step / `warmup_steps`), and 1 without warm-up."""
    if not config.warmup_steps:
        return jnp.float32(1.0)
    return jnp.minimum(1.0, step.astype(jnp.float32) / config.warmup_steps)


def times(count: jax.Array, rate: float) -> jax.Array:
    """Returns count x rate, with `rate` represented by two float32 numbers."""
    high = np.float32(rate)
    low = np.float32(rate - np.float64(high))
    count = count.astype(jnp.float32)
    return count * high + count * low
