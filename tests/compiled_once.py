"""A step that one test has compiled serves all others in this process.

Many tests begin the same small run: whole, stopped, gone on with. What each of them would trace,
lower and compile is a function of the key below, and everything else of a run is done anew. Runs in
processes of their own (`make chaos`, `make smoke`) share nothing.
"""

import functools
from typing import Any

import jax

from bert_jax.config import TrainConfig
from bert_jax.registry import ATTENTION, PARTS, POSITIONS, SCORES
from bert_jax.update import step

_MISSING = object()


def _key(config: TrainConfig, arguments: Any, objective: Any) -> Any:
    """Returns all that a lowered step depends on, the objects behind names included: a test may
    replace them.
    """
    leaves, structure = jax.tree.flatten(arguments)
    shapes = tuple((leaf.shape, leaf.dtype, getattr(leaf, "sharding", None)) for leaf in leaves)
    model, optimizer = config.model, config.optimizer
    behind = (
        *(PARTS[name] for name in config.head.parts),
        *(optimizer.entry(), optimizer.schedule.entry()),
        *(POSITIONS[model.position_embedding_type], ATTENTION[config.compute.attention]),
        *(model.mixer.entry(), SCORES[getattr(model.mixer, "score", "scaled_dot_product")]),
    )
    mesh = jax.sharding.get_abstract_mesh()
    return config, structure, shapes, objective, behind, mesh


class CompiledOnce:
    """The three functions of `update.step` that runs call, with a memory."""

    def __init__(self) -> None:
        self._lowered: dict[Any, Any] = {}
        self._compiled: dict[int, Any] = {}

    def lower(self, make: Any, config: Any, first: Any, batch: Any, **options: Any) -> Any:
        if options.get("rates") is not None:
            return make(config, first, batch, **options)
        phase = options.get("phase", 0)
        key = (make, phase, *_key(config.in_phase(phase), (first, batch), options["objective"]))
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

    def forget(self) -> None:
        self._lowered.clear()
        self._compiled.clear()

    def install(self, patch: Any) -> None:
        from bert_jax.training import compiled_steps, evaluate
        from bert_jax_lab.doctor import speed

        train = functools.partial(self.lower, step.lower_train_step)
        for module in (compiled_steps, speed):
            patch.setattr(module, "lower_train_step", train)
            patch.setattr(module, "compile_lowered", self.compile)
        patch.setattr(
            evaluate, "lower_eval_step", functools.partial(self.lower, step.lower_eval_step)
        )
        patch.setattr(evaluate, "compile_lowered", self.compile)
