"""The train step of a run, compiled once per batch shape."""

import json
import os
import time
from concurrent.futures import Executor, Future
from typing import Any

import jax

from bert_jax import config as configs
from bert_jax.memory.fit import require_memory
from bert_jax.runtime import distributed
from bert_jax.training.job import TrainingJob
from bert_jax.update.state import TrainState
from bert_jax.update.step import compile_lowered, lower_train_step
from bert_jax.workdir import run_directory


class CompiledSteps:
    """The train steps of one phase, compiled in the background, so that a signal interrupts the
    wait.

    Before a step is compiled, all processes verify that they run the same program.
    """

    def __init__(self, job: TrainingJob, *, phase: int, background: Executor):
        self._job, self.phase, self._background = job, phase, background
        # Shapes -> the executable; and the start of the last compilation.
        self._steps: dict[Any, Future] = {}
        self.began = 0.0

    def begin(self, state: TrainState, batch: Any) -> Future:
        """Returns the step for batches of these shapes. Starts to compile it if it is new."""
        shape = _shape(batch)
        if shape in self._steps:
            return self._steps[shape]
        self.began, job = time.monotonic(), self._job
        lowered = lower_train_step(
            job.config,
            state,
            batch,
            objective=job.objective,
            rates=job.rates,
            phase=self.phase,
        )
        distributed.assert_same_program(lambda: self._facts(lowered))
        # A description, because the next step donates the arrays.
        described = jax.tree.map(_described, state)
        self._steps[shape] = self._background.submit(self._compile, lowered, described)
        return self._steps[shape]

    def _compile(self, lowered: Any, state: Any) -> Any:
        job = self._job
        program = job.programs.get(self.phase) or compile_lowered(lowered)
        require_memory(program, config=job.config, phase=self.phase, state=state, mesh=job.mesh)
        return program

    def __call__(self, state: TrainState, batch: Any) -> tuple[TrainState, Any]:
        """Dispatches one step, which must be ready."""
        return self._steps[_shape(batch)].result()(state, batch)

    def is_ready(self, batch: Any) -> bool:
        """Returns whether a step for batches of these shapes is compiled."""
        step = self._steps.get(_shape(batch))
        return step is not None and step.done()

    def _facts(self, lowered: Any) -> dict[str, str]:
        """Returns the facts that must be equal in all processes."""
        return {
            "config": json.dumps(configs.to_dict(self._job.config), sort_keys=True),
            **self._job.facts(),
            "versions": json.dumps(run_directory.versions()),
            "compiler flags": json.dumps(_compiler_flags()),
            "lowered step": lowered.as_text(),
        }


def _shape(batch: Any) -> Any:
    return tuple((name, array.shape) for name, array in sorted(batch.items()))


def _described(array: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=array.sharding)


def _compiler_flags() -> list[str]:
    """Returns the compiler flags in the environment, except for dump options."""
    flags = " ".join(os.environ.get(name, "") for name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS"))
    return sorted(flag for flag in flags.split() if not flag.startswith("--xla_dump"))
