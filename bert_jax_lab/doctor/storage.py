"""Checks of the workdir: the run in it, its checkpoints, and its storage."""

import contextlib
import errno
import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax

from bert_jax.config import TrainConfig
from bert_jax.data.corpus.store import Corpus
from bert_jax.errors import StorageFailed, with_exit_code
from bert_jax.files import nearest_directory
from bert_jax.runtime import distributed
from bert_jax.training import saving
from bert_jax.workdir import checkpoint, location, recovery, run_directory
from bert_jax.workdir.location import Location
from bert_jax_lab.doctor.arguments import Arguments
from bert_jax_lab.doctor.finding import Finding, failed, passed, warned
from bert_jax_lab.doctor.machine import DeviceMemory

_PROBE_BYTES = 32 * 2**20
_ANSWER_SECONDS = 120.0
# A larger checkpoint is not read completely: it would take more than a minute.
_READ_WHOLE = 8_000_000_000

_OPEN_THE_BUCKET = (
    "check that the bucket exists and is reachable, and give the account of this machine "
    "roles/storage.objectUser and roles/storage.legacyBucketReader on it (gcloud storage buckets "
    "add-iam-policy-binding)"
)


class SaveTime(NamedTuple):
    """The seconds of a save: a fixed part, and a part per byte and process."""

    fixed: float
    per_byte: float


def held(arguments: Arguments, config: TrainConfig, corpus: Corpus) -> Finding:
    """The workdir is free or contains this run."""
    assert arguments.workdir is not None
    is_held, changes = run_directory.holds_run(
        _directory(arguments.workdir),
        config,
        corpus,
        init_from=arguments.init_from,
        allowed=arguments.allowed_changes,
    )
    if not is_held:
        return passed(f"{arguments.workdir} holds no run: pretrain starts a new one")
    changed = ", ".join(field for field, _, _ in changes)
    return passed(f"{arguments.workdir} contains this run; allowed changes: {changed or 'none'}")


def newest(workdir: Path | str) -> Finding:
    """The checkpoint from which the run would resume is unchanged."""
    directory = _directory(workdir)
    there = checkpoint.steps(directory)
    if not there:
        return passed("no checkpoint yet")
    size, saved_at, trouble = checkpoint.describe(directory, there[-1])
    if trouble is None and size > _READ_WHOLE:
        return passed(f"step {there[-1]} of {saved_at}, {size / 1e9:.1f} GB: manifest complete")
    good = recovery.newest_good_step(directory)
    if good != there[-1]:
        return warned(
            f"step {there[-1]}, the newest, is damaged "
            f"({checkpoint.problem(directory, there[-1])}): the run would resume from {good}",
            f"restore a copy of checkpoints/{there[-1]}, or train those steps again",
        )
    return passed(f"step {good} of {saved_at} is unchanged")


def saves(workdir: Path | str) -> tuple[Finding, SaveTime]:
    """Every process writes a file next to the workdir, and reads it back unchanged."""
    at, rank = location.at(workdir), jax.process_index()
    if not at.is_in_bucket:
        _require_writable(Path(workdir))
    token = distributed.exchange("token", secrets.token_hex(4), seconds=_ANSWER_SECONDS)[0]
    place, data = _next_to(at, token), secrets.token_hex(_PROBE_BYTES // 2)

    def make() -> None:
        if distributed.is_main():
            if not place.is_in_bucket:
                place.path.mkdir(parents=True)
            place.write_text("seen", "by all hosts")

    def look() -> None:
        if "seen" not in place.names():
            raise StorageFailed(
                f"process {rank} does not see a file in {place.name} that process 0 wrote; all "
                "hosts must see the same `workdir`, such as gs://BUCKET/PATH"
            )

    def read() -> None:
        if place.document(f"probe{rank}") != data.encode():
            raise StorageFailed(f"{place.name} alters files; choose another `workdir`")

    try:
        fixed = _together("place", make) + _together("seen", look)
        whole = _together("written", lambda: place.write_text(f"probe{rank}", data))
        _together("read", read)
    except StorageFailed as error:
        raise _advised(error, workdir) from error
    finally:
        if distributed.is_main():
            # If a bucket does not answer, the first error is the informative one.
            with contextlib.suppress(StorageFailed):
                place.remove()
    text = f"{_PROBE_BYTES / 2**20:.0f} MiB written next to it in {whole:.1f} s and read back"
    return passed(text), SaveTime(fixed, whole / _PROBE_BYTES)


def room(workdir: Path | str, config: TrainConfig, memory: DeviceMemory) -> Finding:
    """The disk has space for the kept checkpoints and the one that is being saved."""
    if location.at(workdir).is_in_bucket:
        return passed("not checked: a bucket has no fixed size")
    try:
        problem = saving.room_problem(Path(workdir), config, memory.state_bytes)
    except StorageFailed as error:
        problem = str(error)
    if problem:
        place, _, fix = problem.partition("; ")
        return failed(place, fix, exit_code=StorageFailed.exit_code)
    return passed(f"each checkpoint takes {memory.state_bytes / 1e9:.3g} GB; the disk has room")


def _together(name: str, act: Callable[[], Any]) -> float:
    """Calls a function in every process and returns its seconds. The first error is raised in all
    processes, so that no process waits for a failed one.
    """
    error, answer, began = None, "", time.monotonic()
    try:
        act()
    except Exception as raised:
        error, answer = raised, f"{getattr(raised, 'exit_code', 7)} {raised}"
    seconds = time.monotonic() - began
    heard = distributed.exchange(f"probe {name}", answer, seconds=_ANSWER_SECONDS)
    if error is not None:
        raise error
    for rank, problem in enumerate(heard):
        if problem:
            code, _, text = problem.partition(" ")
            raise with_exit_code(int(code), f"process {rank}: {text}")
    return seconds


def _directory(workdir: Path | str) -> Path:
    try:
        return location.opened(workdir).path
    except StorageFailed as error:
        raise _advised(error, workdir) from error


def _advised(error: StorageFailed, workdir: Path | str) -> StorageFailed:
    """Adds the fix to an error of a bucket; returns other errors unchanged."""
    if not location.at(workdir).is_in_bucket:
        return error
    return StorageFailed(f"{error}; {_OPEN_THE_BUCKET}")


def _next_to(workdir: Location, token: str) -> Location:
    """Returns a new place on the same storage as the workdir."""
    if workdir.is_in_bucket:
        return location.at(f"{workdir.name}.doctor-{token}")
    directory = workdir.path.absolute()
    there = nearest_directory(directory)
    # The parent folder of a mounted workdir is on another disk.
    inside = there if there != directory or os.path.ismount(directory) else directory.parent
    return location.at(inside / f"{directory.name}.doctor-{token}")


def _require_writable(directory: Path) -> None:
    """Raises PermissionError for a directory that this process may not write to."""
    if directory.is_dir() and not os.access(directory, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, "is not writable", str(directory))
