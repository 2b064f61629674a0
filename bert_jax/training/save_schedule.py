"""Chooses the steps whose state is saved: every so many steps, or every so many minutes.

All processes must save at the same step, and their clocks differ. So process 0 decides, from how
long steps have taken; the others ask at steps that it has named, each time about half way to the
next save. That is a handful of questions a save, however many steps lie between.
"""

import time
from collections.abc import Callable

from jax.sharding import Mesh

from bert_jax.config import CheckpointConfig
from bert_jax.runtime import distributed

# Steps after which a process first asks: how long they take is roughly known then.
_FIRST = 10
# Share of the interval that a save may come too early, rather than ask again.
_EARLY = 0.02


class SaveSchedule:
    """Asked after every step, in every process equally. The numbers of a run do not depend on it.

    With `every_minutes`, a step that `keep_every` divides is saved, too: it is to be kept.
    """

    def __init__(
        self,
        config: CheckpointConfig,
        *,
        mesh: Mesh,
        step: int,
        clock: Callable[[], float] = time.monotonic,
    ):
        """`step` is the one that the run goes on from."""
        self._config, self._mesh, self._clock = config, mesh, clock
        self.saved(step)

    def saved(self, step: int) -> None:
        """Begins a new interval: this step is being saved."""
        self._from, self._since = step, self._clock()
        self._ask_at = step + _FIRST

    def is_due(self, step: int) -> bool:
        """Returns whether to save this step."""
        config = self._config
        if not config.every_minutes:
            return step % config.every_steps == 0
        if config.keep_every and step % config.keep_every == 0:
            return True
        if step < self._ask_at:
            return False
        more = distributed.broadcast_from_main(lambda: self._steps_to_wait(step), mesh=self._mesh)
        self._ask_at = step + (more or 0)
        return not more

    def _steps_to_wait(self, step: int) -> int:
        """Returns after how many steps to ask again; 0: it is time."""
        interval, passed = 60 * self._config.every_minutes, self._clock() - self._since
        left = interval - passed
        steps_left = left * (step - self._from) / max(passed, 1e-9)
        if left < _EARLY * interval or steps_left < 1:
            return 0
        return min(max(1, int(steps_left / 2)), 2**30)
