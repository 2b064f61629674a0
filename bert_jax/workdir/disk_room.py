"""Whether the disk of a workdir has room for the checkpoints that a run keeps, before it begins."""

import math
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from bert_jax.config import TrainConfig
from bert_jax.errors import StorageFailed
from bert_jax.files import free_space
from bert_jax.progress import note
from bert_jax.workdir import checkpoint, remote_workdir

# Orbax compresses; noise, which weights are to it, hardly: below this share of a state none fits.
_COMPRESSED = 0.8
REMEDY = (
    "free space there, choose another `workdir`, or keep fewer: set checkpoint.keep_last=1 and "
    "set checkpoint.keep_every=0"
)


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


def require(directory: Path, config: TrainConfig, state: Any) -> None:
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
