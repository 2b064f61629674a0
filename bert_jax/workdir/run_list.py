"""Makes the missing runs of a list, one after the other.

All facts about a run are on the disk. So an interrupted list is processed again from the beginning,
and several processes may work on it: each takes the runs that no other process holds.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from bert_jax.progress import note_once

# Seconds between two looks at what other processes do.
_WAIT = 0.5
# The descriptor of the lock of a run that needs none.
NO_LOCK = -1


class ListedRun(Protocol):
    """A run of a list."""

    @property
    def name(self) -> str: ...


R = TypeVar("R", bound=ListedRun)


@dataclass
class ListProgress(Generic[R]):
    """The runs that one call has made, and those that are left."""

    made: list[str] = field(default_factory=list)
    # Runs of other processes.
    held: list[R] = field(default_factory=list)
    # Runs that have not ended.
    left: list[R] = field(default_factory=list)
    is_stopped: bool = False


def make_missing(
    missing: Callable[[], Sequence[R]],
    make: Callable[[R, int, Sequence[R]], bool],
    *,
    is_ready: Callable[[R, Sequence[R]], bool] = lambda run, left: True,
    hold: Callable[[R], AbstractContextManager[int | None]] = lambda run: nullcontext(NO_LOCK),
    is_stopped: Callable[[R], bool] = lambda run: False,
    waits: bool = True,
) -> ListProgress[R]:
    """Makes each run that `missing` lists once, in that order.

    `make` makes a run, given the descriptor of its lock and the runs that are left, and returns
    whether the run has ended; if not, no other run is made. `is_ready` returns whether the needs of
    a run are there. `hold` takes the lock of a run, and yields None if another process has it. If
    only such runs, and runs that need them, are left, the function waits, unless `waits` is false.
    `is_stopped` is called before each run.
    """
    progress: ListProgress[R] = ListProgress()
    tried: set[str] = set()
    while not progress.is_stopped:
        left = [run for run in missing() if run.name not in tried]
        progress.held = []
        for run in left:
            if not is_ready(run, left):
                continue
            if is_stopped(run):
                progress.is_stopped = True
                break
            with hold(run) as held:
                if held is None:
                    progress.held.append(run)
                    continue
                if run.name not in {each.name for each in missing()}:
                    break  # another process has just made it
                tried.add(run.name)
                if make(run, held, left):
                    progress.made.append(run.name)
                else:
                    progress.is_stopped = True
                break
        else:
            if not (waits and progress.held):
                break
            note_once(f"waits for {progress.held[0].name}, which another process makes")
            time.sleep(_WAIT)
    progress.left = [*missing()]
    return progress


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Returns the median, the lowest and the highest of some values; None for no values."""
    if not values:
        return {"median": None, "lowest": None, "highest": None}
    return {"median": statistics.median(values), "lowest": min(values), "highest": max(values)}


def spread_text(found: dict[str, Any], number: Callable[[float], str], *, is_single: bool) -> str:
    """Returns the median; of several values also the lowest and the highest, in brackets."""
    median = number(found["median"])
    if is_single:
        return median
    return f"{median} ({number(found['lowest'])} to {number(found['highest'])})"
