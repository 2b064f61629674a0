"""Saving: which steps are saved, whether they have room, and what happens when a save fails.

All processes must save at the same step, and their clocks differ. So process 0 decides, from how
long steps have taken; the others ask at steps that it has named, each time about half way to the
next save. That is a handful of questions a save, however many steps lie between.
"""

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from bert_jax.config import CheckpointConfig, TrainConfig
from bert_jax.errors import StorageFailed, Unreachable, WorkdirTaken
from bert_jax.files import free_space
from bert_jax.progress import note
from bert_jax.runtime import distributed
from bert_jax.runtime.watchdog import Watchdog
from bert_jax.training.hooks import CONTINUE, SAVE, Action, Hook
from bert_jax.training.job import Row
from bert_jax.update.state import TrainState
from bert_jax.workdir import checkpoint
from bert_jax.workdir.checkpoint import Checkpoints
from bert_jax.workdir.location import Location
from bert_jax.workdir.metrics_log import MetricsLogger

if TYPE_CHECKING:
    from bert_jax.training.loop import Run

_PAUSE_SECONDS = 1.0
_Failure = StorageFailed | Unreachable | WorkdirTaken
# The worse the later: where two processes fail otherwise, this is what they end with.
_KINDS: tuple[type[_Failure], ...] = (Unreachable, StorageFailed, WorkdirTaken)
# Steps after which a process first asks: how long they take is roughly known then.
_FIRST = 10
# Share of the interval that a save may come too early, rather than ask again.
_EARLY = 0.02
# Orbax compresses; noise, which weights are to it, hardly: below this share of a state none fits.
_COMPRESSED = 0.8
REMEDY = (
    "free space there, choose another `workdir`, or keep fewer: set checkpoint.keep_last=1 and "
    "set checkpoint.keep_every=0"
)


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
        location: Location,
        mesh: Mesh,
        max_failed: int,
        saved_step: int,
    ):
        """`saved_step` is the one that the run goes on from: there is nothing to save yet."""
        self._checkpoints, self._logger, self._watchdog = checkpoints, logger, watchdog
        self.location, self._mesh, self._max_failed = location, mesh, max_failed
        # The step whose state is saved, or being saved; None if that has failed.
        self.saved_step: int | None = saved_step
        self._began_at, self._failed = saved_step, 0

    @property
    def whole_step(self) -> int:
        """The newest step that is whole, whatever becomes of a save under way."""
        return max(self._checkpoints.committed or 0, self._began_at)

    def save(self, state: TrainState, step: int) -> None:
        """Starts a save, after the one before it is whole.

        Raises WorkdirTaken, and writes nothing, where another process trains there now.
        """
        self.finish()
        self._watchdog.at(f"saving step {step}")
        began = time.monotonic()
        problem = None
        try:
            # Before the step is there: whoever goes on from it finds the rows that led to it.
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


class SaveSchedule(Hook):
    """Asks for saves: at the end of each phase, and every so many steps or minutes.

    With `every_minutes`, a step that `keep_every` divides is saved, too: it is to be kept. The
    numbers of a run do not depend on it.
    """

    def __init__(
        self,
        config: CheckpointConfig,
        *,
        mesh: Mesh,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._config, self._mesh, self._clock = config, mesh, clock
        self.on_save(0)

    def begin(self, run: "Run", step: int, rows: Sequence[Row]) -> Action:
        self.on_save(step)
        return super().begin(run, step, rows)

    def on_save(self, step: int) -> None:
        """Begins a new interval: this step is being saved."""
        self._from, self._since = step, self._clock()
        self._ask_at = step + _FIRST

    def on_step(self, step: int) -> Action:
        is_due = step in self.run.job.config.phase_ends or self.is_due(step)
        return SAVE if is_due else CONTINUE

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


class Room(NamedTuple):
    """Bytes: of one checkpoint, of all that are still to come, and those that are free."""

    kept: int  # checkpoints
    one: int
    needed: int
    free: int

    def __str__(self) -> str:
        return (
            f"{self.kept} checkpoint(s) of {self.one / 1e9:.3g} GB and one under way need "
            f"{self.needed / 1e9:.3g} GB more, and {self.free / 1e9:.3g} GB are free"
        )


def state_bytes(state: Any) -> int:
    """Returns what a state, or the description of one, has in all devices together."""
    return sum(
        math.prod(leaf.shape) * np.dtype(leaf.dtype).itemsize for leaf in jax.tree.leaves(state)
    )


def room_of(workdir: Path, config: TrainConfig, size: int) -> Room:
    """Returns how much a run needs whose checkpoints have `size` bytes. Quotas are not known."""
    settings, steps = config.checkpoint, config.total_steps
    kept = min(settings.keep_last, math.ceil(steps / settings.every_steps))
    if settings.keep_every:
        kept += steps // settings.keep_every
    there = len(checkpoint.steps(workdir))
    return Room(kept, size, size * max(kept + 1 - there, 1), free_space(workdir))


def require_room(location: Location, config: TrainConfig, state: Any) -> None:
    """Notes that not all checkpoints of a run have room. A bucket has no end.

    Raises StorageFailed where not even the next one has.
    """
    if location.is_in_bucket:
        return
    room = room_of(location.path, config, state_bytes(state))
    if room.free < _COMPRESSED * room.one:
        raise StorageFailed(
            f"{location.name}: no room for a checkpoint: one has {room.one / 1e9:.3g} GB, and "
            f"{room.free / 1e9:.3g} GB are free; {REMEDY}"
        )
    if room.free < room.needed:
        note(f"warning: {location.name}: {room}; {REMEDY}")
