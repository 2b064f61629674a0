"""One trainer in a workdir: a second one is refused, with the name of the first."""

import contextlib
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import jax
from jax.sharding import Mesh

from bert_jax import file_lock
from bert_jax.errors import exit_code_of, reason_of, with_exit_code
from bert_jax.progress import note
from bert_jax.runtime import distributed
from bert_jax.workdir import remote_workdir, run_directory

# A process that was killed holds its lock until its last thread is gone; one of another machine
# until the server of the file system has missed it (the lease of NFS 4 is 90 s).
_HERE_SECONDS, _ELSEWHERE_SECONDS = 5.0, 120.0
_POLL_SECONDS = 0.2
_REMEDY = "wait until it has ended, end it, or choose another `workdir`"


@contextlib.contextmanager
def only_trainer(workdir: Path | str, *, mesh: Mesh | None = None) -> Iterator[None]:
    """Holds a workdir, in process 0, until it is left or the process ends in whatever way.

    With a mesh all of its processes enter together. A workdir in a bucket is held against other
    trainers of this machine only. Raises UsageError, in all processes, where another trainer holds
    it, and StorageFailed where nothing can be written there.
    """
    is_bucket = remote_workdir.is_address(workdir)
    directory = Path(workdir)
    lock = remote_workdir.lock_of(str(workdir)) if is_bucket else directory / run_directory.LOCK
    was_there = directory.exists()
    if not is_bucket and was_there and not directory.is_dir():
        yield  # whoever looks at it says so
        return
    with contextlib.ExitStack() as held:

        def take() -> None:
            try:
                _wait(lock, str(workdir))
                doing = f"trains in {workdir}"
                held.enter_context(file_lock.hold_or_refuse(lock, doing, _REMEDY))
            except OSError as error:
                text = f"{error.filename or lock}: {reason_of(error)}"
                raise with_exit_code(exit_code_of(error), text) from error

        if mesh is None:
            take()
        else:
            with jax.set_mesh(mesh):
                distributed.broadcast_from_main(take, mesh=mesh)
        yield
    if not (is_bucket or was_there):
        with contextlib.suppress(OSError):  # where nothing came to be in it
            directory.rmdir()


def _wait(lock: Path, workdir: str) -> None:
    """Waits until a trainer that is about to end has let go."""
    began, is_told = time.monotonic(), False
    while lock.exists() and _is_held(lock):
        by = file_lock.holder(lock)
        is_here = by.endswith(f" on {socket.gethostname()}")
        patience = _HERE_SECONDS if is_here else _ELSEWHERE_SECONDS
        if time.monotonic() - began > patience:
            return
        if not is_told:
            note(f"{by} trains in {workdir}: waits up to {patience:.0f} s for its end")
            is_told = True
        time.sleep(_POLL_SECONDS)


def _is_held(lock: Path) -> bool:
    with file_lock.hold(lock) as descriptor:
        return descriptor is None
