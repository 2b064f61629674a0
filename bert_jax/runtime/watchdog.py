"""Ends a process that hangs, and reports what it was doing.

JAX detects a peer that died, but not one that hangs. Therefore the loop reports its progress
(`watchdog.at("step 12")`). A thread that sees no report for `deadline_seconds` prints all stacks
and ends the process with 200, so that a supervisor restarts it. If no Python code runs (a held
GIL), the C thread of faulthandler ends the process five seconds later.
"""

import faulthandler
import os
import threading
import time
from typing import Self

import jax

from bert_jax.progress import say

HANG = 200
# The file descriptor: a replaced sys.stderr, in a notebook or a test, may have none.
_STDERR = 2
_BACKSTOP_SECONDS = 5.0
# Multiples of the deadline for work that cannot report its progress, such as compilation.
COMPILE_PATIENCE = 4.0


class Watchdog:
    """Active inside its block. The main thread calls `at`, many times per second."""

    def __init__(self, deadline_seconds: float):
        self._deadline = deadline_seconds
        # The current activity, its start, and its limit in seconds.
        self._doing: tuple[str, float, float] = ("start", time.monotonic(), deadline_seconds)
        self._armed_at = 0.0
        self._is_over = threading.Event()

    def __enter__(self) -> Self:
        self.at("start")
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        faulthandler.cancel_dump_traceback_later()

    @property
    def doing(self) -> str:
        return self._doing[0]

    def at(self, what: str, *, patience: float = 1.0) -> None:
        """Reports progress: the process now does `what`, for at most `patience` deadlines."""
        now, limit = time.monotonic(), patience * self._deadline
        is_longer = limit != self._doing[2]
        self._doing = (what, now, limit)
        # Arming takes tens of microseconds, too long for every step.
        if is_longer or now - self._armed_at > min(1.0, self._deadline / 10):
            self._armed_at = now
            faulthandler.dump_traceback_later(limit + _BACKSTOP_SECONDS, exit=True, file=_STDERR)

    def _watch(self) -> None:
        while not self._is_over.wait(min(1.0, self._deadline / 10)):
            what, since, limit = self._doing
            if (seconds := time.monotonic() - since) > limit:
                self._end(what, seconds)

    def _end(self, what: str, seconds: float) -> None:
        # The terminal may block.
        faulthandler.dump_traceback_later(_BACKSTOP_SECONDS, exit=True, file=_STDERR)
        rank, ranks = jax.process_index(), jax.process_count()
        say("")  # the current line of the terminal may be incomplete
        say(
            f"bert-jax: process {rank} of {ranks} hangs: no progress for {seconds:.0f} s in "
            f"{what!r}; the stacks of its threads are below"
        )
        say(
            "The state on disk is intact: the same command resumes from the newest checkpoint. If "
            f"the work only takes long, raise deadline_seconds ({self._deadline:g})"
        )
        faulthandler.dump_traceback(all_threads=True, file=_STDERR)
        os._exit(HANG)
