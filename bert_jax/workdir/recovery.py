"""Finds where a run goes on: the newest step whose bytes are right, or the one that is asked for.

What lies beyond that step is never deleted if it was once whole: it moves to `set_aside/`, so that
the branch that begins here is the only one that the next resumption can find.

A machine may be gone between Orbax's commit of a step and its manifest. Such a step has nothing
to be compared with: if all of its arrays can be read and are finite, it gets its manifest, and is
used.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bert_jax.errors import NoUsableCheckpoint, UsageError
from bert_jax.progress import note
from bert_jax.workdir import checkpoint, log_reader, metrics_log, remote_workdir


def newest_good_step(workdir: Path) -> int | None:
    """Returns the newest step that verifies, for one who only reads. Names those it passes over.

    None if there is no step yet; NoUsableCheckpoint if there are some and none verifies.
    """
    damaged = {}
    for step in reversed(checkpoint.steps(workdir)):
        trouble = checkpoint.problem(workdir, step)
        if trouble is None:
            _name(workdir, damaged)
            return step
        damaged[step] = trouble
    if damaged:
        raise _none_usable(workdir, damaged)
    return None


def require_good(workdir: Path, step: int) -> None:
    """Raises NoUsableCheckpoint if `step` is not there, or not as it was saved."""
    there = checkpoint.steps(workdir)
    if step not in there:
        raise NoUsableCheckpoint(_no_step(workdir, step, there))
    trouble = checkpoint.problem(workdir, step)
    if trouble is not None:
        raise _none_usable(workdir, {step: trouble})


def prepare_resume(
    workdir: Path, *, resume_step: int | None = None, facts: Mapping[str, Any] | None = None
) -> int | None:
    """Makes the workdir ready to go on, and returns from which step; None from the beginning.

    With `resume_step`, goes back to that step, once: a supervisor repeats its command, and what has
    been trained since must not be thrown away again. `facts` go into the manifest of a step that
    has none. Raises UsageError if there is no such step, NoUsableCheckpoint if steps were saved and
    none of them verifies, Unreachable if the network does not let them be seen. For process 0
    alone.
    """
    checkpoint.remove_unfinished(workdir)
    _describe_committed(workdir, facts or {})
    if resume_step is not None and resume_step not in _steps_of(workdir, "rollback"):
        return roll_back(workdir, resume_step)
    chosen = newest_good_step(workdir)
    if resume_step is not None:
        note(
            f"`resume_step` {resume_step} was done before; going on from step {chosen}. To go back "
            f"again: bert-jax checkpoints rollback {remote_workdir.address_of(workdir)} `step` STEP"
        )
    if chosen is None and _steps_of(workdir, "save"):
        raise NoUsableCheckpoint(
            f"workdir {remote_workdir.address_of(workdir)} saved checkpoints that are no longer "
            "there; put them back, or start again in another `workdir`"
        )
    _clear_beyond(workdir, -1 if chosen is None else chosen)
    return chosen


def _describe_committed(workdir: Path, facts: Mapping[str, Any]) -> None:
    """Gives the newest whole step that is committed its manifest, if a save ended before that.

    Where a `save` event says that it had one, it has lost it since, and is not trusted.
    """
    saved, newest = _steps_of(workdir, "save"), max(checkpoint.steps(workdir), default=-1)
    for step in reversed(checkpoint.undescribed(workdir)):
        if step <= newest or step in saved:
            continue
        trouble = checkpoint.content_problem(workdir, step)
        if trouble is None:
            checkpoint.describe_committed(workdir, step, **facts)
            note(f"step {step} was saved, but its process ended before it was described: it is "
                 "whole, and is used")  # fmt: skip
            return
        note(f"step {step} has no manifest and is left out: {trouble}")


def roll_back(workdir: Path, step: int) -> int:
    """Sets aside all that came after `step`, which must verify. Returns it."""
    there = checkpoint.steps(workdir)
    if step not in there:
        raise UsageError(_no_step(workdir, step, there))
    require_good(workdir, step)
    later = _clear_beyond(workdir, step)
    metrics_log.append_event(workdir, "rollback", step=step, set_aside=later)
    remote_workdir.copy_back(workdir)
    return step


def _clear_beyond(workdir: Path, step: int) -> list[int]:
    """Removes what was never whole; sets aside what is whole beyond `step`, or no longer whole.

    Returns the steps set aside.
    """
    saved = _steps_of(workdir, "save")
    aside = []
    for number in checkpoint.cut_off(workdir):
        if number in saved:
            aside.append(number)  # whole once: it has lost its manifest
        else:
            checkpoint.remove(workdir, number)
    aside += [later for later in checkpoint.steps(workdir) if later > step]
    for number in sorted(aside, reverse=True):
        place = checkpoint.set_aside(workdir, number)
        note(f"step {number} is set aside: {place}")
    return sorted(aside)


def _steps_of(workdir: Path, event: str) -> set[int]:
    return {e["step"] for e in log_reader.read_events(workdir) if e.get("event") == event}


def _no_step(workdir: Path, step: int, there: list[int]) -> str:
    listed = ", ".join(map(str, there)) or "none"
    return f"workdir {remote_workdir.address_of(workdir)} has no step {step}; there are {listed}"


def _name(workdir: Path, damaged: dict[int, str]) -> None:
    for step, trouble in damaged.items():
        note(f"step {step} of {remote_workdir.address_of(workdir)} is passed over: {trouble}")


def _none_usable(workdir: Path, damaged: dict[int, str]) -> NoUsableCheckpoint:
    listed = "; ".join(f"step {step}: {trouble}" for step, trouble in damaged.items())
    return NoUsableCheckpoint(
        f"workdir {remote_workdir.address_of(workdir)} has no step that is as it was saved "
        f"({listed}); put back a copy of one, or start again in another `workdir`"
    )
