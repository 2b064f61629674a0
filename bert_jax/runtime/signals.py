"""Signals, heard at once: by a thread, whatever the main thread is busy with.

Python runs a handler of its own between two instructions of the main thread, which may be seconds
away while that computes, compiles or reads; the number of a signal reaches a socket at once.
"""

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Self

from bert_jax.errors import Interrupted, Preempted
from bert_jax.progress import leave, say, stop_bar

# The signals that ask a process to end: Ctrl-C, a machine or a scheduler, a terminal that closes.
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# A process that was begun to ignore them goes on doing so: a shell's background, nohup.
_MAY_BE_IGNORED = (signal.SIGINT, signal.SIGHUP, signal.SIGTSTP)
_WORDS = {signal.SIGTERM: "received SIGTERM", signal.SIGHUP: "the terminal was closed (SIGHUP)"}
# Another thread may be the one that takes the signal to stop, a moment later.
_STOPPING_SECONDS = 0.1
# So long may a command clean up after itself.
_CLEANING_SECONDS = 1.0


def word_of(number: int) -> str:
    """Returns what to call the reason for which a process ends."""
    return _WORDS.get(signal.Signals(number), "interrupted")


def error_of(number: int) -> type[Preempted]:
    """Returns the error, and with it the exit code, of a process that such a signal ends."""
    return Interrupted if number == signal.SIGINT else Preempted


def stop() -> None:
    """Stops the process, as Ctrl-Z does where nothing hears it; returns when it goes on."""
    os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(_STOPPING_SECONDS)


class Signals:
    """Calls a function, in a thread, with the number of each signal that comes meanwhile.

    Does nothing outside of the main thread, where no handler can be set.
    """

    def __init__(
        self,
        numbers: Sequence[int],
        heard: Callable[[int], None],
        *,
        handler: Callable[[int, Any], None] | None = None,
    ):
        """`handler` runs in the main thread, when that comes to it."""
        self._numbers, self._heard = numbers, heard
        self._handler = handler or _ignore
        self._before: dict[int, Any] = {}
        self._writer: socket.socket | None = None

    def __enter__(self) -> Self:
        if threading.current_thread() is not threading.main_thread():
            return self
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        self._before_fd = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        self._before = {
            number: signal.signal(number, self._handler)
            for number in self._numbers
            if number not in _MAY_BE_IGNORED or signal.getsignal(number) != signal.SIG_IGN
        }
        threading.Thread(target=self._listen, daemon=True, name="signals").start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._writer is None:
            return
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._before_fd)
        # The thread reads the end of the stream, and ends.
        self._writer.close()
        self._before, self._writer = {}, None

    def _listen(self) -> None:
        with self._reader:
            while number := self._reader.recv(1):
                if number[0] in self._numbers:
                    self._heard(number[0])


def _ignore(*_: object) -> None:
    """Does nothing: without a handler of Python's, nothing would reach the socket."""


class Ending:
    """Ends a command that has nothing to save, with one line, wherever in it a signal comes.

    The main thread is interrupted, so that it removes what it has begun; what it says meanwhile is
    about that interruption and goes nowhere. After a second, or a second signal, the process ends
    as it is.
    """

    def __init__(self) -> None:
        # What the command is called, and what it leaves; before that is known, nothing is written.
        self.name, self.kept = "", ""
        # The code to end with, once a signal has come.
        self.code: int | None = None
        self._is_complete = threading.Event()
        self._signals = Signals(ENDING, self._hear, handler=self._interrupt)

    def __enter__(self) -> Self:
        self._signals.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._signals.__exit__()

    def _hear(self, number: int) -> None:
        if self.code is not None:
            leave(self.code)
        self.code = error_of(number).exit_code
        last = threading.Timer(_CLEANING_SECONDS, leave, (self.code,))
        last.daemon = True
        last.start()
        stop_bar()
        if self.name:
            say(f"{self.name}: {word_of(number)}; {self.kept}")
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
        self._is_complete.set()

    def _interrupt(self, *_: object) -> None:
        self._is_complete.wait(_CLEANING_SECONDS)  # the thread may come later than this
        raise KeyboardInterrupt
