"""One update: a pure function of (state, batch), the same for every objective and task."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from bert_jax.config import TrainConfig
from bert_jax.model.dropout import DropoutKey
from bert_jax.model.microbatches import in_microbatches
from bert_jax.model.sharding import over_batch
from bert_jax.objectives.objective import Objective
from bert_jax.update import optimizers, skip_updates
from bert_jax.update.compiler_options import for_platform
from bert_jax.update.layer_rates import layer_rates
from bert_jax.update.state import TrainState

Batch = dict[str, jax.Array]
Metrics = dict[str, jax.Array]


def train_step(
    state: TrainState,
    batch: Batch,
    *,
    config: TrainConfig,
    objective: Objective,
    rates: Any = None,
    phase: int = 0,
) -> tuple[TrainState, Metrics]:
    """Makes one update of a phase on a global batch. The metrics, float32 scalars, are computed
    before the update.

    Each part of the loss is a mean over the whole global batch, for any mesh and any number of
    microbatches. A bad update (skip_updates.py) is skipped: `step` increases, parameters and the
    state of the optimizer keep their bits, and `applied` is 0. `rates` is a factor of the learning
    rate per parameter (layer_rates.py), 0 for frozen parameters; by default only
    `optimizer.frozen_layers` are frozen.
    """
    schedule = config.schedule_span(phase)
    config = config.in_phase(phase)
    if rates is None and (frozen := config.optimizer.frozen_layers):
        rates = layer_rates(state.params, decay=1.0, frozen_layers=frozen)
    # Dropout identifies a row by its number in the global batch.
    rows_B = jax.lax.broadcasted_iota(
        jnp.uint32, batch["input_ids"].shape[:1], 0, out_sharding=over_batch()
    )
    counts = objective.counts(batch)

    def loss(params, batch, rows_B):
        if rates is not None:
            # Frozen parameters have no gradient and do not count in its norm.
            params = jax.tree.map(lambda p, r: p if r else jax.lax.stop_gradient(p), params, rates)
        key = DropoutKey.create(seed=config.seed, step=state.step, rows_B=rows_B)
        sums = objective.forward(params, batch, config=config, key=key)
        return objective.loss(sums, counts), sums

    microbatches = config.optimizer.gradient_accumulation_steps
    if objective.needs_whole_batch:
        microbatches = 1
    gradients, sums = accumulate(loss, state.params, (batch, rows_B), microbatches=microbatches)
    norm = optax.tree.norm(gradients)
    metrics = objective.metrics(sums)
    should_apply = skip_updates.should_apply(
        metrics["loss"], norm, state.recent_norms, spike_factor=config.optimizer.spike_factor
    )
    direction, opt_state = optimizers.make(config.optimizer).update(
        gradients, state.opt_state, state.params, norm=norm, should_apply=should_apply
    )
    step = state.step - schedule.start if schedule.start else state.step
    rate = config.optimizer.schedule.rate(step, config=config.optimizer, total_steps=len(schedule))

    def moved(p, d, r=None):
        return jnp.where(should_apply, p - (rate if r is None else rate * r) * d, p)

    each = (state.params, direction) if rates is None else (state.params, direction, rates)
    params = jax.tree.map(moved, *each)
    recent = skip_updates.push_norm(norm, state.recent_norms)
    metrics |= {
        "learning_rate": rate,
        "grad_norm": norm,
        "applied": should_apply.astype(jnp.float32),
    }
    return TrainState(state.step + 1, params, opt_state, recent), metrics


def accumulate(loss: Callable, params: Any, rows: Any, *, microbatches: int) -> Any:
    """Returns the gradient of `loss(params, *rows)` and its auxiliary output, summed over the
    microbatches.

    Row r of every array is in microbatch r mod `microbatches`, so that no row moves to another
    device.
    """
    gradient = jax.grad(loss, has_aux=True)
    if microbatches == 1:
        return gradient(params, *rows)

    parts = in_microbatches(rows, microbatches)
    first = jax.tree.map(lambda x: x[0], parts)
    zeros = jax.tree.map(
        lambda x: jnp.zeros(x.shape, x.dtype, out_sharding=x.sharding),
        jax.eval_shape(gradient, params, *first),
    )

    def add(total, part):
        return jax.tree.map(jnp.add, total, gradient(params, *part)), None

    return jax.lax.scan(add, zeros, parts)[0]


def lower_train_step(
    config: TrainConfig,
    state: Any,
    batch: Any,
    *,
    objective: Objective,
    rates: Any = None,
    phase: int = 0,
    platform: str | None = None,
) -> Any:
    """Returns the train step of a phase, lowered for the shapes and shardings of its arguments.

    `platform` is the platform of described devices; None means the devices of this process.
    """

    def step(state, batch):
        return train_step(
            state, batch, config=config, objective=objective, rates=rates, phase=phase
        )

    return _lower(jax.jit(step, donate_argnums=0), state, batch, platform=platform)


def lower_eval_step(
    config: TrainConfig,
    params: Any,
    batch: Any,
    *,
    objective: Objective,
    platform: str | None = None,
) -> Any:
    """Returns the lowered evaluation step, a function from parameters and a batch to sums.

    Rows with weight 0 do not count.
    """

    def step(params, batch):
        return objective.forward(params, batch, config=config, key=None)

    return _lower(jax.jit(step), params, batch, platform=platform)


def _lower(step: Any, *arguments: Any, platform: str | None) -> Any:
    platforms = None if platform is None else (platform,)
    return step.trace(*arguments).lower(lowering_platforms=platforms)


def temporary_bytes(sizes: Any) -> int:
    """Returns the memory of a compiled step on a device in addition to its arguments, in bytes,
    from its `memory_analysis()`.
    """
    return sizes.temp_size_in_bytes + sizes.output_size_in_bytes - sizes.alias_size_in_bytes


def compile_lowered(lowered: Any) -> Any:
    """Returns the executable, compiled with the options of the devices' platform."""
    return lowered.compile(compiler_options=for_platform(jax.default_backend()) or None)
