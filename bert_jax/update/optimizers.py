"""Optimizers: BERT's AdamW, and any transformation of optax.

An entry of `registry.OPTIMIZERS` is a section with `kind=` that overrides
`Optimizer.transformation`, or a function of an `Optimizer`. Either returns an
`optax.GradientTransformation` at a learning rate of 1, such as `optax.lion(1.0)`: the step
multiplies its updates by the learning rate and adds them. `make` adds clipping, and skips bad
updates together with the state of the transformation (skip_updates.py).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from bert_jax.config import Optimizer, OptimizerConfig
from bert_jax.config.fields import section
from bert_jax.model.roles import role_of
from bert_jax.model.sharding import in_automatic_layout


def decay_mask(params: Any) -> Any:
    """Returns true where weight decay applies: kernels, embeddings and what a mixer declares, but
    never biases and norm scales.
    """

    def is_decayed(path, _):
        role = role_of(path)
        if role is None:
            raise ValueError(f"parameter {jax.tree_util.keystr(path)} has no role: declare one")
        return role.is_decayed

    return jax.tree_util.tree_map_with_path(is_decayed, params)


def clip_by_global_norm(largest: float) -> optax.GradientTransformationExtraArgs:
    """Multiplies gradients by min(1, largest / their global norm), as in TF1 (Pascanu et al. 2012).

    It uses one factor for all; optax divides each gradient, which takes one more array per gradient
    on a CPU. `update` takes the `norm` if it is known.
    """

    def update(updates, state, params=None, *, norm=None, **_):
        norm = optax.tree.norm(updates) if norm is None else norm
        scale = jnp.where(norm < largest, 1.0, largest / norm)
        return jax.tree.map(lambda g: g * scale, updates), state

    return optax.GradientTransformationExtraArgs(optax.init_empty_state, update)


def scale_by_adam(
    *, beta1: float, beta2: float, epsilon: float, bias_correction: bool
) -> optax.GradientTransformationExtraArgs:
    """Computes Adam's direction m / (sqrt(v) + epsilon); moments start at 0.

    Where `should_apply` (a boolean scalar) is false, moments and count keep their bits. The choice
    is made here, so that the direction uses the stored moments: parameters then need no old moment,
    and each array can be updated in place. (With a choice after the update, XLA first copies both
    moments on a CPU.)
    """

    def init(params):
        # Two separate trees: the step donates its buffers, and each only once.
        mu, nu = (jax.tree.map(jnp.zeros_like, params) for _ in range(2))
        return optax.ScaleByAdamState(count=jnp.zeros([], jnp.int32), mu=mu, nu=nu)

    def update(updates, state, params=None, *, should_apply=True, **_):

        def average(beta, old, new):
            # A selection, not a multiplication by 0: 0 x NaN is NaN.
            return jnp.where(should_apply, beta * old + (1 - beta) * new, old)

        mu = jax.tree.map(lambda m, g: average(beta1, m, g), state.mu, updates)
        nu = jax.tree.map(lambda v, g: average(beta2, v, g * g), state.nu, updates)
        count = jnp.where(should_apply, state.count + 1, state.count)
        c1, c2 = (1 - beta**count if bias_correction else 1 for beta in (beta1, beta2))
        direction = jax.tree.map(lambda m, v: m / c1 / (jnp.sqrt(v / c2) + epsilon), mu, nu)
        return direction, optax.ScaleByAdamState(count=count, mu=mu, nu=nu)

    return optax.GradientTransformationExtraArgs(init, update)


class Direction(NamedTuple):
    """A transformation that returns a *direction*: the step subtracts it, times the learning rate.

    `update` takes `norm`, the global norm of the gradients, and `should_apply` (a boolean scalar):
    if it is false, the state keeps its bits.
    """

    init: Callable[[Any], Any]
    update: Callable[..., tuple[Any, Any]]


def make(config: Optimizer) -> Direction:
    """Returns the optimizer of a config in the form that the step uses."""
    found = config.transformation()
    if isinstance(found, Direction):
        return found
    clip = clip_by_global_norm(config.clip_norm) if config.clip_norm else optax.identity()
    return _skipping(optax.chain(clip, found))


def _skipping(inner: optax.GradientTransformation) -> Direction:
    """Returns an optax transformation as a `Direction`; skipped updates keep its state."""
    inner = optax.with_extra_args_support(inner)

    def inner_update(gradients, state, params, norm):
        return inner.update(gradients, state, params, norm=norm)

    def update(gradients, state, params, *, norm, should_apply):
        # Non-finite values must not reach the state, not even multiplied by 0.
        safe = jax.tree.map(lambda g: jnp.where(should_apply, g, 0.0), gradients)
        # Means over a dim and matmuls: optax has no mesh awareness.
        anywhere = in_automatic_layout(inner_update, like=(gradients, state))
        updates, new = anywhere(safe, state, params, jnp.where(should_apply, norm, 0.0))
        kept = jax.tree.map(lambda n, o: jnp.where(should_apply, n, o), new, state)
        return jax.tree.map(jnp.negative, updates), kept

    return Direction(inner.init, update)


def bert_adamw(config: OptimizerConfig) -> Direction:
    """Returns AdamW as in BERT (google-research/bert optimization.py), with its differences from
    the paper.

    Adam has no bias correction (google-research/bert issue 153); with 10,000 warm-up steps the
    effect is small, and `bias_correction` enables it. Decay applies to every parameter except
    biases and norms, chosen by name.
    """
    return Direction(*adam_with_decay(config, bias_correction=config.bias_correction))


@section
class AdamW(Optimizer, kind="adamw"):
    """AdamW as in its paper (Loshchilov and Hutter 2019), with bias correction."""

    def transformation(self) -> Direction:
        return Direction(*adam_with_decay(self, bias_correction=True))


def adam_with_decay(
    config: Optimizer, *, bias_correction: bool, clip_norm: float | None = None
) -> optax.GradientTransformationExtraArgs:
    """Returns clipping, Adam's direction and decoupled decay. `clip_norm` replaces the config's."""
    clip = config.clip_norm if clip_norm is None else clip_norm
    return optax.chain(
        clip_by_global_norm(clip) if clip else optax.identity(),
        scale_by_adam(
            beta1=config.beta1,
            beta2=config.beta2,
            epsilon=config.epsilon,
            bias_correction=bias_correction,
        ),
        optax.add_decayed_weights(config.weight_decay, mask=decay_mask),
    )
