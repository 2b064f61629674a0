"""Locks by which several processes share the runs of one study.

The operating system's own (flock), so that a process that is killed leaves none behind. It belongs
to an open file, which a run's child process inherits: where only the parent was killed, the run
stays locked until the child, which still trains, has ended.
"""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def hold(path: Path, *, waits: bool = False) -> Iterator[int | None]:
    """Yields the descriptor of the lock, or None where another process holds it.

    With `waits`, it waits for that process instead.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
        except BlockingIOError:
            yield None
            return
        yield descriptor
    finally:
        os.close(descriptor)
