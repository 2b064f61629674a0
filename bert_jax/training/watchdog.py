"""Ends a process that hangs, with the stack and the number of the guilty one.

JAX notices a peer that died, never one that sleeps: it keeps its heartbeat from C++. So the loop
says what it is doing (`watchdog.at("step 12")`), and a thread that sees no word of it for
`deadline_seconds` prints every stack and ends the process with 200, which a supervisor restarts.
With several processes each tells the others what it is at, so that those who only wait name the one
they wait for. If nothing of Python runs any more (a held GIL), faulthandler's C thread does it,
five seconds later.
"""

import faulthandler
import os
import sys
import threading
import time
import types
from typing import Any, Self

import jax

from bert_jax.progress import say
from bert_jax.training import distributed

HANG = 200
_BACKSTOP_SECONDS, _ASKING_SECONDS = 5.0, 2.0


class Watchdog:
    """Armed from entering to leaving. `at` is called by the main thread, many times a second."""

    def __init__(self, deadline_seconds: float):
        self._deadline = deadline_seconds
        # What is being done, since when, and for how long it may be (None: not watched).
        self._doing: tuple[str, float, float] = ("start", time.monotonic(), deadline_seconds)
        self._armed_at = 0.0
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

    def at(self, what: str, *, patience: float = 1.0) -> None:
        """Progress: from now on `what`, for `patience` x the deadline at most."""
        now, limit = time.monotonic(), patience * self._deadline
        is_longer = limit != self._doing[2]
        self._doing = (what, now, limit)
        # Arming costs tens of microseconds: not at every step.
        if is_longer or now - self._armed_at > min(1.0, self._deadline / 10):
            self._armed_at = now
            faulthandler.dump_traceback_later(limit + _BACKSTOP_SECONDS, exit=True)

    def _watch(self) -> None:
        pause = min(1.0, self._deadline / 10)
        while not self._is_over.wait(pause):
            what, since, limit = self._doing
            if time.monotonic() - since > limit:
                self._end(what, time.monotonic() - since)

    def _tell(self) -> None:
        """In a thread of its own: who it is told to may hang, too."""
        while not self._is_over.wait(1.0):
            what, since, _ = self._doing
            distributed.tell(f"{what}|{time.time() - time.monotonic() + since:.3f}")

    def _end(self, what: str, seconds: float) -> None:
        frame = sys._current_frames().get(self._main or 0)
        say(
            f"\nbert-jax: process {self._rank} of {self._ranks} hangs: no progress for "
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
        faulthandler.dump_traceback(all_threads=True)
        os._exit(HANG)

    def _name_others(self) -> None:
        for rank, told in sorted(distributed.told().items()):
            doing, _, since = told.rpartition("|")
            sys.stderr.write(
                f"  process {rank}: {doing!r} for {time.time() - float(since):.0f} s\n"
            )
        sys.stderr.write("  to blame is who waits for none of the others, or has fallen silent\n")
        sys.stderr.flush()


def _place(frame: types.FrameType | None) -> str:
    """The innermost line of our own package, and the one that it waits in."""
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
