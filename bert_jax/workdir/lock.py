"""One trainer per workdir: a file lock in a folder, an object with a heartbeat in a bucket.

The file lock (file_lock.py) ends with its process. The object, `trainer.json`, names the process
and is renewed every few seconds. It is only written over the generation that was read, which the
bucket checks, so that one of two processes succeeds. An object that was not renewed for `SECONDS`
belongs to a dead process and is replaced. Its age is the difference of two times of the bucket's
clock; clocks of machines are not compared.
"""

import contextlib
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

from bert_jax import file_lock
from bert_jax.errors import (
    BertJaxError,
    UsageError,
    WorkdirTaken,
    exit_code_of,
    reason_of,
    with_exit_code,
)
from bert_jax.progress import note_once
from bert_jax.runtime import distributed
from bert_jax.workdir import location, storage
from bert_jax.workdir.location import LOCK, OWNER, Guard, Location

# A process that has not renewed its object for this long is dead, or will notice that it has lost
# the workdir.
SECONDS = 60.0
_RENEWAL_SECONDS = 5.0
# A process that is about to end may hold the workdir for this long.
_GRACE_SECONDS = 5.0
_POLL_SECONDS = 0.5
# Time within which a host sees the writes of another host to a shared folder (NFS: up to 30 s, but
# at once in a folder that is listed).
_SEEN_SECONDS = 10.0
_REMEDY = "wait until it has ended, end it, or choose another `workdir`"


@contextlib.contextmanager
def only_trainer(workdir: Path | str, *, mesh: Mesh | None = None) -> Iterator[Guard]:
    """Holds a workdir, in process 0, until the block or the process ends.

    Yields the guard for `location.opened`. With a mesh all of its processes enter together. Raises
    UsageError, in all processes, if another trainer holds the workdir or a process does not see the
    folder of process 0; StorageFailed or Unreachable if the workdir is not writable.
    """
    place = location.at(workdir)
    was_there = not place.is_in_bucket and place.path.exists()
    if was_there and not place.path.is_dir():
        raise UsageError(f"`workdir` {place.name} is a file; choose a directory")
    guards: list[Guard] = [lambda patience: None]

    def take() -> int:
        try:
            hold = _hold_object if place.is_in_bucket else _hold_folder
            guards.append(held.enter_context(hold(place)))
        except OSError as error:
            text = f"{error.filename or place.name}: {reason_of(error)}"
            raise with_exit_code(exit_code_of(error), text) from error
        return os.getpid()

    try:
        with contextlib.ExitStack() as held:
            if mesh is None:
                take()
            else:
                with jax.set_mesh(mesh):
                    # All processes must connect before one of them may wait for long.
                    distributed.broadcast_from_main(lambda: None)
                    process = distributed.broadcast_from_main(take)
                    if not place.is_in_bucket:
                        _require_shared(place, process or 0)
            yield guards[-1]
    finally:
        if not place.is_in_bucket and not was_there:
            with contextlib.suppress(OSError):  # if it is not empty
                place.path.rmdir()


@contextlib.contextmanager
def _hold_folder(place: Location) -> Iterator[Guard]:
    path, until = place.path / LOCK, time.monotonic() + _GRACE_SECONDS
    with contextlib.ExitStack() as held:
        while held.enter_context(file_lock.hold(path)) is None:
            if time.monotonic() > until:
                raise _taken(file_lock.holder(path), place)
            time.sleep(_POLL_SECONDS)
        # While the lock is held: a process that waits for it then opens a new file.
        held.callback(path.unlink, missing_ok=True)
        yield lambda patience: None


def _require_shared(place: Location, process: int) -> None:
    """Raises UsageError, in all processes, if one of them does not see the lock of process 0.

    Otherwise each process would continue with its own state, and wait for the others forever.
    """
    until, path = time.monotonic() + _SEEN_SECONDS, place.path / LOCK
    while not (is_seen := file_lock.holder(path).startswith(f"process {process} ")):
        if time.monotonic() > until:
            break
        time.sleep(_POLL_SECONDS)
        for folder in (*reversed(place.path.absolute().parents), place.path):
            with contextlib.suppress(OSError):
                storage.names_in(folder)  # a host caches a folder until it is listed
    blind = distributed.largest(0 if is_seen else jax.process_index())
    if blind:
        error = UsageError(
            f"`workdir` {place.name}: process {blind} does not see the files that process 0 writes "
            "there; choose a folder that all hosts share, or gs://BUCKET/PATH"
        )
        raise distributed.everywhere(error)


@contextlib.contextmanager
def _hold_object(place: Location) -> Iterator[Guard]:
    owner = _Owner(place)
    owner.take()
    try:
        yield owner.renew
    finally:
        owner.release()


class _Owner:
    """The object in a bucket that names this process as the trainer; a thread renews it."""

    def __init__(self, place: Location):
        self._place, self._object = place, storage.path_of(str(place.inside(OWNER)))
        self._fields = {
            "process": os.getpid(),
            "host": socket.gethostname(),
            "token": secrets.token_hex(16),
        }
        self._generation: str | None = None
        # The message once another process has the workdir.
        self._lost = ""
        self._one_at_a_time, self._ended = threading.Lock(), threading.Event()

    def take(self) -> None:
        """Waits until a dead process has lost the workdir. Raises UsageError if the other process
        is alive.
        """
        began, first = time.monotonic(), None
        while True:
            found = self._place.asking(lambda: storage.read_version(self._object))
            if found is None or found.age >= SECONDS:
                over = found.generation if found else None
                self._generation = self._place.asking(lambda: self._write(over))  # noqa: B023
                if self._generation is not None:
                    break
                continue
            first = first or found.generation
            is_alive = found.generation != first
            if is_alive and time.monotonic() - began > _GRACE_SECONDS:
                raise _taken(_named(found.text), self._place)
            note_once(
                f"{_named(found.text)} trains in {self._place.name}: waiting up to {SECONDS:.0f} s "
                "for it"
            )
            time.sleep(_POLL_SECONDS)
        threading.Thread(target=self._keep, daemon=True, name="heartbeat").start()

    def renew(self, patience: float | None) -> None:
        """Renews the object. Raises WorkdirTaken if another process now has the workdir,
        Unreachable or StorageFailed if the bucket does not answer.
        """
        with self._one_at_a_time:
            if not (self._lost or self._ended.is_set()):
                self._place.asking(self._renew, patience=patience)
            if self._lost:
                raise WorkdirTaken(self._lost)

    def release(self) -> None:
        """Removes the object, if the bucket answers; otherwise the object expires."""
        self._ended.set()
        if not self._one_at_a_time.acquire(timeout=1.0):
            return
        try:
            if not self._lost and (generation := self._generation) is not None:
                remove = storage.remove_version
                with contextlib.suppress(OSError, BertJaxError):
                    self._place.asking(lambda: remove(self._object, generation), patience=0)
        finally:
            self._one_at_a_time.release()

    def _keep(self) -> None:
        while not self._lost and not self._ended.wait(_RENEWAL_SECONDS):
            with contextlib.suppress(BertJaxError):  # the next save reports the error
                self.renew(0)

    def _renew(self) -> None:
        over = self._generation
        while (written := self._write(over)) is None:
            found = storage.read_version(self._object)
            if found is not None:
                self._lost = (
                    f"{_named(found.text)} trains in {self._place.name}: this process had not "
                    f"renewed {OWNER} for {SECONDS:.0f} s, and ends without writing there"
                )
                return
            over = None  # the object was removed
        self._generation = written

    def _write(self, over: str | None) -> str | None:
        text = json.dumps({**self._fields, "renewed": time.time()}) + "\n"
        written = storage.write_version(self._object, text.encode(), over)
        if written is None:
            # Another process was faster, or the answer to an earlier request was lost.
            found = storage.read_version(self._object)
            is_own = found is not None and self._fields["token"] in found.text
            written = found.generation if found is not None and is_own else None
        return written


def _named(text: str) -> str:
    """Returns the name of the process that wrote an object, for messages."""
    with contextlib.suppress(ValueError, KeyError, TypeError):
        fields: Any = json.loads(text)
        return f"process {fields['process']:d} on {str(fields['host'])[:255]}"
    return "another process"


def _taken(by: str, place: Location) -> UsageError:
    return UsageError(f"{by} trains in {place.name}; {_REMEDY}")
