"""Hooks that follow a validation metric: `best_checkpoint` and `early_stopping`.

Their state comes from the validation rows of metrics.jsonl, so a resumed run keeps and stops like
one that was never interrupted. Rows of another sequence length are another validation set: the
best value starts over. The model before the first step (step 0) does not count.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bert_jax.config import HookConfig, TrainConfig
from bert_jax.config.fields import Count, section, setting
from bert_jax.errors import UsageError
from bert_jax.training.hooks import Hook, Stop
from bert_jax.training.job import Row, Run, Scores, TrainingJob
from bert_jax.workdir import checkpoint, log_reader

# Endings of metrics that are better when lower; others, such as accuracies, when higher.
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
    """Tracks the best value of one metric, its step, and the number of evaluations since.

    The default metric is the loss, or the first metric of a task. The first split with the metric
    counts if there are several.
    """

    def __init__(self, *, figure: str):
        self._figure = figure
        self._length: Any = None
        self._best_step, self._best, self._evaluations_since = 0, math.nan, 0

    def prepare(self, job: TrainingJob, directory: Path) -> None:
        self.choose(job.figures(), job.config)

    def choose(self, known: Sequence[str], config: TrainConfig) -> None:
        """Selects the metric, by default the first of `known`, which the job has; the hooks of the
        config have others. Raises UsageError for an unknown name.
        """
        known = [*known, *(name for hook in config.hooks for name in hook.figures)]
        self._figure = self._figure or known[0]
        if self._figure not in known:
            raise UsageError(
                f"hooks: an evaluation has no metric {self._figure!r}; it has {', '.join(known)}"
            )

    def begin(self, run: Run, step: int, rows: Sequence[Row]) -> Stop | None:
        first: dict[int, Row] = {}
        for row in rows:
            if row.get("split") is not None and self._figure in row:
                first.setdefault(row["step"], row)
        for at, row in first.items():
            self._see(at, row)
        return super().begin(run, step, rows)

    def on_evaluation(self, step: int, scores: Scores) -> Stop | None:
        row = next((row for row in scores.values() if self._figure in row), None)
        if row is not None:  # a hook may not score at every evaluation
            self._see(step, row)
        return None

    def _see(self, step: int, row: Row) -> None:
        if step == 0:
            return
        if row.get("sequence_length") != self._length:
            self._length, self._best = row.get("sequence_length"), math.nan
        value = math.nan if row[self._figure] is None else row[self._figure]
        is_less = value < self._best
        is_better = is_less if self._figure.endswith(_LESS_IS_BETTER) else value > self._best
        self._evaluations_since += 1
        if is_better or (math.isnan(self._best) and not math.isnan(value)):
            self._best_step, self._best, self._evaluations_since = step, value, 0


class BestCheckpoint(HeldOutFigure):
    """Keeps the step with the best validation metric: `WORKDIR@best` loads it.

    The event `best` names the step, and cleanup of old checkpoints skips it.
    """

    def begin(self, run: Run, step: int, rows: Sequence[Row]) -> Stop | None:
        super().begin(run, step, rows)
        there = checkpoint.steps(run.directory) if self._best_step else []
        # The process may have been killed between the row of the evaluation and the event.
        if self._best_step in there and log_reader.best_step(run.directory, there) != (
            self._best_step
        ):
            self._name_best()
        return None

    def on_evaluation(self, step: int, scores: Scores) -> Stop | None:
        super().on_evaluation(step, scores)
        if self._best_step == step:
            self._name_best()
        return None

    def keeps(self, step: int) -> bool:
        return self._best_step == step

    def _name_best(self) -> None:
        self.run.event("best", step=self._best_step, figure=self._figure, value=self._best)


class EarlyStopping(HeldOutFigure):
    """Stops the run after `patience` consecutive evaluations without an improvement."""

    def __init__(self, *, figure: str, patience: int):
        super().__init__(figure=figure)
        self._patience = patience

    def begin(self, run: Run, step: int, rows: Sequence[Row]) -> Stop | None:
        super().begin(run, step, rows)
        return self._answer(step)

    def on_evaluation(self, step: int, scores: Scores) -> Stop | None:
        super().on_evaluation(step, scores)
        return self._answer(step)

    def _answer(self, step: int) -> Stop | None:
        if self._evaluations_since < self._patience or step == self.run.job.config.total_steps:
            return None
        return (
            f"early stopping: {self._figure} was best at step {self._best_step} "
            f"({self._best:.4g}), with {self._evaluations_since} evaluations since"
        )
