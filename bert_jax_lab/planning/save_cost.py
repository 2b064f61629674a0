"""The cost of saving: how many bytes, how often, and for how long the hosts write them.

Saves are made behind the training, so that this is no time lost, as long as one is whole before the
next is due, and before a machine that is taken away is gone.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from bert_jax.config import TrainConfig
from bert_jax.training.saving import state_bytes
from bert_jax.update.state import TrainState

# One host and a bucket 40 ms away with 80 MB/s a stream, on two cores: bytes a second, and seconds
# for the requests (python benchmarks/bucket_save.py). Hosts of a slice are rather faster.
_RATE, _REQUESTS = 50e6, 2.6
# Of the time. Above it a plan warns.
_MUCH = 0.05


@dataclass(frozen=True, kw_only=True)
class SavePlan:
    """The saves of one phase."""

    bytes: int  # of one save, by all hosts together
    seconds: float  # until one is whole
    per_hour: float
    share: float  # of the time in which a save is under way


def save_plan(config: TrainConfig, step_seconds: float, *, hosts: int, mesh: Any) -> SavePlan:
    """Returns what the saves of a phase cost whose steps take so long."""
    size = state_bytes(TrainState.abstract(config, mesh))
    every = config.checkpoint
    interval = 60 * every.every_minutes or every.every_steps * step_seconds
    seconds = _REQUESTS + size / hosts / _RATE
    return SavePlan(bytes=size, seconds=seconds, per_hour=3600 / interval, share=seconds / interval)


def warnings(phases: Any) -> Iterator[str]:
    """Yields a line for each phase whose saves take much of the time."""
    for phase in phases:
        saving = phase.saving
        if saving is not None and saving.share > _MUCH:
            minutes = math.ceil(saving.seconds / _MUCH / 60)
            yield (
                f"length {phase.sequence_length}: {saving.per_hour:,.0f} saves an hour of "
                f"{saving.bytes / 1e9:.1f} GB, about {saving.seconds:.0f} s each, are under way "
                f"{100 * min(saving.share, 1):.0f} % of the time; set "
                f"checkpoint.every_minutes={minutes}"
            )
