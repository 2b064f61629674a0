"""Chooses the steps whose state is saved, by steps or minutes, and sees that they have room.

All processes must save at the same step, and their clocks differ. So process 0 decides, from how
long steps have taken; the others ask at steps that it has named, each time about half way to the
next save. That is a handful of questions a save, however many steps lie between.
"""

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from bert_jax.config import CheckpointConfig, TrainConfig
from bert_jax.errors import StorageFailed
from bert_jax.files import free_space
from bert_jax.progress import note
from bert_jax.runtime import distributed
from bert_jax.workdir import checkpoint, remote_workdir

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


def require_room(directory: Path, config: TrainConfig, state: Any) -> None:
    """Notes that not all checkpoints of a run have room. A bucket has no end.

    Raises StorageFailed where not even the next one has.
    """
    if remote_workdir.is_address(remote_workdir.address_of(directory)):
        return
    room = room_of(directory, config, state_bytes(state))
    if room.free < _COMPRESSED * room.one:
        raise StorageFailed(
            f"{directory}: no room for a checkpoint: one has {room.one / 1e9:.3g} GB, and "
            f"{room.free / 1e9:.3g} GB are free; {REMEDY}"
        )
    if room.free < room.needed:
        note(f"warning: {directory}: {room}; {REMEDY}")
