"""Signals, heard at once: by a thread, whatever the main thread is busy with.

Python runs a handler of its own between two instructions of the main thread, which may be seconds
away while that computes, compiles or reads; the number of a signal reaches a socket at once.
"""

import signal
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any, Self


class Signals:
    """Calls a function, in a thread, with the number of each signal that comes meanwhile.

    Does nothing outside of the main thread, where no handler can be set. An interrupt that the
    process was begun to ignore, as a shell begins those in its background, stays ignored.
    """

    def __init__(self, numbers: Sequence[int], heard: Callable[[int], None]):
        self._numbers, self._heard = numbers, heard
        self._before: dict[int, Any] = {}
        self._writer: socket.socket | None = None

    def __enter__(self) -> Self:
        if threading.current_thread() is not threading.main_thread():
            return self
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        self._before_fd = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        self._before = {
            number: signal.signal(number, _ignore)
            for number in self._numbers
            if number != signal.SIGINT or signal.getsignal(number) != signal.SIG_IGN
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
