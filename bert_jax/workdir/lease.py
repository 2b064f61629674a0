"""The lease of a workdir: its one trainer, and how all others find out that it is alive.

A lock of the operating system (file_lock.py) keeps out other processes of the same machine.
`lease.json` in the workdir keeps out those of other machines, in a bucket or in a folder that they
share. It is written only over the version that was read, which a bucket checks itself, and renewed
every few seconds. The clocks of machines are not compared: a lease that nobody renews while it is
looked at has run out.
"""

import contextlib
import json
import math
import os
import re
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

from bert_jax import file_lock, strict_json
from bert_jax.errors import (
    BertJaxError,
    UsageError,
    WorkdirTaken,
    exit_code_of,
    reason_of,
    with_exit_code,
)
from bert_jax.files import Version
from bert_jax.progress import note
from bert_jax.runtime import distributed
from bert_jax.workdir import location
from bert_jax.workdir.location import LEASE, Location

# A lease that was not renewed for so long has run out. A machine that is taken away and one that
# takes its place are further apart.
SECONDS = 60.0
_RENEWAL_SECONDS = 5.0
# A process that was killed holds its lock until its last thread is gone; one of another machine
# until the server of the file system has missed it (the lease of NFS 4 is 90 s).
_HERE_SECONDS, _ELSEWHERE_SECONDS = 5.0, 120.0
_POLL_SECONDS = 0.5
# Within so long a host sees what another one has written into a folder that they share. NFS looks
# again after 30 s, and at once in a folder that is opened.
_SEEN_SECONDS = 10.0
# Hexadecimal digits of a token by which the other processes of a run know the lease.
_DIGITS = 7
_REMEDY = "wait until it has ended, end it, or choose another `workdir`"
_TIME = "%Y-%m-%d %H:%M:%S UTC"
# The fields of a lease that a message shows.
_SHOWN = {"process": r"[0-9]{1,10}", "host": r"[\w.-]{1,255}", "since": r"[0-9: -]{19} UTC"}


class Lease:
    """The lease of the process that trains in a workdir; a thread renews it."""

    def __init__(self, place: Location, lock: str | None):
        """`lock` names the lock that is held, too (file_lock.identity)."""
        self._place, self._file, self._token = place, place.versioned(LEASE), secrets.token_hex(16)
        self._fields = {
            "process": os.getpid(),
            "host": socket.gethostname(),
            "since": time.strftime(_TIME, time.gmtime()),
            "token": self._token,
            "lock": lock,
        }
        self._tag: str | None = None
        # Who has it instead, as a message.
        self._lost = ""
        self._one_at_a_time, self._ended = threading.Lock(), threading.Event()

    @property
    def number(self) -> int:
        """The number that process 0 tells the others, which they find in the lease."""
        return int(self._token[:_DIGITS], 16)

    def take(self, over: Version | None) -> bool:
        """Takes the lease, over the version that has run out or where there is none.

        Returns False if another process was faster.
        """
        self._tag = self._write(None if over is None else over.tag)
        if self._tag is not None:
            threading.Thread(target=self._keep, daemon=True, name="lease").start()
        return self._tag is not None

    def renew(self, *, patience: float | None = None) -> None:
        """Renews the lease. Raises WorkdirTaken where another process has it now; and Unreachable
        and StorageFailed where a bucket cannot be asked.
        """
        with self._one_at_a_time:
            # A disk that takes nothing keeps nobody out: the save says so.
            with contextlib.suppress(OSError):
                if not (self._lost or self._ended.is_set()):
                    self._place.asking(self._renew, patience=patience)
            if self._lost:
                raise WorkdirTaken(self._lost)

    def release(self) -> None:
        """Gives the lease back, if it can be; else it runs out."""
        self._ended.set()
        if not self._one_at_a_time.acquire(timeout=1.0):
            return
        try:
            if not self._lost and (tag := self._tag) is not None:
                with contextlib.suppress(OSError, BertJaxError):
                    self._place.asking(lambda: self._file.remove(tag), patience=0)
        finally:
            self._one_at_a_time.release()

    def _keep(self) -> None:
        while not self._lost and not self._ended.wait(_RENEWAL_SECONDS):
            with contextlib.suppress(BertJaxError):  # a save says so
                self.renew(patience=0)

    def _renew(self) -> None:
        tag = self._tag
        while (written := self._write(tag)) is None:
            found = self._file.read()
            if found is not None:
                by, since = _holder(found)
                self._lost = (
                    f"{by} trains in {self._place.name}{since}: this process had not renewed its "
                    f"lease for {SECONDS:.0f} s, and ends without writing there"
                )
                return
            tag = None  # somebody has removed it
        self._tag = written

    def _write(self, tag: str | None) -> str | None:
        text = json.dumps({**self._fields, "renewed": time.time()}) + "\n"
        written = self._file.replace(text, tag)
        if written is None:
            # Or the answer to an earlier request was lost.
            found = self._file.read()
            written = found.tag if found is not None and self._token in found.text else None
        return written


@contextlib.contextmanager
def only_trainer(workdir: Path | str, *, mesh: Mesh | None = None) -> Iterator[Lease | None]:
    """Holds a workdir, in process 0, until it is left or the process ends in whatever way.

    Yields its lease in process 0. With a mesh all of its processes enter together. Raises
    UsageError, in all processes, where another trainer holds it or one of them does not see it, and
    StorageFailed or Unreachable where nothing can be written there.
    """
    place = location.at(workdir)
    was_there = place.path.exists()
    if was_there and not place.path.is_dir():
        yield None  # whoever looks at it says so
        return
    leases: list[Lease] = []

    def take() -> int:
        try:
            leases.append(_take(place, held))
            return leases[0].number
        except OSError as error:
            text = f"{error.filename or place.lock}: {reason_of(error)}"
            raise with_exit_code(exit_code_of(error), text) from error

    try:
        with contextlib.ExitStack() as held:
            if mesh is None:
                take()
            else:
                with jax.set_mesh(mesh):
                    # All have met before one of them may wait for long.
                    distributed.broadcast_from_main(lambda: None, mesh=mesh)
                    number = distributed.broadcast_from_main(take, mesh=mesh) or 0
                    _require_shared(place, number, mesh=mesh)
            yield leases[0] if leases else None
    finally:
        if not was_there:
            with contextlib.suppress(OSError):  # where something came to be in it
                place.path.rmdir()


def _require_shared(place: Location, number: int, *, mesh: Mesh) -> None:
    """Raises UsageError, in all processes, if one of them does not find the lease of process 0:
    each would go on with what it sees, and they would wait for each other in different collectives.
    """
    is_seen = distributed.is_main() or _sees(place, number)
    blind = distributed.largest(0 if is_seen else jax.process_index(), mesh=mesh)
    if blind:
        error = UsageError(
            f"`workdir` {place.name}: process {blind} does not see there what process 0 writes; "
            "choose a folder that all hosts share, or gs://BUCKET/PATH"
        )
        raise distributed.everywhere(error)


def _sees(place: Location, number: int) -> bool:
    """Returns whether the lease of this number is there, or comes to be within some seconds."""
    file, until = place.versioned(LEASE), time.monotonic() + _SEEN_SECONDS
    while True:
        for folder in (*reversed(place.path.absolute().parents), place.path):
            with contextlib.suppress(OSError):
                os.scandir(folder).close()
        with contextlib.suppress(OSError):
            token = str(_said(place.asking(file.read)).get("token"))
            if token.startswith(f"{number:0{_DIGITS}x}"):
                return True
        if time.monotonic() > until:
            return False
        time.sleep(_POLL_SECONDS)


def _take(place: Location, held: contextlib.ExitStack) -> Lease:
    """Returns the lease of a workdir; `held` gives it back, and the lock that comes first."""
    watch = _Watch(place)
    while (descriptor := held.enter_context(file_lock.hold(place.lock))) is None:
        by = file_lock.holder(place.lock)
        is_here = by.endswith(f" on {socket.gethostname()}")
        watch.wait(by, patience=_HERE_SECONDS if is_here else _ELSEWHERE_SECONDS)
    # While it is held: a process that has the file open finds that it is another one.
    held.callback(place.lock.unlink, missing_ok=True)
    lock = file_lock.identity(descriptor)
    lease = Lease(place, lock)
    held.callback(lease.release)
    while True:
        found = watch.look()
        is_free = found is None or watch.has_run_out()
        is_free = is_free or (lock is not None and _said(found).get("lock") == lock)
        if is_free and place.asking(lambda: lease.take(found)):  # noqa: B023
            return lease
        watch.wait()


class _Watch:
    """Looks at a lease until it is known whether the process that has it is alive."""

    def __init__(self, place: Location):
        self._place, self._file = place, place.versioned(LEASE)
        self._began, self._is_noted = time.monotonic(), False
        self._found: Version | None = None
        # When it was renewed at the latest; and whether it was since the watch began.
        self._renewed, self._is_alive = self._began, False
        self.look()
        self._is_alive = False

    def look(self) -> Version | None:
        found, before = self._place.asking(self._file.read), self._found
        if found is not None and (before is None or found.tag != before.tag):
            self._renewed = time.monotonic() - found.age
            self._is_alive = True
        self._found = found
        return found

    def has_run_out(self) -> bool:
        return time.monotonic() - self._renewed >= SECONDS

    def wait(self, by: str = "another process", *, patience: float = math.inf) -> None:
        """Waits for a moment. Raises UsageError once the process that trains there is known to be
        alive, or `patience` is spent; `by` names it if the lease does not.
        """
        since = ""
        if self.look() is not None:
            by, since = _holder(self._found, by)
        waited = time.monotonic() - self._began
        # One that is about to end has let go by then.
        if waited > patience or (self._is_alive and waited > _HERE_SECONDS):
            raise UsageError(f"{by} trains in {self._place.name}{since}; {_REMEDY}")
        if not self._is_noted:
            left = min(patience, SECONDS - (time.monotonic() - self._renewed))
            note(f"{by} trains in {self._place.name}{since}: waiting up to {left:.0f} s for it")
            self._is_noted = True
        time.sleep(_POLL_SECONDS)


def _holder(found: Version | None, by: str = "another process") -> tuple[str, str]:
    """Returns how a message names the process that has a lease, and since when; `by` where the
    lease, which anybody may have written, does not say.
    """
    fields = _said(found)
    shown = [str(fields.get(name)) for name in _SHOWN]
    if not all(map(re.fullmatch, _SHOWN.values(), shown)):
        return by, ""
    return f"process {shown[0]} on {shown[1]}", f" since {shown[2]}"


def _said(found: Version | None) -> dict[str, Any]:
    """Returns what a lease says; nothing where it is none."""
    try:
        fields = strict_json.parse("" if found is None else found.text)
    except ValueError:
        return {}
    return fields if isinstance(fields, dict) else {}
