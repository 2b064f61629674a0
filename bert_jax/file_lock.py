"""Locks between processes: one writer of a corpus, of a workdir, of a run of a study.

They are the operating system's own (flock), so that a process that is killed leaves none behind. A
lock belongs to an open file, which a child process may inherit: where only the parent was killed,
it stays until the child, which still works, has ended.
"""

import contextlib
import errno
import fcntl
import os
import re
import socket
import uuid
from collections.abc import Iterator
from pathlib import Path

from bert_jax.errors import UsageError
from bert_jax.progress import note_once

# What a file system says that has no locks.
_NO_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL}
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_HOLDER = re.compile(rb"([0-9]{1,10}) ([\w.-]{1,255})\n")


@contextlib.contextmanager
def hold(path: Path, *, waits: bool = False) -> Iterator[int | None]:
    """Yields the descriptor of the lock, or None where another process holds it.

    With `waits`, it waits for that process instead. The folder of `path` is made. Where the file
    system has no locks, that is noted, and there is none.
    """
    descriptor = _take(path, waits=waits)
    try:
        yield descriptor
    finally:
        if descriptor is not None:
            os.close(descriptor)


@contextlib.contextmanager
def hold_or_refuse(path: Path, doing: str, remedy: str) -> Iterator[None]:
    """Holds the lock, whose file is gone afterwards.

    Raises UsageError where another process holds it, with that process and its machine; `doing` is
    what it does there ("is preparing corpus"), `remedy` what to do.
    """
    with hold(path) as held:
        if held is None:
            raise UsageError(f"{holder(path)} {doing}; {remedy}")
        try:
            yield
        finally:
            # While it is held: a process that has the file open finds that it is another one.
            path.unlink(missing_ok=True)


def holder(path: Path) -> str:
    """Returns how a message names the process that holds a lock."""
    try:
        with path.open("rb") as file:
            found = _HOLDER.fullmatch(file.read(300))
    except OSError:
        found = None
    return f"process {int(found[1])} on {found[2].decode()}" if found else "another process"


def identity(descriptor: int) -> str | None:
    """Returns what names a lock that is held, among all machines: who held it before is gone.

    None where the file system has no locks.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return None
    machine = _BOOT.read_text().strip() if _BOOT.is_file() else f"{uuid.getnode():x}"
    status = os.fstat(descriptor)
    return f"{machine}:{status.st_dev}:{status.st_ino}"


def _take(path: Path, *, waits: bool) -> int | None:
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        is_kept = False
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
            except BlockingIOError:
                return None
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    raise
                note_once(f"{path.parent}: this file system has no locks: let one process write")
            if _is_at(descriptor, path):
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, f"{os.getpid()} {socket.gethostname()}\n".encode(), 0)
                is_kept = True
                return descriptor
        finally:
            if not is_kept:
                os.close(descriptor)


def _is_at(descriptor: int, path: Path) -> bool:
    """Returns whether an open file is still the one of that name: not removed by who held it."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
