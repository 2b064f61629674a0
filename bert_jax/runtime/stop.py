"""Signals that ask a process to end: Ctrl-C, SIGTERM, and SIGHUP from a closed terminal.

A handler sets a flag, which a run checks between steps if it has state to save. With several
processes, JAX's coordination service determines the step at which all of them save. A process
without unsaved state ends at once. Python runs handlers between instructions of the main thread.
"""

import itertools
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Self, TypeVar

from bert_jax import progress
from bert_jax.errors import Interrupted, Preempted
from bert_jax.progress import leave, say
from bert_jax.runtime import host_allocator

_T = TypeVar("_T")
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_WORDS = {signal.SIGTERM: "received SIGTERM", signal.SIGHUP: "the terminal was closed (SIGHUP)"}
_NOTHING = "no step has run yet, so nothing is lost; run the same command again"
_POLL_SECONDS = 0.1
# Seconds for the cleanup of a command, and for an interrupted process to connect to the others.
_CLEANUP_SECONDS, _MEETING_SECONDS = 1.0, 20.0
# Shared by all runs of a process: JAX expects increasing numbers that agree in all processes.
_questions = itertools.count(1)


def word_of(number: int) -> str:
    """Returns the reason for the end of a process, for messages."""
    return _WORDS.get(signal.Signals(number), "interrupted")


def error_of(number: int) -> type[Preempted]:
    """Returns the error, and thereby the exit code, of a process that a signal ends."""
    return Interrupted if number == signal.SIGINT else Preempted


def _leave_after(seconds: float, act: Callable[..., Any], *arguments: Any) -> None:
    timer = threading.Timer(seconds, act, arguments)
    timer.daemon = True
    timer.start()


class Signals:
    """Calls `act` with the number of each signal that arrives inside the block.

    Signals that the process was started to ignore (SIGINT or SIGHUP with nohup or in a shell's
    background) stay ignored. Does nothing outside of the main thread, because only that one can set
    handlers.
    """

    def __init__(self, numbers: Sequence[int], act: Callable[[int], None]):
        self._numbers, self._act, self._before = numbers, act, dict[int, Any]()

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in self._numbers:
                if number == signal.SIGTERM or signal.getsignal(number) != signal.SIG_IGN:
                    self._before[number] = signal.signal(number, lambda n, _: self._act(n))
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}


class Ending(Signals):
    """Ends a command without unsaved state, with one line.

    The main thread is interrupted to clean up; errors of that interruption are not shown. After one
    second, or a second signal, the process ends at once.
    """

    def __init__(self) -> None:
        super().__init__(ENDING, self._hear)
        # The command's name and the state of its output; no line is written until both are known.
        self.name, self.kept = "", ""
        # The exit code, once a signal has come.
        self.code: int | None = None

    def _hear(self, number: int) -> None:
        if self.code is not None:
            leave(self.code)
        self.code = error_of(number).exit_code
        _leave_after(_CLEANUP_SECONDS, leave, self.code)
        progress.stop_bar()
        if self.name:
            say(f"{self.name}: {word_of(number)}; {self.kept}")
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
        raise KeyboardInterrupt


class Start(Signals):
    """Starts a command that trains. Active before the first slow import.

    A signal ends the process. With several processes it first connects to the others; then JAX
    informs them, and all of them end after a step.
    """

    def __init__(self, name: str, **found: Any):
        """`name` is the command, for messages; `found` are the fields of distributed.Connection."""
        super().__init__(ENDING, self._hear)
        self._name, self._found = name, found
        self._has_others = found.get("distributed") or (found.get("num_processes") or 1) > 1
        self._received: int | None = None
        self._is_connected = self._have_met = False

    def connect(self) -> None:
        """Waits for the other processes, if there are any.

        Raises UsageError if they cannot be found, Preempted in all if one got a signal meanwhile.
        """
        if host_allocator.computes_on_cpu():
            host_allocator.keep_freed_memory()
        from bert_jax.runtime import distributed

        connection = distributed.Connection(**self._found).validate()
        # In a thread, because no handler runs while the main thread waits in C++.
        with ThreadPoolExecutor(max_workers=1) as waiting:
            waiting.submit(connection.connect).result()
        self._is_connected = True
        if distributed.any_preempted(self._received is not None):
            kind = Preempted if self._received is None else error_of(self._received)
            raise kind(f"received a signal to stop; {_NOTHING}")
        self._have_met = True
        if self._received is not None:  # it arrived too late for `any_preempted`
            os.kill(os.getpid(), signal.SIGTERM)
        if not distributed.is_main():
            progress.silence()

    def __exit__(self, *raised: object) -> None:
        super().__exit__()
        if not self._is_connected:
            return
        from bert_jax.runtime import distributed

        # The coordination service of JAX is a thread of process 0. If process 0 exits first, jaxlib
        # aborts the others with 134 while they still write their errors ("Terminating process
        # because the JAX distributed service detected fatal errors"). After an error that only some
        # processes raise, the others may be gone, so that waiting would be useless.
        _, error, _ = raised
        is_agreed = error is None or isinstance(error, Preempted)
        if is_agreed or (getattr(error, "is_everywhere", False) and distributed.all_end()):
            distributed.disconnect()

    def _hear(self, number: int) -> None:
        is_again, code = self._received is not None, error_of(number).exit_code
        if not self._has_others or (is_again and number == signal.SIGINT):
            say(f"{self._name}: {word_of(number)}; {_NOTHING}")
            leave(code)  # not an exception, which an import in progress may catch
        elif not is_again:
            self._received = number
            if self._have_met:
                what = "all processes save and end after their next step"
                os.kill(os.getpid(), signal.SIGTERM)  # JAX informs the others
            else:
                what = "exits once all processes are connected"
                _leave_after(_MEETING_SECONDS, lambda: self._have_met or os._exit(code))
            say(f"{self._name}: {word_of(number)}; {what}")


class Preemption(Signals):
    """The signals of a run. A second Ctrl-C ends the process at once.

    A spot machine gets SIGTERM about 30 seconds before it is stopped. With several processes, any
    of them may get it.
    """

    def __init__(self) -> None:
        import jax

        # If processes are connected, JAX handles SIGTERM.
        self._is_alone = not jax.distributed.is_initialized()
        numbers = ENDING if self._is_alone else (signal.SIGINT, signal.SIGHUP)
        super().__init__(numbers, self._hear)
        # The current activity, and a clause about the saved step, for messages.
        self.doing: Callable[[], str] = lambda: "the current step"
        self.kept: Callable[[], str] = lambda: "nothing is lost; run the same command again"
        # Whether the process may end at once, because there is no new step to save.
        self.is_idle = False
        self._number: int | None = None
        self._is_received = False

    def _hear(self, number: int) -> None:
        is_first, before = self._number is None, self._number
        if is_first or number == signal.SIGINT:
            self._number = number
        if not is_first:
            if number == before == signal.SIGINT:
                say(f"interrupted again: ending without saving; {self.kept()}")
                leave(Interrupted.exit_code)
            return
        if not self._is_alone:
            os.kill(os.getpid(), signal.SIGTERM)  # JAX informs the others
        elif self.is_idle:
            say(f"{word_of(number)}; {self.kept()}")
            leave(error_of(number).exit_code)
        self._is_received = self._is_alone
        again = "again" if number == signal.SIGINT else "twice"
        say(
            f"{word_of(number)}: saving and ending after {self.doing()}; Ctrl-C {again} ends at "
            "once, without saving"
        )

    def requested(self) -> bool:
        """Returns whether to save and stop now. All processes must call it equally often, at the
        same points.
        """
        if not self._is_alone:
            from jax.experimental import multihost_utils

            self._is_received |= multihost_utils.reached_preemption_sync_point(next(_questions))
        return self._is_received

    def preemption_error(self) -> Preempted:
        """Returns the error that ends the run, after the state is saved."""
        self.is_idle = False  # the process ends by itself
        number = signal.SIGTERM if self._number is None else self._number
        return error_of(number)(f"{word_of(number)}; {self.kept()}")

    def wait(self, work: Future[_T]) -> _T:
        """Returns the result of `work`. In a single process, raises Preempted if a signal arrives
        first. Otherwise it waits: signals are handled after a step, in all processes.
        """
        while True:
            try:
                return work.result(timeout=_POLL_SECONDS)
            except TimeoutError:
                # The work may have ended since, or have failed with a TimeoutError.
                if work.done():
                    return work.result()
                if self._is_received and self._is_alone:
                    raise self.preemption_error() from None
