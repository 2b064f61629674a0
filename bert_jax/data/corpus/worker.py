"""Worker processes of a command: they live as long as it does, and hear no signal of their own."""

import multiprocessing
import os
import signal
import threading


def begin() -> None:
    """Prepares a worker process: a pool's initializer calls it first.

    Ctrl-C and a terminal that closes reach every process there. They are the parent's, which ends;
    a worker that waits for work would not notice that, nor that its parent was killed.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)

    def leave_with_parent() -> None:
        parent = multiprocessing.parent_process()
        assert parent is not None
        parent.join()
        os._exit(1)

    threading.Thread(target=leave_with_parent, daemon=True).start()
