"""Checks of the workdir: the run in it, and that checkpoints can be saved there and come back."""

import contextlib
import errno
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding

from bert_jax.config import CheckpointConfig
from bert_jax.errors import StorageFailed, with_exit_code
from bert_jax.files import nearest_directory
from bert_jax.model import sharding
from bert_jax.runtime import distributed
from bert_jax.training import saving
from bert_jax.update.state import TrainState
from bert_jax.workdir import checkpoint, location, recovery, run_directory
from bert_jax.workdir.checkpoint import Checkpoints
from bert_jax.workdir.location import Location
from bert_jax_lab.doctor.checked_run import Case
from bert_jax_lab.doctor.finding import Finding, failed, passed, warned

_PROBE_BYTES = 64 * 2**20
_ANSWER_SECONDS = 120.0
# A newest checkpoint beyond this is not read whole: a minute would not suffice.
_READ_WHOLE = 8_000_000_000

_OPEN_THE_BUCKET = (
    "see that the bucket is there and a network leads to it, and give this machine's account "
    "roles/storage.objectUser and roles/storage.legacyBucketReader on it (gcloud storage buckets "
    "add-iam-policy-binding)"
)


def held(case: Case) -> Finding:
    """The workdir is free, or holds this run."""
    assert case.workdir is not None
    is_held, changes = run_directory.holds_run(
        _directory(case),
        case.config,
        case.corpus,
        init_from=case.init_from,
        allowed=case.allowed_changes,
    )
    if not is_held:
        return passed(f"{case.workdir} is free: a new run begins there")
    allowed = f", but for {', '.join(field for field, _, _ in changes)}" if changes else ""
    return passed(f"{case.workdir} holds this run{allowed}")


def newest(case: Case) -> Finding:
    """The checkpoint that the run would go on from is as it was saved."""
    directory = _directory(case)
    there = checkpoint.steps(directory)
    if not there:
        return passed("no checkpoint yet")
    size, saved_at, trouble = checkpoint.describe(directory, there[-1])
    if trouble is None and size > _READ_WHOLE:
        return passed(f"step {there[-1]} of {saved_at}, {size / 1e9:.1f} GB: its manifest is whole")
    good = recovery.newest_good_step(directory)
    if good != there[-1]:
        return warned(
            f"step {there[-1]}, the newest, is damaged "
            f"({checkpoint.problem(directory, there[-1])}): the run would go on from {good}",
            f"put back a copy of checkpoints/{there[-1]}, or train those steps again",
        )
    return passed(f"step {good} of {saved_at} is as it was saved")


def saves(case: Case) -> Finding:
    """Some arrays are saved beside the workdir as a run saves its state, verified and restored."""
    assert case.workdir is not None
    if not location.at(case.workdir).is_in_bucket:
        _require_writable(Path(case.workdir))
    place = _beside(location.at(case.workdir), case.token)
    probe = _Probe(place)
    try:
        _together("place", probe.open)
        _together("seen", probe.look)
        seconds = probe.save()
        _together("restored", probe.restore)
    except StorageFailed as error:
        raise _advised(error, case.workdir) from error
    finally:
        probe.close()
        if distributed.is_main():
            # Of a bucket that does not answer, the first error is the one to tell.
            with contextlib.suppress(StorageFailed):
                place.remove()
    fixed, whole = seconds
    case.save_seconds = fixed, max(whole - fixed, 1e-3) / _PROBE_BYTES
    return passed(
        f"{_PROBE_BYTES / 2**20:.0f} MiB saved beside it in {whole:.1f} s, verified and restored; "
        f"a file takes {1e3 * probe.latency:.0f} ms there and back"
    )


def room(case: Case) -> Finding:
    """The disk has room for as many checkpoints as will be kept, and one that is being saved."""
    assert case.workdir is not None
    if location.at(case.workdir).is_in_bucket:
        return passed("not checked: a bucket has no fixed size")
    try:
        problem = saving.room_problem(Path(case.workdir), case.config, case.state_bytes)
    except StorageFailed as error:
        problem = str(error)
    if problem:
        place, _, fix = problem.partition("; ")
        return failed(place, fix, exit_code=StorageFailed.exit_code)
    return passed(f"a checkpoint has {case.state_bytes / 1e9:.3g} GB: there is room for all")


class _Probe:
    """A workdir beside the real one, and what is saved in it."""

    def __init__(self, place: Location):
        self._place = place
        self._mesh = sharding.make_mesh(fsdp=-1, tensor=1)
        self._saver: Checkpoints | None = None
        self.latency = 0.0

    def open(self) -> None:
        if not distributed.is_main():
            return
        if not self._place.is_in_bucket:
            self._place.path.mkdir(parents=True)
        began = time.monotonic()
        self._place.write_text("seen", "by all hosts")
        self.look()
        self.latency = time.monotonic() - began

    def look(self) -> None:
        """Raises StorageFailed if this host does not see what process 0 has written."""
        if "seen" not in self._place.names():
            raise StorageFailed(
                f"process {jax.process_index()} does not see in {self._place.name} what process 0 "
                "wrote there; all hosts must see one `workdir`, such as gs://BUCKET/PATH"
            )
        self._place.document("seen")

    def save(self) -> tuple[float, float]:
        """Returns the seconds of a save of a few bytes, and of one of `_PROBE_BYTES`."""
        self._directory = location.opened(self._place.name).path
        self._saver = Checkpoints(self._directory, CheckpointConfig(keep_last=3))
        self._small, self._large = _state(self._mesh, 0), _state(self._mesh, _PROBE_BYTES)
        seconds = []
        # The first one also loads what saves.
        for step, state in enumerate((self._small, self._small, self._large)):
            began = time.monotonic()
            self._saver.save(state, step=step)
            self._saver.wait()
            seconds.append(time.monotonic() - began)
        return seconds[1], seconds[2]

    def restore(self) -> None:
        if distributed.is_main():
            recovery.require_good(self._directory, 2)
        wanted = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), self._large
        )
        found = checkpoint.load_arrays(self._directory, vars(wanted), step=2)
        saved, restored = self._large.params["probe"], found["params"]["probe"]
        for ours, theirs in zip(saved.addressable_shards, restored.addressable_shards, strict=True):
            if not np.array_equal(ours.data, theirs.data):
                raise StorageFailed(
                    f"{self._place.name}: what was restored is not what was saved; choose another "
                    "`workdir`: this storage alters what it keeps"
                )

    def close(self) -> None:
        if self._saver is not None:
            self._saver.close()


def _state(mesh: Mesh, size: int) -> TrainState:
    """Returns a state with one array of noise, of which each device has a part."""
    numbers = max(size // 4 // mesh.size, 1) * mesh.size
    layout = NamedSharding(mesh, jax.P(sharding.AXES))

    def part(index: Any) -> np.ndarray:
        start, stop, _ = index[0].indices(numbers)
        return np.random.default_rng(start).random(stop - start, np.float32)

    probe = jax.make_array_from_callback((numbers,), layout, part)
    everywhere = NamedSharding(mesh, jax.P())
    zero = jax.make_array_from_callback((), everywhere, lambda _: np.zeros((), np.int32))
    norms = jax.make_array_from_callback((1,), everywhere, lambda _: np.zeros(1, np.float32))
    return TrainState(zero, {"probe": probe}, {"probe": norms}, norms)


def _together(name: str, act: Callable[[], None]) -> None:
    """Does something in every process; raises the first error in all, so that none waits."""
    error, answer = None, ""
    try:
        act()
    except Exception as raised:
        error, answer = raised, f"{getattr(raised, 'exit_code', 7)} {raised}"
    heard = distributed.exchange(f"probe {name}", answer, seconds=_ANSWER_SECONDS)
    if error is not None:
        raise error
    for rank, problem in enumerate(heard):
        if problem:
            code, _, text = problem.partition(" ")
            raise with_exit_code(int(code), f"process {rank}: {text}")


def _directory(case: Case) -> Path:
    assert case.workdir is not None
    try:
        return location.opened(case.workdir).path
    except StorageFailed as error:
        raise _advised(error, case.workdir) from error


def _advised(error: StorageFailed, workdir: Path | str) -> StorageFailed:
    """Returns the error with what to do about it, where the storage is a bucket."""
    if not location.at(workdir).is_in_bucket:
        return error
    return StorageFailed(f"{error}; {_OPEN_THE_BUCKET}")


def _beside(workdir: Location, token: str) -> Location:
    """Returns a place on the same storage as the workdir that nothing is in."""
    if workdir.is_in_bucket:
        return location.at(f"{workdir.name}.doctor-{token}")
    directory = workdir.path.absolute()
    there = nearest_directory(directory)
    # A disk that is mounted as the workdir has nothing beside it.
    inside = there if there != directory or os.path.ismount(directory) else directory.parent
    return location.at(inside / f"{directory.name}.doctor-{token}")


def _require_writable(directory: Path) -> None:
    """Raises PermissionError for a directory that is there and not to be written to."""
    if directory.is_dir() and not os.access(directory, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, "may not be written to", str(directory))
