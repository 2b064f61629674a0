"""Locks between processes: one writer per corpus, per workdir, per run of a study.

The operating system keeps a lock for an open file: a killed process leaves none behind. A child
process may inherit the file, and the lock then lasts until the child has ended.
"""

import contextlib
import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from bert_jax.errors import UsageError
from bert_jax.progress import note_once

# Errors of file systems without locks.
_NO_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL}


@contextlib.contextmanager
def hold(path: Path, *, waits: bool = False) -> Iterator[int | None]:
    """Yields the descriptor of the lock, or None if another process holds it.

    With `waits`, waits for the other process instead. Creates the folder of `path`. On a file
    system without locks, logs that and yields the descriptor of an unlocked file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptors: list[int] = []
    with contextlib.ExitStack() as held:
        try:
            lock = FileLock(path, on_acquired=descriptors.append)
            held.enter_context(lock.acquire(blocking=waits))
        except Timeout:
            yield None
            return
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            note_once(f"{path.parent}: this file system has no locks: let one process write")
            descriptors.append(os.open(path, os.O_RDWR | os.O_CREAT, 0o666))
            held.callback(os.close, descriptors[0])
        os.ftruncate(descriptors[0], 0)
        os.pwrite(descriptors[0], f"{os.getpid()} {socket.gethostname()}\n".encode(), 0)
        yield descriptors[0]


@contextlib.contextmanager
def hold_or_refuse(path: Path, doing: str, remedy: str) -> Iterator[None]:
    """Holds the lock, and removes its file afterwards.

    Raises UsageError if another process holds the lock. The message has the process, `doing` ("is
    preparing corpus") and `remedy`.
    """
    with hold(path) as held:
        if held is None:
            raise UsageError(f"{holder(path)} {doing}; {remedy}")
        try:
            yield
        finally:
            # While the lock is held: a process that waits for it then opens a new file.
            path.unlink(missing_ok=True)


def holder(path: Path) -> str:
    """Returns the name of the process that holds a lock, for messages."""
    try:
        process, host = path.read_text(encoding="utf-8").split()
    except (OSError, ValueError):
        return "another process"
    return f"process {process} on {host}"
