"""Hooks: what happens beside the steps of a run. The loop (loop.py) asks each of them in turn.

Logs, warnings, limits, saves and evaluations are hooks; `hooks` of a config names more of them
(registry.HOOKS). A hook sees a run and answers with an `Action`; it changes no state, so that the
steps of a run are the same with it and without it.
"""

import enum
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
from jax.sharding import Mesh

from bert_jax.config import TrainConfig
from bert_jax.config.fields import fields_of
from bert_jax.errors import UsageError
from bert_jax.progress import note
from bert_jax.registry import ALWAYS_HOOKS, HOOKS, LABORATORY
from bert_jax.runtime import distributed
from bert_jax.training.job import Row, Scores, TrainingJob

if TYPE_CHECKING:
    from bert_jax.training.loop import Run


class Action(enum.IntEnum):
    """A request to the loop. It does all that hooks ask for: it saves, evaluates and stops."""

    CONTINUE = 0
    EVALUATE = 1
    SAVE = 2
    # The state is saved, and the run ends.
    STOP = 3


CONTINUE, EVALUATE, SAVE, STOP = Action


class Hook:
    """One concern of a run. Every method does nothing unless it is overridden.

    Every process has the same hooks. What `on_step` and `on_metrics` answer must be the same in all
    of them: it follows from the step and its metrics, which are. From `begin` and `on_evaluation`
    the answer of process 0 counts, which alone has the rows of the log. Nothing of a hook is saved:
    what it remembers it takes from the rows, so that a run that was interrupted goes on with it.
    """

    run: "Run"

    def prepare(self, job: TrainingJob, directory: Path) -> Mapping[str, Any]:
        """Checks what the hook needs, before anything is written.

        Returns files that the workdir is to keep: name -> a value that JSON has.
        """
        return {}

    def begin(self, run: "Run", step: int, rows: Sequence[Row]) -> Action:
        """Begins at a step, given the rows of metrics.jsonl until then (process 0)."""
        self.run = run
        return CONTINUE

    def before_step(self, step: int) -> None:
        """Is called before the batch of the step after `step` is waited for."""

    def on_step(self, step: int) -> Action:
        """Is asked when a step was dispatched: its metrics are not there yet."""
        return CONTINUE

    def on_metrics(self, step: int, metrics: Mapping[str, float]) -> Action:
        """Is asked when the metrics of a step were read, in the order of the steps.

        That is while the next step computes; what is asked for is done after that one. `applied` is
        0 where the update was left out.
        """
        return CONTINUE

    def on_save(self, step: int) -> None:
        """Is called when a save of this step has begun."""

    def on_evaluation(self, step: int, scores: Scores) -> Action:
        """Is asked after an evaluation; the figures of each split are those of its row."""
        return CONTINUE

    def stop(self, step: int) -> str:
        """Returns why the run ends, as the event `stop` has it, where this hook asked for that.

        It may raise the error with which the run ends instead. The state is saved.
        """
        return type(self).__name__

    def close(self) -> None:
        """Is called when the run ends, in whatever way."""

    def closing_figures(self, step: int) -> dict[str, Any]:
        """Returns what is added to the closing figures of a run that ended at a step."""
        return {}

    def expected(
        self, config: TrainConfig, manifest: Mapping[str, Any], directory: Path, step: int
    ) -> dict[str, Any] | None:
        """Returns the held-out figures that a step of a finished run should have; None: not known.

        `manifest` is that of the corpus.
        """
        return None


def named_hooks(config: TrainConfig, **options: Mapping[str, Any]) -> list[Hook]:
    """Returns the hooks of every run, and the hooks of the config.

    A hook is made with the options of its kind as keyword arguments, and with `options[kind]`.
    Raises UsageError for `options` of a hook that is not installed.
    """
    for name, given in options.items():
        if name not in HOOKS and any(given.values()):
            raise UsageError(
                f"{' and '.join(f'`{each}`' for each in given)}: the hook {name} is part of "
                f"{LABORATORY}, which is not installed; install the whole bert-jax, or leave it out"
            )
    found = [HOOKS[name](**options.get(name, {})) for name in ALWAYS_HOOKS]
    for hook in config.hooks:
        given = {name: getattr(hook, name) for name in fields_of(type(hook))}
        found.append(hook.entry()(**given, **options.get(hook.kind, {})))
    return found


def asked_by(hooks: Iterable[Hook], answers: Iterable[Action]) -> dict[Action, Hook]:
    """Returns what is asked for, and which hook was the first to do so."""
    found: dict[Action, Hook] = {}
    for hook, answer in zip(hooks, answers, strict=True):
        found.setdefault(answer, hook)
    return found


def of_process_0(answers: Sequence[Action], *, mesh: Mesh) -> list[Action]:
    """Returns the answers of process 0, in every process."""
    return [
        Action(distributed.broadcast_from_main(lambda each=each: int(each), mesh=mesh) or 0)
        for each in answers
    ]


def evaluates_at(config: TrainConfig, step: int) -> bool:
    """Returns whether a run has an evaluation at a step: each phase ends with one."""
    every = config.evaluation.every_steps
    return step in config.phase_ends or (every > 0 and step % every == 0)


def evaluations_in(config: TrainConfig, phase: int) -> int:
    """Returns how many evaluations a phase of that number has."""
    start, end = (0, *config.phase_ends)[phase : phase + 2]
    every = config.evaluation.every_steps
    return end // every - start // every + (end % every > 0) if every else 1


class EvaluationSchedule(Hook):
    """Asks for an evaluation at the end of each phase, and every `evaluation.every_steps`."""

    def on_step(self, step: int) -> Action:
        return EVALUATE if evaluates_at(self.run.job.config, step) else CONTINUE


class Profile(Hook):
    """Traces a range of steps to `profile/`, for TensorBoard or Perfetto."""

    def __init__(self, steps: range):
        self._steps, self._is_tracing = steps, False

    def before_step(self, step: int) -> None:
        if step in self._steps and not self._is_tracing:
            jax.profiler.start_trace(str(self.run.directory / "profile"))
            self._is_tracing = True

    def on_step(self, step: int) -> Action:
        is_over = step not in self._steps or step in self.run.job.config.phase_ends
        if self._is_tracing and is_over:
            self.run.read_metrics()  # the step is part of the trace
            jax.profiler.stop_trace()
            self._is_tracing = False
            place = self.run.directory / "profile"
            self.run.print(f"a profile that ends with step {step}: {place}")
        return CONTINUE

    def closing_figures(self, step: int) -> dict[str, Any]:
        if self._steps and self._steps.start >= step:
            note(f"no step of `profile_steps` was reached: the run has {step}")
        return {}
