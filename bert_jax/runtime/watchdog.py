"""Ends a process that hangs, with the stack and the number of the guilty one.

JAX notices a peer that died, never one that sleeps: it keeps its heartbeat from C++. So the loop
says what it is doing (`watchdog.at("step 12")`), and a thread that sees no word of it for
`deadline_seconds` prints every stack and ends the process with 200, which a supervisor restarts.
With several processes each tells the others what it is at, so that those who only wait name the one
they wait for. If nothing of Python runs any more (a held GIL), faulthandler's C thread does it,
five seconds later. A process that is only slow, because its data are, is named and not ended.
"""

import contextlib
import faulthandler
import math
import os
import statistics
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Self

import jax

from bert_jax.progress import note, say
from bert_jax.runtime import distributed

HANG = 200
# The descriptor: what stands in for sys.stderr, in a notebook or a test, may have none.
_STDERR = 2
_BACKSTOP_SECONDS, _ASKING_SECONDS, _LAST_LINES_SECONDS = 5.0, 2.0, 3.0
# A process is slow if it waited for data half of this time, and three times as long as the others.
_COMPARED_SECONDS = 10.0
# What cannot tell how far it is, such as a compilation, may take this many deadlines.
COMPILE_PATIENCE = 4.0


class Watchdog:
    """Armed from entering to leaving. `at` is called by the main thread, many times a second.

    `on_slow(process, share)` is called once for each process that keeps the others waiting, in
    process 0.
    """

    def __init__(self, deadline_seconds: float):
        self._deadline = deadline_seconds
        self.on_slow: Callable[[int, float], None] | None = None
        self._waited = 0.0
        # What is being done, since when, and for how long it may be (None: not watched).
        self._doing: tuple[str, float, float] = ("start", time.monotonic(), deadline_seconds)
        self._armed_at = 0.0
        self._is_suspended = False
        self._is_over = threading.Event()
        self._main = threading.main_thread().ident
        self._rank, self._ranks = jax.process_index(), jax.process_count()

    def __enter__(self) -> Self:
        self.at("start")
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._thread.start()
        if self._ranks > 1:
            threading.Thread(target=self._tell, name="tell", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        faulthandler.cancel_dump_traceback_later()

    @property
    def doing(self) -> str:
        return self._doing[0]

    def at(self, what: str, *, patience: float = 1.0) -> None:
        """Notes progress: from now on the process does `what`, for `patience` x the deadline at
        most.
        """
        now, limit = time.monotonic(), patience * self._deadline
        is_longer = limit != self._doing[2]
        self._doing = (what, now, limit)
        if self._is_suspended:
            return
        # Arming costs tens of microseconds: not at every step.
        if is_longer or now - self._armed_at > min(1.0, self._deadline / 10):
            self._armed_at = now
            faulthandler.dump_traceback_later(limit + _BACKSTOP_SECONDS, exit=True, file=_STDERR)

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Counts what happens inside as this process's own waiting for data, not for the others."""
        began = time.monotonic()
        try:
            yield
        finally:
            self._waited += time.monotonic() - began

    @contextlib.contextmanager
    def suspended(self) -> Iterator[None]:
        """Watches nothing inside, and gives what is being done its whole time afterwards."""
        self._is_suspended = True
        faulthandler.cancel_dump_traceback_later()
        try:
            yield
        finally:
            what, _, limit = self._doing
            self._doing = (what, time.monotonic(), limit)
            self._armed_at, self._is_suspended = -math.inf, False
            self.at(what, patience=limit / self._deadline)

    def _watch(self) -> None:
        pause = min(1.0, self._deadline / 10)
        while not self._is_over.wait(pause):
            # In this order: the process may be stopped, and go on, between any two of them.
            now, is_suspended = time.monotonic(), self._is_suspended
            what, since, limit = self._doing
            if now - since > limit and not is_suspended:
                self._end(what, now - since)

    def _tell(self) -> None:
        """Publishes what is being done, in a thread of its own: the service that it tells may hang,
        too.
        """
        compared, before, named = time.monotonic(), {}, set[int]()
        while not self._is_over.wait(1.0):
            what, since, _ = self._doing
            distributed.publish_status(
                f"{what}|{time.time() - time.monotonic() + since:.3f}|{self._waited}"
            )
            if self._rank == 0 and time.monotonic() - compared > _COMPARED_SECONDS:
                compared = time.monotonic()
                waited = {rank: report.waited for rank, report in _reports().items()}
                spent = {rank: waited[rank] - before[rank] for rank in waited if rank in before}
                before = waited
                self._name_slow(spent, named)

    def _name_slow(self, spent: dict[int, float], named: set[int]) -> None:
        if len(spent) < max(2, self._ranks):  # not all have begun, or there is nobody to compare
            return
        for rank, seconds in spent.items():
            others = statistics.median(s for r, s in spent.items() if r != rank)
            is_slow = seconds > _COMPARED_SECONDS / 2 and seconds > 3 * others
            if is_slow and rank not in named:
                named.add(rank)
                note(
                    f"process {rank} keeps the others waiting: of the last "
                    f"{_COMPARED_SECONDS:.0f} s it waited {seconds:.0f} s for its data"
                )
                if self.on_slow is not None:
                    self.on_slow(rank, seconds / _COMPARED_SECONDS)

    def _end(self, what: str, seconds: float) -> None:
        frame = sys._current_frames().get(self._main or 0)
        say("")  # what was at work may have left half a line
        say(
            f"bert-jax: process {self._rank} of {self._ranks} hangs: no progress for "
            f"{seconds:.0f} s in {what!r}, at {_place(frame)}"
        )
        if self._ranks > 1:
            asking = threading.Thread(target=self._name_others, daemon=True)
            asking.start()
            asking.join(_ASKING_SECONDS)
        say(
            "Its state on disk is intact: the same command goes on from the newest checkpoint. If "
            f"the work only takes long, raise deadline_seconds ({self._deadline:g})"
        )
        faulthandler.dump_traceback(all_threads=True, file=_STDERR)
        if self._rank == 0 and self._ranks > 1:
            # Process 0 takes the others with it: let them say first where they are.
            faulthandler.cancel_dump_traceback_later()
            time.sleep(_LAST_LINES_SECONDS)
        os._exit(HANG)

    def _name_others(self) -> None:
        for rank, report in sorted(_reports().items()):
            say(f"  process {rank}: {report.what!r} for {time.time() - report.since:.0f} s")
        say("  the cause is the process that waits for no other, or that reports nothing")


class _Report(NamedTuple):
    what: str
    since: float  # seconds since 1970
    waited: float  # seconds for data, since its start


def _reports() -> dict[int, _Report]:
    found = {}
    for rank, text in distributed.peer_statuses().items():
        what, since, waited = text.rsplit("|", 2)
        found[rank] = _Report(what, float(since), float(waited))
    return found


def _place(frame: types.FrameType | None) -> str:
    """Returns the innermost line of our own package, and the one that it waits in."""
    if frame is None:
        return "an unknown line"
    inner, ours = frame, frame
    walking: Any = frame
    while walking is not None:
        if "bert_jax" in walking.f_code.co_filename:
            ours = walking
            break
        walking = walking.f_back
    where = f"{ours.f_code.co_filename}:{ours.f_lineno} ({ours.f_code.co_name})"
    if inner is not ours:
        where += f", in {inner.f_code.co_filename}:{inner.f_lineno} ({inner.f_code.co_name})"
    return where
