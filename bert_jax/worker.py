"""Worker processes of a command: they end with it, and ignore signals."""

import contextlib
import multiprocessing
import os
import signal
import threading
from multiprocessing import resource_tracker
from multiprocessing.connection import wait
from pathlib import Path


def prepare_for_workers() -> None:
    """Starts the resource tracker of process pools so that it ignores SIGHUP.

    Python makes it ignore only Ctrl-C and SIGTERM; if it is killed, each semaphore causes a
    traceback. Outside of the main thread it is started as usual.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    heard = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        resource_tracker.ensure_running()
    finally:
        signal.signal(signal.SIGHUP, signal.SIG_DFL if heard is None else heard)


def kill_descendants(command: bytes) -> None:
    """Kills the descendant processes with this text in their command line, for libraries that
    cannot end them. Without /proc, the processes detect themselves that this one is gone.
    """
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has already ended
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    for process in parents:
        above = process
        while above in parents and above != os.getpid():
            above = parents[above]
        with contextlib.suppress(OSError):
            if above == os.getpid() != process and (
                command in Path(f"/proc/{process}/cmdline").read_bytes()
            ):
                os.kill(process, signal.SIGKILL)


def begin() -> None:
    """Prepares a worker process, which calls this function first and ends with its parent.

    Ctrl-C, a closed terminal and many supervisors signal every process of the group. The parent
    handles the signal and ends its workers; a worker is not notified if its parent is killed.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)

    def leave_with_parent() -> None:
        parent = multiprocessing.parent_process()
        assert parent is not None
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=leave_with_parent, daemon=True).start()
