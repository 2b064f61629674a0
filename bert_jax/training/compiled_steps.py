"""The train step of a run, compiled once for each shape of a batch."""

import json
import os
import time
from concurrent.futures import Executor, Future
from typing import TYPE_CHECKING, Any

import jax

from bert_jax import config as configs
from bert_jax.memory.compiled import require_memory
from bert_jax.runtime import distributed
from bert_jax.runtime.watchdog import COMPILE_PATIENCE
from bert_jax.update.state import TrainState
from bert_jax.update.step import compile_lowered, lower_train_step
from bert_jax.workdir import run_directory

if TYPE_CHECKING:
    from bert_jax.training.loop import Run


class CompiledSteps:
    """Compiles in the background, so that a signal is heard, and proves that all processes run the
    same program before any of them does."""

    def __init__(self, run: "Run", *, phase: int, background: Executor):
        self._run, self._job, self._phase, self._background = run, run.job, phase, background
        # Shape -> the executable, and when its making began.
        self._steps: dict[Any, tuple[Future, float]] = {}

    def begin(self, state: TrainState, batch: Any) -> None:
        """Starts to compile for batches of this shape, unless that is done or under way."""
        shape = _shape(batch)
        if shape in self._steps:
            return
        job, began = self._job, time.monotonic()
        lowered = lower_train_step(
            job.config,
            state,
            batch,
            objective=job.objective,
            rates=job.rates,
            phase=self._phase,
        )
        distributed.assert_same_program(lambda: self._facts(lowered), mesh=job.mesh)
        # Descriptions: the next step takes over the arrays' memory.
        shapes = jax.tree.map(_described, (state, batch))
        self._steps[shape] = self._background.submit(self._compile, lowered, *shapes), began

    def _compile(self, lowered: Any, state: Any, batch: Any) -> Any:
        program = compile_lowered(lowered)
        job = self._job
        require_memory(
            program,
            config=job.config,
            phase=self._phase,
            state=state,
            batch=batch,
            mesh=job.mesh,
        )
        return program

    def __call__(self, state: TrainState, batch: Any) -> tuple[TrainState, Any]:
        """Dispatches one step, which must be ready."""
        return self._steps[_shape(batch)][0].result()(state, batch)

    def is_ready(self, batch: Any) -> bool:
        """Returns whether a step for batches of this shape is compiled."""
        shape = _shape(batch)
        return shape in self._steps and self._steps[shape][0].done()

    def wait(self, state: TrainState, batch: Any) -> None:
        """Compiles for batches of this shape, and logs how long that took."""
        self._run.watchdog.at(f"compiling phase {self._phase}", patience=COMPILE_PATIENCE)
        self.begin(state, batch)
        step, began = self._steps[_shape(batch)]
        self._run.preemption.wait(step)
        seconds = time.monotonic() - began
        self._run.event("compile", phase=self._phase, seconds=seconds)

    def _facts(self, lowered: Any) -> dict[str, str]:
        """Returns what must be the same in every process."""
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
    """Returns what the environment tells the compiler; where it writes what it did is no part."""
    flags = " ".join(os.environ.get(name, "") for name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS"))
    return sorted(flag for flag in flags.split() if not flag.startswith("--xla_dump"))
