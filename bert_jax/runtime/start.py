"""Begins a command that trains: signals are heard from the first moment, and processes meet."""

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self

from bert_jax import progress
from bert_jax.errors import Interrupted, Preempted
from bert_jax.runtime import host_allocator
from bert_jax.runtime.signals import ENDING, Signals, error_of, word_of

# True before the first step of a run, and between two runs.
_NOTHING = "no step is under way, so nothing is lost; the same command goes on"
# A process that has received a signal waits for so long to meet the others, and passes it on.
_MEETING_SECONDS = 20.0


class Start:
    """Armed from entering to leaving, before anything heavy is imported.

    Until there is something to save, a signal only ends the process. A process that has others
    first meets them, so that all of them end; once they have met, jax tells them, and all of them
    end after a step.
    """

    def __init__(self, name: str, **found: Any):
        """`name` is what messages call the command, `found` how the processes find each other: the
        fields of distributed.Connection.
        """
        self._name, self._found = name, found
        self._has_others = found.get("detect") or (found.get("num_processes") or 1) > 1
        # The signal that has come.
        self._received: int | None = None
        self._is_connected = self._have_met = False
        self._signals = Signals(ENDING, self._leave)

    def __enter__(self) -> Self:
        self._signals.__enter__()
        return self

    def connect(self) -> None:
        """Waits for the other processes, if there are any.

        Raises UsageError if they cannot be found, Preempted in all if one got a signal meanwhile.
        """

        if host_allocator.computes_on_cpu():
            host_allocator.keep_freed_memory()
        from bert_jax.runtime import distributed

        connection = distributed.Connection(**self._found).validate()
        # In a thread: a signal is not heard by one who waits for the others in C++.
        with ThreadPoolExecutor(max_workers=1) as waiting:
            waiting.submit(connection.connect).result()
        self._is_connected = True
        if distributed.any_preempted(self._received is not None):
            kind = Preempted if self._received is None else error_of(self._received)
            raise kind(f"received a signal to stop; {_NOTHING}")
        self._have_met = True
        if self._received is not None:  # too late to be asked about
            self._pass_on()
        if not distributed.is_main():
            progress.silence()

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self._signals.__exit__()
        if not self._is_connected:
            return
        from bert_jax.runtime import distributed

        # The coordination service of jax is a thread of process 0. Where that process leaves first,
        # jaxlib aborts each other one that still writes its error: with 134 in place of its code
        # ("Terminating process because the JAX distributed service detected fatal errors").
        # After any other error the others may be gone: who waits for them waits in vain.
        is_agreed = error is None or isinstance(error, Preempted)
        if is_agreed or (getattr(error, "is_everywhere", False) and distributed.all_end()):
            distributed.disconnect()

    def _leave(self, number: int) -> None:
        is_again, code = self._received is not None, error_of(number).exit_code
        if self._has_others and not (is_again and code == Interrupted.exit_code):
            if is_again:
                return
            self._received = number
            if self._have_met:
                what = "all processes save and end after their next step"
                progress.say(f"{self._name}: {word_of(number)}; {what}")
                self._pass_on()
                return
            progress.say(f"{self._name}: {word_of(number)}; exits once all processes have met")
            last = threading.Timer(_MEETING_SECONDS, self._leave_unmet, (code,))
            last.daemon = True
            last.start()
            return
        # Not sys.exit: an import that is under way may catch what that raises.
        progress.say(f"{self._name}: {word_of(number)}; {_NOTHING}")
        progress.leave(code)

    def _leave_unmet(self, code: int) -> None:
        if not self._have_met:
            os._exit(code)

    def _pass_on(self) -> None:
        """Does as Preemption does, which is not there before the run and between two of them."""
        os.kill(os.getpid(), signal.SIGTERM)
