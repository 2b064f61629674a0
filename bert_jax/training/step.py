"""The train step and the evaluation step: pure functions of (state, batch)."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from bert_jax.config import TrainConfig
from bert_jax.model import heads, losses
from bert_jax.model.dropout import DropoutKey
from bert_jax.model.sharding import batch_spec
from bert_jax.training import guard
from bert_jax.training.compiler_options import for_platform
from bert_jax.training.optimizer import adamw, learning_rate
from bert_jax.training.state import TrainState

Batch = dict[str, jax.Array]
Metrics = dict[str, jax.Array]


def train_step(state: TrainState, batch: Batch, *, config: TrainConfig) -> tuple[Any, Metrics]:
    """One update on one global batch. The metrics are float32 scalars, before the update.

    The loss is the sum of two means, each over the whole global batch, whatever the mesh and
    however many slices the batch is cut into. An update that is not good (guard.py) is left out:
    `step` goes on, parameters and the optimiser's state keep their bits, and `applied` is 0.
    """
    # Dropout knows a row by its number in the global batch.
    rows_B = jax.lax.broadcasted_iota(
        jnp.uint32, batch["input_ids"].shape[:1], 0, out_sharding=batch_spec()
    )
    counts = {n: jnp.maximum(jnp.sum(batch[f"{n}_weights"]), 1.0) for n in ("mlm", "nsp")}

    def loss(params, batch, rows_B):
        key = DropoutKey.create(seed=config.seed, step=state.step, rows_B=rows_B)
        outputs = heads.apply(
            params,
            batch,
            config=config.model,
            head=config.head,
            compute=config.compute,
            key=key,
        )
        sums = losses.pretraining_sums(outputs, batch)
        return sum(sums[f"{n}_loss"] / counts[n] for n in counts), sums

    slices = config.optimizer.gradient_accumulation_steps
    gradients, sums = accumulate(loss, state.params, (batch, rows_B), slices=slices)
    norm = optax.tree.norm(gradients)
    metrics = losses.means(sums)
    is_good = guard.is_good(
        metrics["loss"], norm, state.recent_norms, spike_factor=config.optimizer.spike_factor
    )
    direction, opt_state = adamw(config.optimizer).update(
        gradients, state.opt_state, state.params, norm=norm, is_good=is_good
    )
    rate = learning_rate(state.step, config=config.optimizer, total_steps=config.total_steps)
    params = jax.tree.map(lambda p, d: jnp.where(is_good, p - rate * d, p), state.params, direction)
    recent = guard.remember(norm, state.recent_norms)
    metrics |= {
        "learning_rate": rate,
        "grad_norm": norm,
        "applied": is_good.astype(jnp.float32),
    }
    return TrainState(state.step + 1, params, opt_state, recent), metrics


def accumulate(loss: Callable, params: Any, rows: Any, *, slices: int) -> Any:
    """Gradient of `loss(params, *rows)` and its auxiliary output, summed over `slices` of the rows.

    Row r of every array goes to slice r mod `slices`, so that each device keeps the rows it holds.
    """
    gradient = jax.grad(loss, has_aux=True)
    if slices == 1:
        return gradient(params, *rows)

    def split(x):
        shape = (x.shape[0] // slices, slices, *x.shape[1:])
        return jnp.moveaxis(jnp.reshape(x, shape, out_sharding=batch_spec()), 1, 0)

    parts = jax.tree.map(split, rows)
    first = jax.tree.map(lambda x: x[0], parts)
    zeros = jax.tree.map(
        lambda x: jnp.zeros(x.shape, x.dtype, out_sharding=x.sharding),
        jax.eval_shape(gradient, params, *first),
    )

    def add(total, part):
        return jax.tree.map(jnp.add, total, gradient(params, *part)), None

    return jax.lax.scan(add, zeros, parts)[0]


def eval_step(params: heads.Params, batch: Batch, *, config: TrainConfig) -> losses.Sums:
    """Sums over one batch of held-out examples; rows of weight 0 count for nothing."""
    outputs = heads.apply(
        params, batch, config=config.model, head=config.head, compute=config.compute
    )
    return losses.pretraining_sums(outputs, batch)


def lower_train_step(
    config: TrainConfig, state: Any, batch: Any, *, platform: str | None = None
) -> Any:
    """The step, lowered for these shapes and shardings (arrays or their descriptions).

    `platform` is that of the devices; none means that they are here.
    """

    def step(state, batch):
        return train_step(state, batch, config=config)

    return _lower(jax.jit(step, donate_argnums=0), state, batch, platform=platform)


def lower_eval_step(
    config: TrainConfig, params: Any, batch: Any, *, platform: str | None = None
) -> Any:
    """The evaluation step, lowered in the same way."""

    def step(params, batch):
        return eval_step(params, batch, config=config)

    return _lower(jax.jit(step), params, batch, platform=platform)


def _lower(step: Any, *arguments: Any, platform: str | None) -> Any:
    platforms = None if platform is None else (platform,)
    return step.trace(*arguments).lower(lowering_platforms=platforms)


def compile_lowered(lowered: Any) -> Any:
    """The executable, with the options that the devices' platform wants."""
    return lowered.compile(compiler_options=for_platform(jax.default_backend()) or None)
