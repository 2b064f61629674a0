"""Hooks: observers of a run. The loop (loop.py) calls each of them in turn.

`hooks` of a config names them (registry.HOOKS). A hook sees steps, metrics and evaluations, may add
scores to an evaluation, and may stop the run. It changes no state: a run has the same bits with and
without it.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from bert_jax.config import TrainConfig
from bert_jax.config.fields import fields_of
from bert_jax.errors import BertJaxError
from bert_jax.progress import note
from bert_jax.runtime import distributed
from bert_jax.training.job import Row, Run, Scores, TrainingJob

# Why a run ends before its last step: a reason for the event `stop`, or the error that ends the
# process. Both take effect after the state is saved.
Stop = str | BertJaxError


class Hook:
    """One concern of a run. Each method does nothing unless it is overridden.

    Every process has the same hooks. `on_metrics` must answer the same in all of them, which it
    does if the answer follows from the step and its metrics. For `begin` and `on_evaluation` the
    answer of process 0 counts, because only process 0 has the rows of the log. No state of a hook
    is saved: a hook recovers its state from the rows, so that a resumed run behaves like one that
    was never interrupted.
    """

    run: Run

    def prepare(self, job: TrainingJob, directory: Path) -> None:
        """Checks the preconditions of the hook before anything is written."""

    def begin(self, run: Run, step: int, rows: Sequence[Row]) -> Stop | None:
        """Starts at a step, given the earlier rows of metrics.jsonl (in process 0 only)."""
        self.run = run
        return None

    def before_step(self, step: int) -> None:
        """Runs before the batch of step `step + 1` is awaited."""

    def on_metrics(self, step: int, metrics: Mapping[str, float]) -> Stop | None:
        """Sees the metrics of each step, in order. Returns why the run should stop, or None.

        The next step is being computed meanwhile; a run stops after that step. `applied` is 0 for
        a skipped update.
        """
        return None

    def evaluate(self, step: int, params: Any, *, cut_short: Callable[[], bool]) -> Scores | None:
        """Returns scores on validation data of the hook, by split, for the log; {} for none at this
        step. Returns None once `cut_short`, called before every batch, is true.

        Runs in every process, after the evaluation of the job.
        """
        return {}

    def on_evaluation(self, step: int, scores: Scores) -> Stop | None:
        """Sees the rows of an evaluation, by split. Returns why the run should stop, or None."""
        return None

    def keeps(self, step: int) -> bool:
        """Returns whether the step that was just evaluated must be saved."""
        return False

    def close(self) -> None:
        """Runs at the end of the run, however it ends."""

    def closing_figures(self, step: int) -> dict[str, Any]:
        """Returns entries to add to the closing metrics of a run that ended at `step`."""
        return {}


def named_hooks(config: TrainConfig) -> list[Hook]:
    """Returns the hooks of a config; the options of each are the arguments of its class."""
    found = []
    for hook in config.hooks:
        given = {name: getattr(hook, name) for name in fields_of(type(hook))}
        found.append(hook.entry()(**given))
    return found


def agreed(
    hooks: Sequence[Hook], answers: Sequence[Stop | None], *, keeps: bool = False
) -> tuple[Stop | None, bool]:
    """Returns the first answer of process 0, and its `keeps`, in every process."""
    *stops, kept = distributed.of_main([*(a is not None for a in answers), keeps])
    for hook, answer, is_stop in zip(hooks, answers, stops, strict=True):
        if is_stop:
            return answer or type(hook).__name__, bool(kept)
    return None, bool(kept)


def evaluates_at(config: TrainConfig, step: int) -> bool:
    """Returns whether a run is evaluated at a step: every `evaluation.every_steps` steps, and at
    the end of each phase.
    """
    every = config.evaluation.every_steps
    return step in config.phase_ends or (every > 0 and step % every == 0)


def evaluations_in(config: TrainConfig, phase: int) -> int:
    """Returns the number of evaluations in a phase."""
    start, end = (0, *config.phase_ends)[phase : phase + 2]
    every = config.evaluation.every_steps
    return end // every - start // every + (end % every > 0) if every else 1


class Profile(Hook):
    """Traces a range of steps to `profile/`, for TensorBoard or Perfetto."""

    def __init__(self, steps: range):
        self._steps, self._is_tracing = steps, False

    def before_step(self, step: int) -> None:
        if step in self._steps and not self._is_tracing:
            jax.profiler.start_trace(str(self.run.directory / "profile"))
            self._is_tracing = True

    def on_metrics(self, step: int, metrics: Mapping[str, float]) -> Stop | None:
        if step not in self._steps or step in self.run.job.config.phase_ends:
            self._end(step)
        return None

    def close(self) -> None:
        self._end(self._steps.stop)

    def _end(self, step: int) -> None:
        if self._is_tracing:
            jax.profiler.stop_trace()
            self._is_tracing = False
            place = self.run.directory / "profile"
            self.run.print(f"profile up to step {step}: {place}")

    def closing_figures(self, step: int) -> dict[str, Any]:
        if self._steps and self._steps.start >= step:
            note(f"no step of `profile_steps` was reached: the run has {step} steps")
        return {}
