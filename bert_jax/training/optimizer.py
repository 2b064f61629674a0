"""BERT's optimiser: clip, Adam without bias correction, decoupled decay, warm-up, linear decay.

What the original does (google-research/bert optimization.py), traps included:

- Adam has no bias correction, unlike the paper it cites (bert#153). With 10,000 warm-up steps it
  hardly matters; `bias_correction=True` gives the corrected form.
- Decay (0.01) applies to every parameter but biases and norms, chosen by name.
- The decay line is not delayed by the warm-up: it runs from step 0 to the end, and the warm-up
  line replaces it for the first steps. So the rate falls by a factor of 1 - warmup/total where
  the two meet.
- The first update (step 0) has a rate of exactly 0.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from bert_jax.config import OptimizerConfig

_DECAYED = {"kernel", "embedding"}
_NOT_DECAYED = {"bias", "scale"}


def learning_rate(step: jax.Array, *, config: OptimizerConfig, total_steps: int) -> jax.Array:
    """The float32 rate of update number `step` (an int32 scalar from 0).

    Within one unit in the last place of the formula in float64: the remaining steps are counted in
    integers, and the rate of one step is carried in two floats. TF1 subtracts a rounded quotient
    from 1 instead and is 1.3 % off in the last of a million steps.
    """
    rising = _times(step, config.learning_rate / max(config.warmup_steps, 1))
    falling = _times(total_steps - step, config.learning_rate / total_steps)
    return jnp.where(step < config.warmup_steps, rising, falling)


def _times(count: jax.Array, rate: float) -> jax.Array:
    """count x rate, where float32 cannot hold `rate` but two of them can."""
    high = np.float32(rate)
    low = np.float32(rate - np.float64(high))
    count = count.astype(jnp.float32)
    return count * high + count * low


def decay_mask(params: Any) -> Any:
    """True where weight decay applies: kernels and embeddings; never biases and norm scales."""

    def by_name(path, _):
        name = path[-1].key
        if name not in _DECAYED | _NOT_DECAYED:
            raise ValueError(f"parameter {jax.tree_util.keystr(path)}: decay is not defined for it")
        return name in _DECAYED

    return jax.tree_util.tree_map_with_path(by_name, params)


def clip_by_global_norm(largest: float) -> optax.GradientTransformationExtraArgs:
    """Gradients times min(1, largest / their global norm), as TF1 clips (Pascanu et al. 2012).

    One factor for all; optax divides each gradient, which costs a CPU one more array for each.
    `update` takes the `norm`, where it is known.
    """

    def update(updates, state, params=None, *, norm=None, **_):
        del params
        norm = optax.tree.norm(updates) if norm is None else norm
        scale = jnp.where(norm < largest, 1.0, largest / norm)
        return jax.tree.map(lambda g: g * scale, updates), state

    return optax.GradientTransformationExtraArgs(optax.init_empty_state, update)


def scale_by_adam(
    *, beta1: float, beta2: float, epsilon: float, bias_correction: bool
) -> optax.GradientTransformationExtraArgs:
    """Adam's direction m / (sqrt(v) + epsilon), of moments that start at 0.

    Where `is_good` (a boolean scalar) is false, moments and count keep their bits. The choice is
    made here and not after the update, so that the direction is one of the moments that are kept:
    parameters then need no old moment, and each array can be written where it lies. (Chosen
    afterwards, XLA copies both moments of a CPU's step first.)
    """

    def init(params):
        # Two trees, not one twice: the step donates its buffers, and each only once.
        mu, nu = (jax.tree.map(jnp.zeros_like, params) for _ in range(2))
        return optax.ScaleByAdamState(count=jnp.zeros([], jnp.int32), mu=mu, nu=nu)

    def update(updates, state, params=None, *, is_good=True, **_):
        del params

        def average(beta, old, new):
            # A choice between two values, never a product with 0: 0 x NaN is NaN.
            return jnp.where(is_good, beta * old + (1 - beta) * new, old)

        mu = jax.tree.map(lambda m, g: average(beta1, m, g), state.mu, updates)
        nu = jax.tree.map(lambda v, g: average(beta2, v, g * g), state.nu, updates)
        count = jnp.where(is_good, state.count + 1, state.count)
        c1, c2 = (1 - beta**count if bias_correction else 1 for beta in (beta1, beta2))
        direction = jax.tree.map(lambda m, v: m / c1 / (jnp.sqrt(v / c2) + epsilon), mu, nu)
        return direction, optax.ScaleByAdamState(count=count, mu=mu, nu=nu)

    return optax.GradientTransformationExtraArgs(init, update)


def adamw(config: OptimizerConfig) -> optax.GradientTransformationExtraArgs:
    """Everything but the learning rate, which the step takes from its own counter.

    `update` takes `norm`, the global norm of the gradients, and `is_good`, whether to update.
    """
    return optax.chain(
        clip_by_global_norm(config.clip_norm) if config.clip_norm else optax.identity(),
        scale_by_adam(
            beta1=config.beta1,
            beta2=config.beta2,
            epsilon=config.epsilon,
            bias_correction=config.bias_correction,
        ),
        optax.add_decayed_weights(config.weight_decay, mask=decay_mask),
    )


def adam_state(opt_state: Any) -> optax.ScaleByAdamState:
    """The part of `adamw`'s state that holds the moments."""
    (found,) = [s for s in jax.tree.leaves(opt_state, is_leaf=_is_adam) if _is_adam(s)]
    return found


def with_adam_state(opt_state: Any, new: optax.ScaleByAdamState) -> Any:
    """`opt_state` with other moments."""
    return jax.tree.map(lambda s: new if _is_adam(s) else s, opt_state, is_leaf=_is_adam)


def _is_adam(state: Any) -> bool:
    return isinstance(state, optax.ScaleByAdamState)
