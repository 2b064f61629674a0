"""Saves states while training goes on, and bears saves that fail."""

import time
from pathlib import Path

from jax.sharding import Mesh

from bert_jax.errors import StorageFailed, Unreachable
from bert_jax.progress import note
from bert_jax.runtime import distributed
from bert_jax.runtime.watchdog import Watchdog
from bert_jax.update.state import TrainState
from bert_jax.workdir import remote_workdir
from bert_jax.workdir.checkpoint import Checkpoints
from bert_jax.workdir.metrics_log import MetricsLogger

_PAUSE_SECONDS = 1.0
_Failure = StorageFailed | Unreachable
# The worse the later: where two processes fail otherwise, this is what they end with.
_KINDS: tuple[type[_Failure], ...] = (Unreachable, StorageFailed)


class Saver:
    """The saves of one process. A save is made by all processes or by none.

    All count failures alike: what they do next, they do together.
    """

    def __init__(
        self,
        checkpoints: Checkpoints,
        *,
        logger: MetricsLogger,
        watchdog: Watchdog,
        directory: Path,
        mesh: Mesh,
        max_failed: int,
        saved_step: int,
    ):
        """`saved_step` is the one that the run goes on from: there is nothing to save yet."""
        self._checkpoints, self._logger, self._watchdog = checkpoints, logger, watchdog
        self._directory, self._mesh, self._max_failed = directory, mesh, max_failed
        # The step whose state is saved, or being saved; None if that has failed.
        self.saved_step: int | None = saved_step
        self._failed = 0

    def save(self, state: TrainState, step: int) -> None:
        """Starts a save, after the one before it is whole."""
        self.finish()
        self._watchdog.at(f"saving step {step}")
        began = time.monotonic()
        problem = None
        try:
            # Before the step is there: whoever goes on from it finds the rows that led to it.
            if distributed.is_main():
                remote_workdir.copy_back(self._directory, patience=0)
        except (StorageFailed, Unreachable) as error:
            problem = error
        if not self._has_failed(problem):
            try:
                self._checkpoints.save(state, step=step)
            except (StorageFailed, Unreachable) as error:
                problem = error
            if not self._has_failed(problem):
                self.saved_step = step
        self._logger.event("saving", step=step, seconds=time.monotonic() - began)

    def save_for_good(self, state: TrainState, step: int) -> None:
        """Saves and waits until the save is whole, trying as often as saves may fail."""
        while True:
            self.save(state, step)
            began = time.monotonic()
            self.finish()
            self._logger.event("saving", step=step, seconds=time.monotonic() - began)
            if not self._failed:
                return
            time.sleep(_PAUSE_SECONDS)

    def finish(self) -> None:
        """Waits for the save under way. One that failed is noted; too many in a row end the run."""
        self._watchdog.at("waiting for a save")
        problem, is_whole = None, False
        try:
            is_whole = self._checkpoints.wait()
        except (StorageFailed, Unreachable) as error:
            problem = error
        if not self._has_failed(problem) and is_whole:
            self._failed = 0

    def close(self) -> None:
        """Waits for what is being saved."""
        self.finish()
        self._checkpoints.close()

    def _has_failed(self, problem: _Failure | None) -> bool:
        """Returns whether any process has a problem, and notes it in all: all end with one code."""
        kind = 0 if problem is None else 1 + _KINDS.index(type(problem))
        worst = distributed.largest(kind, mesh=self._mesh)
        if worst:
            if problem is None or worst > kind:
                problem = _KINDS[worst - 1]("another process could not save")
            self._note(problem)
        return worst > 0

    def _note(self, error: _Failure) -> None:
        self._failed += 1
        self.saved_step = None
        self._logger.event("save_failed", in_a_row=self._failed, message=str(error))
        if self._failed > self._max_failed:
            raise error
        note(
            f"{error}: save failed ({self._failed} of {self._max_failed} allowed in a row); "
            "training continues"
        )
