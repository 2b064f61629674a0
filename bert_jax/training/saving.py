"""Saving: which steps are saved, and what happens when a save fails.

All processes save at the same steps, or none does.
"""

import math
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bert_jax.config import TrainConfig
from bert_jax.errors import StorageFailed, Unreachable, WorkdirTaken
from bert_jax.files import free_space
from bert_jax.progress import note
from bert_jax.runtime import distributed
from bert_jax.runtime.watchdog import Watchdog
from bert_jax.update.state import TrainState
from bert_jax.workdir import checkpoint
from bert_jax.workdir.checkpoint import Checkpoints
from bert_jax.workdir.location import Location
from bert_jax.workdir.metrics_log import MetricsLogger

_PAUSE_SECONDS = 1.0
_Failure = StorageFailed | Unreachable | WorkdirTaken
# Ascending severity: if processes fail differently, all raise the most severe error.
_KINDS: tuple[type[_Failure], ...] = (Unreachable, StorageFailed, WorkdirTaken)
# Orbax compresses checkpoints, but weights hardly shrink: at least this share of their bytes.
_COMPRESSED = 0.8


class Saver:
    """Decides which steps are saved, and saves them in all processes together.

    The end of each phase is saved, and every so many steps or minutes. With `every_minutes`,
    process 0 decides by its clock at each step with a log row; steps that `keep_every` divides are
    saved as well. The training itself does not depend on what is saved. All processes count failed
    saves alike.
    """

    def __init__(
        self,
        location: Location,
        config: TrainConfig,
        *,
        logger: MetricsLogger,
        watchdog: Watchdog,
        saved_step: int,
        kept: Collection[int] = (),
        clock: Callable[[], float] = time.monotonic,
    ):
        """`saved_step` is the step that the run starts or resumes from. The steps in `kept` are
        saved and never removed.
        """
        self.location, self._config, self._kept = location, config, kept
        self._logger, self._watchdog, self._clock = logger, watchdog, clock
        self._checkpoints = Checkpoints(
            location.path,
            config.checkpoint,
            kept=kept,
            on_saved=lambda step, seconds: logger.event("save", step=step, seconds=seconds),
            guard=location.guard,
        )
        self._max_failed = config.checkpoint.max_failed_saves
        # The newest step that is saved or being saved; None if that save has failed.
        self.saved_step: int | None = saved_step
        self._began_at, self._failed, self._since = saved_step, 0, clock()

    def is_due(self, step: int) -> bool:
        """Returns whether to save this step. All processes ask for the same steps."""
        config, settings = self._config, self._config.checkpoint
        is_due = step in config.phase_ends or step in self._kept
        if not settings.every_minutes:
            return is_due or step % settings.every_steps == 0
        is_due = is_due or (settings.keep_every > 0 and step % settings.keep_every == 0)
        if not is_due and step % config.log_every_steps == 0:
            is_time = self._clock() - self._since >= 60 * settings.every_minutes
            is_due = bool(distributed.of_main([is_time])[0])
        if is_due:
            self._since = self._clock()
        return is_due

    @property
    def whole_step(self) -> int:
        """The newest step that is completely saved, even if the save in progress fails."""
        return max(self._checkpoints.committed or 0, self._began_at)

    def save(self, state: TrainState, step: int) -> None:
        """Starts a save when the previous save is complete. It continues in the background.

        Raises WorkdirTaken, and writes nothing, if another process now trains in the workdir.
        """
        self.finish()
        self._watchdog.at(f"saving step {step}")
        began = time.monotonic()
        problem = None
        try:
            # Before the step exists: a resume from the step needs the rows up to it.
            if distributed.is_main():
                self.location.sync(patience=0)
        except _KINDS as error:
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
        """Saves and waits until the save is complete. Retries until too many saves have failed."""
        while True:
            self.save(state, step)
            began = time.monotonic()
            self.finish()
            self._logger.event("saving", step=step, seconds=time.monotonic() - began)
            if not self._failed:
                return
            time.sleep(_PAUSE_SECONDS)

    def finish(self) -> None:
        """Waits for the save in progress. Logs a failure; raises it after too many in a row."""
        self._watchdog.at("waiting for a save")
        problem, is_whole = None, False
        try:
            is_whole = self._checkpoints.wait()
        except _KINDS as error:
            problem = error
        if not self._has_failed(problem) and is_whole:
            self._failed = 0

    def close(self) -> None:
        """Waits for the save in progress and ends the background threads."""
        self.finish()
        self._checkpoints.close()

    def _has_failed(self, problem: _Failure | None) -> bool:
        """Returns whether any process has a problem. All processes count it and raise the same
        error.
        """
        kind = 0 if problem is None else 1 + _KINDS.index(type(problem))
        worst = distributed.largest(kind)
        if worst:
            if problem is None or worst > kind:
                problem = _KINDS[worst - 1]("another process could not save")
            self._note(problem)
        return worst > 0

    def _note(self, error: _Failure) -> None:
        if isinstance(error, WorkdirTaken):
            raise error
        self._failed += 1
        self.saved_step = None
        self._logger.event("save_failed", in_a_row=self._failed, message=str(error))
        if self._failed > self._max_failed:
            raise error
        note(
            f"{error}: save failed ({self._failed} of {self._max_failed} allowed in a row); "
            "training continues"
        )


def state_bytes(state: Any) -> int:
    """Returns the bytes of a state, or of its description, on all devices together."""
    return sum(
        math.prod(leaf.shape) * np.dtype(leaf.dtype).itemsize for leaf in jax.tree.leaves(state)
    )


def room_problem(workdir: Path, config: TrainConfig, size: int) -> str:
    """Returns a warning if the disk has no room for all checkpoints of `size` bytes that a run
    keeps; "" if it has. All of `checkpoint.at_words` count. Quotas of a file system are not known.

    Raises StorageFailed if not even one checkpoint has room.
    """
    settings, free = config.checkpoint, free_space(workdir)
    kept = min(settings.keep_last, math.ceil(config.total_steps / settings.every_steps))
    kept += len(settings.at_words)
    if settings.keep_every:
        kept += config.total_steps // settings.keep_every
    needed = size * max(kept + 1 - len(checkpoint.steps(workdir)), 1)
    text = (
        f"{workdir}: {kept} checkpoint(s) of {size / 1e9:.3g} GB and one in progress need "
        f"{needed / 1e9:.3g} GB more, and {free / 1e9:.3g} GB are free; free space, choose another "
        "`workdir`, or set checkpoint.keep_last=1 and set checkpoint.keep_every=0"
    )
    if free < _COMPRESSED * size:
        raise StorageFailed(text)
    return text if free < needed else ""
