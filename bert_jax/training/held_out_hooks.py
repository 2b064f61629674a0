"""Hooks that follow a held-out figure: `best_checkpoint` keeps its best step, `early_stopping` ends
a run in which it no longer improves.

Both remember nothing but the held-out rows of metrics.jsonl, which a resumed run still has: it
keeps and stops as one that was never interrupted. Rows of another sequence length are another
held-out set, and are followed from their beginning; the model that a run begins with (step 0) does
not count.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert_jax.config import HookConfig
from bert_jax.config.fields import Count, section, setting
from bert_jax.errors import UsageError
from bert_jax.training.hooks import CONTINUE, SAVE, STOP, Action, Hook
from bert_jax.training.job import Row, Scores, TrainingJob
from bert_jax.workdir import checkpoint, log_reader

if TYPE_CHECKING:
    from bert_jax.training.loop import Run

# Figures of which less is better; of others, such as accuracies, it is more.
_LESS_IS_BETTER = ("loss", "perplexity")


@section
class HeldOutOptions(HookConfig):
    """The options of hooks that follow a metric of the validation split."""

    figure: str = setting("", "The metric; empty for the loss, or the first metric of a task.")


@section
class BestCheckpointOptions(HeldOutOptions, kind="best_checkpoint"):
    """The options of `BestCheckpoint`."""


@section
class EarlyStoppingOptions(HeldOutOptions, kind="early_stopping"):
    """The options of `EarlyStopping`."""

    patience: Count = setting(5, "Evaluations without an improvement before the run ends.")


class HeldOutFigure(Hook):
    """Knows the best value of one figure so far, its step, and the evaluations since.

    No name is the main figure: the loss, or a task's first metric. Of several held-out splits the
    first counts.
    """

    def __init__(self, *, figure: str):
        self._figure = figure
        self._length: Any = None
        self._best_step, self._best, self._evaluations_since = 0, math.nan, 0

    def prepare(self, job: TrainingJob, directory: Path) -> Mapping[str, Any]:
        self.choose(job.figures())
        return super().prepare(job, directory)

    def choose(self, known: Sequence[str]) -> None:
        """Takes the figure, or the first that evaluations have. Raises UsageError where they do
        not have it.
        """
        self._figure = self._figure or known[0]
        if self._figure not in known:
            raise UsageError(
                f"hooks: an evaluation has no figure {self._figure!r}; it has {', '.join(known)}"
            )

    def begin(self, run: "Run", step: int, rows: Sequence[Row]) -> Action:
        first: dict[int, Row] = {}
        for row in rows:
            if row.get("split") is not None:
                first.setdefault(row["step"], row)
        for at, row in first.items():
            self._see(at, row)
        return super().begin(run, step, rows)

    def on_evaluation(self, step: int, scores: Scores) -> Action:
        self._see(step, next(iter(scores.values())))
        return CONTINUE

    def _see(self, step: int, row: Row) -> None:
        if step == 0:
            return
        if self._figure not in row:
            known = ", ".join(name for name, value in row.items() if isinstance(value, float))
            raise UsageError(f"hooks: an evaluation has no figure {self._figure!r}; it has {known}")
        if row.get("sequence_length") != self._length:
            self._length, self._best = row.get("sequence_length"), math.nan
        value = math.nan if row[self._figure] is None else row[self._figure]
        is_less = value < self._best
        is_better = is_less if self._figure.endswith(_LESS_IS_BETTER) else value > self._best
        self._evaluations_since += 1
        if is_better or (math.isnan(self._best) and not math.isnan(value)):
            self._best_step, self._best, self._evaluations_since = step, value, 0


class BestCheckpoint(HeldOutFigure):
    """Saves and keeps the step whose held-out figure is best: `WORKDIR@best` loads it.

    The event `best` names it, and what removes old checkpoints leaves it.
    """

    def begin(self, run: "Run", step: int, rows: Sequence[Row]) -> Action:
        action = super().begin(run, step, rows)
        there = checkpoint.steps(run.directory) if self._best_step else []
        named = log_reader.best_step(run.directory, there)
        # The process may have ended between the row of the evaluation and the event.
        if self._best_step in there and named != self._best_step:
            self._name_best()
        return action

    def on_evaluation(self, step: int, scores: Scores) -> Action:
        super().on_evaluation(step, scores)
        if self._best_step != step:
            return CONTINUE
        self._name_best()
        return SAVE

    def _name_best(self) -> None:
        self.run.event("best", step=self._best_step, figure=self._figure, value=self._best)


class EarlyStopping(HeldOutFigure):
    """Ends the run when so many evaluations in a row have not improved the held-out figure."""

    def __init__(self, *, figure: str, patience: int):
        super().__init__(figure=figure)
        self._patience = patience

    def begin(self, run: "Run", step: int, rows: Sequence[Row]) -> Action:
        super().begin(run, step, rows)
        return self._answer(step)

    def on_evaluation(self, step: int, scores: Scores) -> Action:
        super().on_evaluation(step, scores)
        return self._answer(step)

    def _answer(self, step: int) -> Action:
        is_last = step == self.run.job.config.total_steps
        return STOP if self._evaluations_since >= self._patience and not is_last else CONTINUE

    def stop(self, step: int) -> str:
        return (
            f"early stopping: {self._figure} was best at step {self._best_step} "
            f"({self._best:.4g}), and not in the {self._evaluations_since} evaluations since"
        )
