"""Ends runs that cannot recover: a loss far above that of guessing, too many updates left out.

The threshold of the loss is taken from guessing with equal chances and not from the corpus's
unigram entropy, which is zero for a text of one word. The loss of an untrained model is that of
guessing, and a healthy run, however slow its plateau, stays below.
"""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from bert_jax.errors import Diverged, NonFinite
from bert_jax.training.hooks import CONTINUE, STOP, Action, Hook
from bert_jax.training.job import Row
from bert_jax.workdir import log_reader

if TYPE_CHECKING:
    from bert_jax.training.loop import Run

# How a model came to compute no numbers, and the remedy.
SPOILT = (
    "its parameters are spoilt, as by a learning rate that is too high; an earlier step "
    "(checkpoints/STEP of its workdir) may be whole"
)
# Times the loss of guessing.
_FAR_ABOVE = 2.0
# Steps in a row: one bad batch, or the spike of a warm-up, is forgotten.
_STEPS_UNTIL_WARNING, _STEPS_UNTIL_END = 20, 200


class SkippedUpdates(Hook):
    """Counts the updates that were left out, over all processes that worked on the run."""

    def begin(self, run: "Run", step: int, rows: Sequence[Row]) -> Action:
        self._count = len(log_reader.skips(log_reader.read_events(run.directory), step))
        return super().begin(run, step, rows)

    def on_metrics(self, step: int, metrics: Mapping[str, float]) -> Action:
        most = self.run.job.config.optimizer.max_skipped_updates
        if not metrics["applied"]:
            self._count += 1
            loss, norm = metrics["loss"], metrics["grad_norm"]
            self.run.event("skip", step=step, loss=str(loss), grad_norm=str(norm))
            self.run.print(
                f"step {step}: loss {loss}, gradient norm {norm}; this update is left out "
                f"({self._count} of {most} that may be)"
            )
        return self.on_step(step)

    def on_step(self, step: int) -> Action:
        is_spent = self._count > self.run.job.config.optimizer.max_skipped_updates
        return STOP if is_spent else CONTINUE

    def stop(self, step: int) -> str:
        raise NonFinite(
            f"step {step}: {self._count} updates were left out, being not finite or spikes, more "
            "than optimizer.max_skipped_updates. The state without them is saved; lower "
            "optimizer.learning_rate or lengthen optimizer.warmup_steps in a new `workdir`, or go "
            "back to an earlier step ('bert-jax checkpoints rollback')"
        )


class Divergence(Hook):
    """Sees the loss of every step of one process; all processes see the same.

    Where the objective knows no loss of guessing (`Objective.uniform_loss`), nothing happens.
    """

    def begin(self, run: "Run", step: int, rows: Sequence[Row]) -> Action:
        uniform = run.job.objective.uniform_loss(run.job.config.model)
        self._limit = None if uniform is None else _FAR_ABOVE * uniform
        # The first of the steps in a row whose loss is too high.
        self._since: int | None = None
        return super().begin(run, step, rows)

    def on_metrics(self, step: int, metrics: Mapping[str, float]) -> Action:
        """Counts one step. Raises Diverged when the loss has been too high for too long.

        A loss that is no number means nothing here: its update was left out, and counted.
        """
        loss = metrics["loss"]
        if self._limit is None or math.isnan(loss):
            return CONTINUE
        if loss <= self._limit:
            self._since = None
            return CONTINUE
        if self._since is None:
            self._since = step
        steps = step - self._since + 1
        found = (
            f"its loss is {loss:,.1f}, and has been above {self._limit:.1f}, twice that of "
            f"guessing, for {steps} steps"
        )
        if steps == _STEPS_UNTIL_WARNING:
            end = self._since + _STEPS_UNTIL_END - 1
            self.run.print(
                f"warning: step {step}: the run seems to diverge: {found}. If that goes on until "
                f"step {end}, the run ends. optimizer.learning_rate may be too high, or "
                "optimizer.warmup_steps too few"
            )
        if steps >= _STEPS_UNTIL_END:
            raise Diverged(
                f"step {step}: the run has diverged: {found}. Begin again in a new `workdir` with "
                "a lower optimizer.learning_rate or more optimizer.warmup_steps, or go back to an "
                "earlier step ('bert-jax checkpoints rollback') and continue with another rate "
                "(`allow_change`)"
            )
        return CONTINUE
