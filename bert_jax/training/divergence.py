"""Hooks that stop runs which cannot recover: divergence and too many skipped updates.

The loss limit is a multiple of the loss of a uniform prediction, which an untrained model has. A
healthy run stays below it, even on a plateau. (The unigram entropy of the corpus is unsuitable,
because it is zero for a text of one word.)
"""

import math
from collections.abc import Mapping, Sequence

from bert_jax.errors import Diverged, NonFinite
from bert_jax.runtime import distributed
from bert_jax.training.hooks import Hook, Stop
from bert_jax.training.job import Row, Run
from bert_jax.workdir import log_reader

# Why the outputs of a model are not finite, and the fix.
SPOILT = (
    "its parameters are not finite, for example because the learning rate was too high; an earlier "
    "step (checkpoints/STEP of its workdir) may be intact"
)
# Times the loss of a uniform prediction.
_FAR_ABOVE = 2.0
# Consecutive steps: one bad batch, or a spike during warm-up, is tolerated.
_STEPS_UNTIL_WARNING, _STEPS_UNTIL_END = 20, 200


class SkippedUpdates(Hook):
    """Counts the skipped updates of a run, including those before a resume."""

    def begin(self, run: Run, step: int, rows: Sequence[Row]) -> Stop | None:
        self.run = run

        def count() -> int:
            return len(log_reader.skips(log_reader.read_events(run.directory), step))

        # Only process 0 is sure to have the log.
        self._count = distributed.broadcast_from_main(count) or 0
        return self._answer(step)

    def on_metrics(self, step: int, metrics: Mapping[str, float]) -> Stop | None:
        if metrics["applied"]:
            return None
        self._count += 1
        loss, norm = metrics["loss"], metrics["grad_norm"]
        self.run.event("skip", step=step, loss=str(loss), grad_norm=str(norm))
        self.run.print(
            f"step {step}: loss {loss}, gradient norm {norm}; update skipped "
            f"({self._count} of at most {self._most})"
        )
        return self._answer(step)

    @property
    def _most(self) -> int:
        return self.run.job.config.optimizer.max_skipped_updates

    def _answer(self, step: int) -> Stop | None:
        if self._count <= self._most:
            return None
        return NonFinite(
            f"step {step}: {self._count} updates were skipped, because they were not finite or "
            "were spikes: more than optimizer.max_skipped_updates. The state without them is "
            "saved. Lower optimizer.learning_rate or raise optimizer.warmup_steps in a new "
            "`workdir`, or go back to an earlier step ('bert-jax checkpoints rollback')"
        )


class Divergence(Hook):
    """Stops a run when its loss stays above the limit for too many consecutive steps.

    Does nothing for an objective without a known loss of a uniform prediction
    (`Objective.uniform_loss`).
    """

    def begin(self, run: Run, step: int, rows: Sequence[Row]) -> Stop | None:
        uniform = run.job.objective.uniform_loss(run.job.config.model)
        self._limit = math.inf if uniform is None else _FAR_ABOVE * uniform
        self._steps = 0
        return super().begin(run, step, rows)

    def on_metrics(self, step: int, metrics: Mapping[str, float]) -> Stop | None:
        """Counts one step. Raises Diverged at the limit: the diverged state is not saved.

        A loss that is not a number changes nothing: its update was skipped and counted.
        """
        loss = metrics["loss"]
        if math.isnan(loss):
            return None
        self._steps = self._steps + 1 if loss > self._limit else 0
        found = (
            f"its loss is {loss:,.1f} and has been above {self._limit:.1f}, twice the loss of a "
            f"uniform prediction, for {self._steps} steps"
        )
        if self._steps == _STEPS_UNTIL_WARNING:
            self.run.print(
                f"warning: step {step}: the run seems to diverge: {found}. If this continues until "
                f"step {step - _STEPS_UNTIL_WARNING + _STEPS_UNTIL_END}, the run stops. "
                "optimizer.learning_rate may be too high, or optimizer.warmup_steps too low"
            )
        if self._steps == _STEPS_UNTIL_END:
            raise Diverged(
                f"step {step}: the run has diverged: {found}. Start a new `workdir` with a lower "
                "optimizer.learning_rate or more optimizer.warmup_steps, or go back to an earlier "
                "step ('bert-jax checkpoints rollback') and continue with another learning rate "
                "(`allow_change`)"
            )
        return None
