"""A run as a process of its own: what ends it, by memory or by a signal, ends no other run.

Its log goes to a file, which is read while it grows: a child outlives the process that
started it, and must not fail for nobody reading.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_jax.errors import Interrupted
from bert_jax.progress import leave
from bert_jax.runtime.stop import ENDING, Signals, word_of

# Seconds between two looks at a child.
_LOOK = 0.2
# Bytes at the end of a log in which the reason of a failure is looked for.
_TAIL = 8192
KEPT = "the runs that have ended are kept, and the same command goes on"
_COMPILED = "JAX_COMPILATION_CACHE_DIR"


@dataclass(frozen=True)
class Outcome:
    """How a run ended: its exit code as a shell shows it, and the last line of its output."""

    code: int
    reason: str = ""
    # The study was stopped by this signal, or its time was up.
    stopped_by: str = ""


class Children:
    """Runs commands of `bert-jax`, one at a time, and hands on the signals that come meanwhile.

    SIGTERM, SIGHUP and Ctrl-C reach a child, so that it saves; so does a second Ctrl-C, which ends
    the child at once.
    """

    def __init__(self, *, compiled: Path, until: float | None = None):
        """`compiled` keeps the programs that runs compile, unless the environment says otherwise;
        `until` is when the time is up, on the monotonic clock.
        """
        self._environment = os.environ | {_COMPILED: os.environ.get(_COMPILED, str(compiled))}
        self._until = until
        self._child: subprocess.Popen | None = None
        # The first signal that came.
        self.heard: int | None = None
        self._signals = Signals(ENDING, self._hear)

    def __enter__(self) -> "Children":
        self._signals.__enter__()
        return self

    def __exit__(self, *_: Any) -> None:
        self._signals.__exit__()

    def stopped_by(self) -> str:
        """Returns the name of the first signal that came, "budget" if the time is up, or ""."""
        if self.heard is not None:
            return signal.Signals(self.heard).name
        is_time_up = self._until is not None and time.monotonic() >= self._until
        return "budget" if is_time_up else ""

    def _hear(self, number: int) -> None:
        is_first, self.heard = self.heard is None, self.heard or number
        self._tell(number)
        if number == signal.SIGINT and not is_first and self._child is None:
            leave(Interrupted.exit_code)

    def _tell(self, number: int) -> None:
        child = self._child
        if child is not None and child.poll() is None:
            child.send_signal(number)

    def _hand_on(self, read: Any, say: Callable[[str], None]) -> None:
        for line in read.read().decode(errors="replace").splitlines():
            if self.heard is not None and line.startswith("Traceback"):
                return  # of the interruption; the log has it
            if line.strip():
                say(line.strip())

    def run(
        self,
        arguments: Sequence[str],
        *,
        log: Path,
        lock: int | None = None,
        say: Callable[[str], None] = lambda line: None,
    ) -> Outcome:
        """Runs `bert-jax ARGUMENTS` to its end.

        `lock` is the descriptor of a lock that the child keeps as long as it lives. What it says
        goes to `log`, and line by line to `say` as it comes; its results to a file beside it.
        """
        log.parent.mkdir(parents=True, exist_ok=True)
        results = log.with_suffix(".out")
        with results.open("ab") as out, log.open("ab") as written, log.open("rb") as read:
            start = read.seek(0, os.SEEK_END)
            self._child = subprocess.Popen(
                [sys.executable, "-m", "bert_jax", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=written,
                env=self._environment,
                # Away from the terminal's Ctrl-C, which would reach it a second time.
                process_group=0,
                pass_fds=() if lock is None else (lock,),
            )
            if self.heard is not None:  # it came while the child began
                self._tell(self.heard)
            is_interrupted = False
            while self._child.poll() is None:
                if not is_interrupted and self.stopped_by() == "budget":
                    is_interrupted = True
                    self._tell(signal.SIGTERM)
                time.sleep(_LOOK)
                self._hand_on(read, say)
            code = self._child.wait()
            self._child = None
            self._hand_on(read, say)
            read.seek(max(start, read.seek(0, os.SEEK_END) - _TAIL))
            end = read.read()
        code = code if code >= 0 else 128 - code
        reason = _last_line(end)
        if self.heard is not None:
            # A child whose own code had not begun yet is ended by the interpreter.
            if b": error: " not in end:
                reason = word_of(self.heard)
            return Outcome(code, reason, signal.Signals(self.heard).name)
        return Outcome(code, reason, "budget" if is_interrupted else "")


def _last_line(output: bytes) -> str:
    """Returns the error of a log, or its last line."""
    lines = [line.strip() for line in output.decode(errors="replace").splitlines() if line.strip()]
    errors = [line.partition(": error: ")[2] for line in lines if ": error: " in line]
    return (errors or lines or [""])[-1]
