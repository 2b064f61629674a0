"""Finds a run that has diverged: its loss stays far above that of a model that only guesses.

Such a run cannot recover. The threshold is taken from guessing with equal chances and not
from the corpus's unigram entropy, which is zero for a text of one word. The loss of an untrained
model is that of guessing, and a healthy run, however slow its plateau, stays below.
"""

import math
from collections.abc import Callable

from bert_jax.errors import Diverged

# Times the loss of guessing.
_FAR_ABOVE = 2.0
# Steps in a row: one bad batch, or the spike of a warm-up, is forgotten.
_STEPS_UNTIL_WARNING, _STEPS_UNTIL_END = 20, 200


class Divergence:
    """Sees the loss of every step of one process; all processes see the same."""

    def __init__(self, guessing: float | None, warn: Callable[[str], None]):
        """`guessing` is the loss, in nats, of a model that guesses (`Objective.guessing`); without
        one, there is never a warning. `warn` is called once each time that the loss stays too high.
        """
        self._limit = None if guessing is None else _FAR_ABOVE * guessing
        self._warn = warn
        # The first of the steps in a row whose loss is too high.
        self._since: int | None = None

    def see(self, step: int, loss: float) -> None:
        """Counts one step. Raises Diverged when the loss has been too high for too long.

        A loss that is no number says nothing here: its update was left out, and counted there.
        """
        if self._limit is None or math.isnan(loss):
            return
        if loss <= self._limit:
            self._since = None
            return
        if self._since is None:
            self._since = step
        steps = step - self._since + 1
        found = (
            f"its loss is {loss:,.1f}, and has been above {self._limit:.1f}, twice that of "
            f"guessing, for {steps} steps"
        )
        if steps == _STEPS_UNTIL_WARNING:
            end = self._since + _STEPS_UNTIL_END - 1
            self._warn(
                f"warning: step {step}: the run seems to diverge: {found}. If that goes on until "
                f"step {end}, the run ends. optimizer.learning_rate may be too high, or "
                "optimizer.warmup_steps too few"
            )
        if steps >= _STEPS_UNTIL_END:
            raise Diverged(
                f"step {step}: the run has diverged: {found}. Begin again in a new `workdir` with "
                "a lower optimizer.learning_rate or more optimizer.warmup_steps, or go back to an "
                "earlier step (`resume_step`, `allow_change`)"
            )
