"""Chooses the step that a run resumes from: the newest step with verified bytes.

Later steps with a manifest are never deleted; they move to `set_aside/`. A step without a manifest
is removed: a process that ends between Orbax's commit and the manifest loses the step.

A branch is another run, in a separate workdir, that continues from one of the steps.
"""

import json
import shutil
from pathlib import Path

from bert_jax.errors import NoUsableCheckpoint, UsageError
from bert_jax.files import write_json
from bert_jax.interchange import name_map
from bert_jax.progress import note, ticking
from bert_jax.workdir import (
    checkpoint,
    location,
    log_reader,
    manifest,
    metrics_log,
    run_directory,
    storage,
)
from bert_jax.workdir.run_directory import CONFIG, TOKENIZER


def newest_good_step(workdir: Path) -> int | None:
    """Returns the newest step that verifies, and logs the steps that do not. Changes nothing.

    None if no step exists yet; raises NoUsableCheckpoint if steps exist and none verifies.
    """
    damaged = {}
    for step in reversed(checkpoint.steps(workdir)):
        trouble = checkpoint.problem(workdir, step)
        if trouble is None:
            for damaged_step, why in damaged.items():
                note(f"skipping step {damaged_step} of {location.at(workdir).name}: {why}")
            return step
        damaged[step] = trouble
    if damaged:
        raise _none_usable(workdir, damaged)
    return None


def require_good(workdir: Path, step: int) -> None:
    """Raises UsageError if the step does not exist, NoUsableCheckpoint if it does not verify."""
    there = checkpoint.steps(workdir)
    if step not in there:
        listed = ", ".join(map(str, there)) or "none"
        name = location.at(workdir).name
        raise UsageError(f"workdir {name} has no step {step}; available: {listed}")
    trouble = checkpoint.problem(workdir, step)
    if trouble is not None:
        raise _none_usable(workdir, {step: trouble})


def prepare_resume(workdir: Path) -> int | None:
    """Cleans up the steps of a workdir. Returns the step to resume from; None: from the start.

    Raises NoUsableCheckpoint if steps were saved but none verifies, Unreachable if the network
    fails. Only process 0 calls it.
    """
    checkpoint.remove_unfinished(workdir)
    chosen = newest_good_step(workdir)
    # Whether the run had a step; no event names the initial step of an averaged checkpoint.
    named = {event.get("event") for event in log_reader.read_events(workdir)}
    was_saved = named & {"save", "branch"} or run_directory.stored(workdir).get("mean_of")
    if chosen is None and was_saved:
        raise NoUsableCheckpoint(
            f"workdir {location.at(workdir).name}: its checkpoints are missing; restore them, "
            "or start again in another `workdir`"
        )
    _clear_beyond(workdir, -1 if chosen is None else chosen)
    return chosen


def roll_back(workdir: Path, step: int) -> int:
    """Moves the steps after `step` to set_aside/ and removes their rows. Returns `step`.

    Raises UsageError if the step does not exist, NoUsableCheckpoint if it does not verify.
    """
    require_good(workdir, step)
    later = _clear_beyond(workdir, step)
    metrics_log.append_event(workdir, "rollback", step=step, set_aside=later)
    log_reader.set_aside_after(workdir, step)
    location.at(workdir).sync()
    return step


def branch_off(directory: Path, output: Path, *, step: int | None = None) -> int:
    """Creates the workdir `output` with one step of the run in `directory`, by default the newest
    good step, and the rows up to it. Returns the step.

    The directory is written atomically. Raises UsageError if `output` is not empty or the step does
    not exist, NoUsableCheckpoint if the step does not verify.
    """
    name_map.require_free(output)
    origin = location.at(directory)
    name, stored = origin.name, run_directory.stored(directory)
    if stored.get("task"):
        raise UsageError(f"{name} is a fine-tuned model; only pre-training runs can branch")
    if step is not None:
        require_good(directory, step)
    elif (step := newest_good_step(directory)) is None:
        raise UsageError(f"workdir {name} has no saved step")
    with name_map.new_directory(output) as building:
        source = origin.checkpoints / str(step)
        target = building / checkpoint.DIRECTORY / str(step)
        with ticking(f"copying step {step} of {name}"):
            origin.asking(lambda: storage.copy_tree(source, target))
            trouble = checkpoint.problem(building, step)
        if trouble is not None:
            raise NoUsableCheckpoint(
                f"step {step} of {name} changed while it was copied: {trouble}; try again"
            )
        shutil.copytree(directory / TOKENIZER, building / TOKENIZER)
        rows = [row for row in log_reader.read_rows(directory) if row["step"] <= step]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (building / location.METRICS).write_text(text, encoding="utf-8")
        journal = metrics_log.MetricsLogger(building)
        for skipped in log_reader.skips(log_reader.read_events(directory), step):
            journal.event(
                "skip", **{k: v for k, v in skipped.items() if k not in ("event", "time")}
            )
        journal.event("branch", step=step, workdir=name)
        journal.close()
        write_json(building / CONFIG, stored | {"branched_from": {"workdir": name, "step": step}})
    return step


def _clear_beyond(workdir: Path, step: int) -> list[int]:
    """Removes the directories without a manifest, and moves the steps after `step` to set_aside/.
    Returns the moved steps.
    """
    for number in checkpoint.incomplete_steps(workdir):
        note(f"step {number} has no {manifest.MANIFEST} and is removed: its save was interrupted")
        checkpoint.remove(workdir, number)
    moved = [later for later in checkpoint.steps(workdir) if later > step]
    for number in reversed(moved):
        place = checkpoint.set_aside(workdir, number)
        note(f"step {number} moved to {place}")
    return moved


def _none_usable(workdir: Path, damaged: dict[int, str]) -> NoUsableCheckpoint:
    listed = "; ".join(f"step {step}: {trouble}" for step, trouble in damaged.items())
    return NoUsableCheckpoint(
        f"workdir {location.at(workdir).name} has no step with intact files ({listed}); restore "
        "a copy of one, or start again in another `workdir`"
    )
