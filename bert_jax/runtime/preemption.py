"""Signals as a question that the loop asks between steps."""

import contextlib
import itertools
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Any, Self, TypeVar

import jax
from jax.sharding import Mesh

from bert_jax import progress
from bert_jax.errors import Interrupted, Preempted
from bert_jax.progress import leave, say
from bert_jax.runtime.signals import ENDING, Signals, error_of, stop, word_of

_T = TypeVar("_T")
_POLL_SECONDS = 0.1
# What ends within the first says only that it has ended; what takes longer says so now and then.
_PATIENCE_SECONDS, _SECONDS_BETWEEN_LINES = 0.7, 30.0
# Of the process, over all runs that it makes: jax names the number after the largest that any
# process has asked with, and would never be asked with that by a run that counts anew.
_questions = itertools.count(1)


class Preemption:
    """Ctrl-C, SIGTERM and a closed terminal (SIGHUP).

    Machines that are taken away get a SIGTERM a few tens of seconds before. With several processes
    any one of them may get it; jax's coordination service then names a step to all.
    A second Ctrl-C ends the process at once. Ctrl-Z stops it as ever, but for the watchdog, which
    would take the time until `fg` for that of a hang.
    """

    def __init__(self) -> None:
        self._received = threading.Event()
        self._number = signal.SIGTERM
        self._is_over = threading.Event()
        # What the process is at, what a step takes, and what is saved: as messages have it.
        self.doing: Callable[[], str] = lambda: "the step in hand"
        self.step_seconds: float | None = None
        self.kept: Callable[[], str] = lambda: "nothing is lost, and the same command goes on"
        # The same where the process ends at once, in the middle of a save, say.
        self.kept_by_now: Callable[[], str] = lambda: self.kept()
        # Whether nothing but the running step is lost where the process ends now, if it is the only
        # one: until the first of its steps has ended, which may take minutes.
        self.is_idle = False
        # Entered while the process is stopped.
        self.suspended: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext

    def __enter__(self) -> Self:
        # Where processes are connected, jax has put its own handler for SIGTERM there.
        self._is_ours = not jax.distributed.is_initialized()
        numbers = [n for n in ENDING if self._is_ours or n != signal.SIGTERM]
        self._signals = Signals([*numbers, signal.SIGTSTP], self._receive)
        self._signals.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._signals.__exit__()

    def _receive(self, number: int) -> None:
        """Runs in a thread, at once: what the process is at may take a while yet."""
        if number == signal.SIGTSTP:
            with self.suspended():
                stop()
            return
        if self._received.is_set():
            if number == self._number == signal.SIGINT:
                say(f"interrupted again: ends without saving; {self.kept_by_now()}")
                leave(Interrupted.exit_code)
            if number == signal.SIGINT:  # the first one, after another signal
                self._number = number
            return
        self._number = signal.Signals(number)
        threading.Thread(target=self._tell, daemon=True, name="preemption").start()
        if self._is_ours:
            self._received.set()
        else:
            os.kill(os.getpid(), signal.SIGTERM)  # jax tells the others

    def _tell(self) -> None:
        """Says what is waited for, where that is longer than a moment."""
        began, wait = time.monotonic(), _PATIENCE_SECONDS
        while not self._is_over.wait(wait):
            word = word_of(self._number)
            if self._is_ours and self.is_idle:
                say(f"{word}; {self.kept()}")
                leave(error_of(self._number).exit_code)
            if wait == _PATIENCE_SECONDS:
                step = self.step_seconds
                takes = f" (a step takes {progress.duration(step)})" if step and step > 2 else ""
                what = f"saves and ends after this: {self.doing()}{takes}"
            else:
                what = f"still at {self.doing()}, after {time.monotonic() - began:.0f} s"
            say(f"{word}: {what}; Ctrl-C{_again(self._number)} ends at once, without saving")
            wait = _SECONDS_BETWEEN_LINES

    def preemption_error(self) -> Preempted:
        """Returns the error to end with, once what is to be saved is saved."""
        self.is_idle = False  # it ends by itself
        return error_of(self._number)(f"{word_of(self._number)}; {self.kept()}")

    def requested(self) -> bool:
        """Returns whether to save and stop now.

        Every process asks equally often, at the same places.
        """
        if self._is_ours:
            return self._received.is_set()
        from jax.experimental import multihost_utils

        if multihost_utils.reached_preemption_sync_point(next(_questions)):
            self._received.set()
        return self._received.is_set()

    def wait(self, work: Future[_T]) -> _T:
        """Returns the result of `work`. The only process of a run does not wait for it after a
        signal.

        Raises Preempted then: there is nothing new to save, or the caller saves it. With others,
        it waits: they must be asked, and are asked after a step.
        """
        while True:
            try:
                return work.result(timeout=_POLL_SECONDS)
            except TimeoutError:
                # It may have ended since, or with an error of this kind.
                if work.done():
                    return work.result()
                if self._is_ours and self._received.is_set():
                    raise self.preemption_error() from None

    def cut_short(self, call: Callable[[], _T], *, mesh: Mesh) -> _T | None:
        """Returns what `call` returns on a mesh; None once the only process of a run got a signal.

        It runs in a thread, which is left behind then: what it compiles or computes may be long.
        """
        if not self._is_ours:
            return call()
        done: Future[Any] = Future()

        def run() -> None:
            try:
                with jax.set_mesh(mesh):
                    done.set_result(call())
            except BaseException as error:
                done.set_exception(error)

        threading.Thread(target=run, daemon=True, name="cut short").start()
        try:
            return self.wait(done)
        except Preempted:
            return None


def _again(number: int) -> str:
    return " again" if number == signal.SIGINT else " twice"
