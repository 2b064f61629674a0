"""What one test has compiled serves all others in this process.

Many tests begin the same small run: whole, stopped, resumed. What each of them would trace, lower
and compile is a function of the keys below, and everything else of a run is done again. Runs in
processes of their own (`make chaos`, `make smoke`) share nothing.
"""

import dataclasses
import functools
from typing import Any

import jax
import numpy as np

from bert_jax.config import OptimizerConfig, TrainConfig
from bert_jax.inference.forward import Forward
from bert_jax.model import bert
from bert_jax.registry import ATTENTION, PARTS, POSITIONS, SCORES
from bert_jax.update import step
from bert_jax.update.state import TrainState

_MISSING = object()
# Options that no step reads: runs that differ in these share their steps.
_UNREAD = {
    name: getattr(TrainConfig(), name)
    for name in (
        *("name", "data", "evaluation", "checkpoint", "hooks", "trackers", "log_every_steps"),
        *("deadline_seconds", "output_bias"),
    )
}


def _behind(config: TrainConfig) -> Any:
    """Returns the objects that the names of a model stand for: a test may replace them."""
    model = config.model
    return (
        *(PARTS[name] for name in config.head.parts),
        *(POSITIONS[model.position_embedding_type], ATTENTION[config.compute.attention]),
        *(model.mixer.entry(), SCORES[getattr(model.mixer, "score", "scaled_dot_product")]),
    )


def _described(tree: Any) -> Any:
    """Returns the structure of a pytree with the shapes, types and shardings of its arrays."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, tuple((x.shape, x.dtype, getattr(x, "sharding", None)) for x in leaves)


def _rates(rates: Any) -> Any:
    return None if rates is None else (jax.tree.structure(rates), *jax.tree.leaves(rates))


class CompiledOnce:
    """The functions that trace and compile for runs, with a memory."""

    def __init__(self) -> None:
        self._lowered: dict[Any, Any] = {}
        self._compiled: dict[int, Any] = {}
        self._forward: dict[Any, Any] = {}
        self._params: dict[Any, Any] = {}

    def lower(self, make: Any, config: Any, first: Any, batch: Any, **options: Any) -> Any:
        phase, objective = options.get("phase", 0), options["objective"]
        if make is step.lower_eval_step:  # which has no schedule
            read, span = dataclasses.replace(config, optimizer=OptimizerConfig()), None
        else:
            read, span = config.in_phase(phase), config.schedule_span(phase)
        if not (read.model.hidden_dropout_prob or read.model.attention_probs_dropout_prob):
            read = dataclasses.replace(read, seed=0)  # only dropout reads it
        key = (
            *(make, span, dataclasses.replace(read, phases=(), **_UNREAD), _behind(read)),
            *(read.optimizer.entry(), read.optimizer.schedule.entry()),
            *(_described((first, batch)), _rates(options.get("rates"))),
            # Each fine-tuning has an objective of its own.
            *(type(objective), tuple(sorted(vars(objective).items()))),
            jax.sharding.get_abstract_mesh(),
        )
        found = self._lowered.get(key, _MISSING)
        if found is _MISSING:
            found = self._lowered[key] = make(config, first, batch, **options)
            self._compiled[id(found)] = None
        return found

    def compile(self, lowered: Any) -> Any:
        known = id(lowered) in self._compiled
        executable = self._compiled[id(lowered)] if known else None
        if executable is None:
            executable = step.compile_lowered(lowered)
            if known:
                self._compiled[id(lowered)] = executable
        return executable

    def forward(self, config: TrainConfig, output: Any, **options: Any) -> Forward:
        found = Forward(config, output, **options)
        layers = options.get("layers")
        key = (
            *(config.model, config.head, config.compute, _behind(config), output),
            None if layers is None else tuple(layers),
            options.get("pooling"),
        )
        found._apply = self._forward.setdefault(key, found._apply)
        return found

    def initial(self, config: TrainConfig, mesh: Any) -> TrainState:
        around = jax.sharding.get_abstract_mesh()
        key = config.model, config.head, config.seed, _behind(config), around
        if key not in self._params:
            fresh = bert.init_params(config.model, config.head, seed=config.seed)
            self._params[key] = jax.tree.map(np.asarray, fresh)
        params = jax.tree.map(jax.numpy.array, self._params[key])  # which a step may donate
        state = TrainState.create(config, params)
        return state.to_mesh(mesh, shard_weights=config.mesh.shard_weights)

    def forget(self) -> None:
        for memory in (self._lowered, self._compiled, self._forward, self._params):
            memory.clear()

    def install(self, patch: Any) -> None:
        from bert_jax.api import model as of_python
        from bert_jax.inference import embed, fill_mask
        from bert_jax.memory import fit
        from bert_jax.tasks import finetune, predict
        from bert_jax.training import compiled_steps, evaluate, pretrain
        from bert_jax_lab.doctor import speed

        train = functools.partial(self.lower, step.lower_train_step)
        for module in (compiled_steps, finetune, pretrain, speed):
            patch.setattr(module, "lower_train_step", train)
        for module in (evaluate, pretrain):
            scores = functools.partial(self.lower, step.lower_eval_step)
            patch.setattr(module, "lower_eval_step", scores)
        for module in (compiled_steps, evaluate, fit, speed):
            patch.setattr(module, "compile_lowered", self.compile)
        for module in (of_python, embed, fill_mask, finetune, predict):
            patch.setattr(module, "Forward", self.forward)
        patch.setattr(TrainState, "initial", self.initial)
