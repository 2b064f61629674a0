"""Begins a command that trains: SIGTERM is heard from the first moment, and processes meet."""

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Self

from bert_jax import progress
from bert_jax.errors import Preempted
from bert_jax.runtime.signals import Signals

_NOTHING = "preempted before the first step; nothing to save"
# A process that was told to go waits for so long until it has met the others, to tell them.
_MEETING_SECONDS = 20.0


class Start:
    """Armed from entering to leaving, before anything heavy is imported.

    Until there is something to save, SIGTERM only ends the process, with exit code 42. A process
    that has others first meets them, so that all of them end.
    """

    def __init__(
        self,
        name: str,
        *,
        detect: bool = False,
        coordinator: str | None = None,
        num_processes: int | None = None,
        process_id: int | None = None,
    ):
        """`name` is what messages call the command; the rest is how the processes find each other
        (distributed.Connection)."""
        self._name = name
        self._found = {
            "detect": detect,
            "coordinator": coordinator,
            "num_processes": num_processes,
            "process_id": process_id,
        }
        self._has_others = detect or (num_processes or 1) > 1
        self._told = threading.Event()
        self._is_connected = False
        self._signals = Signals((signal.SIGTERM,), self._leave)

    def __enter__(self) -> Self:
        self._signals.__enter__()
        return self

    def connect(self) -> None:
        """Waits for the other processes, if there are any.

        Raises UsageError if they cannot be found, Preempted in all if one was told to go meanwhile.
        """
        from bert_jax.runtime import host_memory

        if host_memory.computes_on_cpu():
            host_memory.keep_freed_memory()
        from bert_jax.runtime import distributed

        connection = distributed.Connection(**self._found).validate()
        # In a thread: a signal is not heard by one who waits for the others in C++.
        with ThreadPoolExecutor(max_workers=1) as waiting:
            waiting.submit(connection.connect).result()
        self._is_connected = True
        if distributed.any_preempted(self._told.is_set()):
            raise Preempted(_NOTHING)
        if not distributed.is_main():
            progress.silence()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._signals.__exit__()
        # After any other error the others may be gone: who waits for them waits in vain.
        if self._is_connected and (kind is None or issubclass(kind, Preempted)):
            from bert_jax.runtime import distributed

            distributed.disconnect()

    def _leave(self, number: int) -> None:
        del number
        if self._has_others and not self._told.is_set():
            self._told.set()
            progress.say(f"{self._name}: preempted; leaves when all processes have met")
            last = threading.Timer(_MEETING_SECONDS, os._exit, (Preempted.exit_code,))
            last.daemon = True
            last.start()
            return
        # Not sys.exit: an import that is under way may catch what that raises.
        progress.say(f"{self._name}: {_NOTHING}")
        os._exit(Preempted.exit_code)
