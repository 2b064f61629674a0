"""Worker processes of a command: they end with it, and ignore signals."""

import multiprocessing
import os
import signal
import threading
from multiprocessing import resource_tracker
from multiprocessing.connection import wait


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
