"""Progress: a live bar on a terminal, otherwise a line every 15 s in the log of `bert_jax`."""

import contextlib
import functools
import logging
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Self

from bert_jax.errors import shown

_SECONDS_BETWEEN_LINES = 15.0
# Larger numbers are written with an exponent: the perplexity of a diverged run has 306 digits.
LONG = 1e9


_LOGGER = logging.getLogger("bert_jax")
_is_silent = False
# The bar on the terminal, while there is one.
_live: Any = None


def silence(is_silent: bool = True) -> None:
    """Hides messages and bars of this process: only one of several processes shows them.

    `silence(False)` shows them again.
    """
    global _is_silent
    _is_silent = is_silent


def note(text: str) -> None:
    """Logs one line for the user (level INFO of the logger `bert_jax`)."""
    if not _is_silent:
        _LOGGER.info(text)


@functools.lru_cache(maxsize=256)
def note_once(text: str) -> None:
    """Logs a line once per process, for files that the process reads several times."""
    note(text)


def say(text: str) -> None:
    """Writes a line on stderr, from every process, independently of the log.

    A log on a full disk or a closed terminal must not end the work that the line reports on. Quoted
    text cannot control the terminal or look like another line. The line is lost if a signal handler
    calls this function while the main thread writes (RuntimeError).
    """
    text = shown(text)
    with contextlib.suppress(OSError, RuntimeError):
        if _live is not None:  # above the bar
            _live.console.print(text, markup=False, highlight=False, soft_wrap=True)
            return
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


def stop_bar() -> None:
    """Stops the bar and shows the cursor. May run in any thread."""
    bar = _live
    if bar is not None:
        with contextlib.suppress(Exception):  # the terminal may be gone
            bar.stop()


# The name of a thread for which a process does not wait when it exits.
ABANDONED = "abandoned"


def leave(code: int) -> None:
    """Ends the process at once, from any thread. It never returns."""
    stop_bar()
    os._exit(code)


def duration(seconds: float | None) -> str:
    """Returns a duration as text: "40 s", "12 min", "2 h 05 min", "9 days", "11 years"."""
    if seconds is None:
        return "unknown"
    if seconds < 90:
        return f"{math.ceil(seconds)} s"
    minutes = math.ceil(seconds / 60)
    if minutes < 48 * 60:
        return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02} min"
    days = seconds / 86400
    return f"{days:,.0f} days" if days < 2 * 365 else f"{days / 365.25:,.0f} years"


def number(value: float, form: str = ".1f") -> str:
    """Returns a number in the given format, or as "1e+304" if that would be long."""
    return format(value, form) if abs(value) < LONG else f"{value:.0e}"


@contextlib.contextmanager
def ticking(title: str) -> Iterator[None]:
    """Logs a line every few seconds for work without measurable progress, such as a compilation."""
    began, done = time.monotonic(), threading.Event()

    def tick() -> None:
        wait = 3.0
        while not done.wait(wait):
            note(f"{title}: {time.monotonic() - began:.0f} s")
            wait = _SECONDS_BETWEEN_LINES

    thread = threading.Thread(target=tick, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


class Progress:
    """A progress bar with a text.

    `total` has the unit of `advance`; None means unknown. `describe` returns the text and is called
    only when the text is shown. `hidden` shows nothing: for work inside of work with a bar.
    """

    def __init__(self, title: str, *, total: int | None, done: int = 0, hidden: bool = False):
        self.title, self.total, self.done = shown(title), total, done
        self.describe: Callable[[], str] = str
        self._bar = None
        self._hidden = hidden or _is_silent
        self._next_line = float("inf") if self._hidden else time.monotonic() + 2.0
        # The count and the time of the first `advance` in this process.
        self._first: tuple[int, float] | None = None

    def __enter__(self) -> Self:
        if not self._hidden and sys.stderr.isatty():
            from rich import progress
            from rich.console import Console

            self._bar = progress.Progress(
                progress.TextColumn("{task.description}", markup=False),
                progress.BarColumn(bar_width=24),
                progress.TaskProgressColumn(),
                progress.TextColumn("{task.fields[text]}", markup=False),
                progress.TimeElapsedColumn(),
                progress.TimeRemainingColumn(),
                console=Console(stderr=True),
            )
            self._task = self._bar.add_task(
                self.title, total=self.total, completed=self.done, text=""
            )
            global _live
            with contextlib.suppress(OSError):
                self._bar.start()
            _live = self._bar
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._bar is not None:
            global _live
            _live = None
            with contextlib.suppress(OSError):  # of a terminal that is gone
                self._bar.update(self._task, completed=self.done, text=shown(self.describe()))
                self._bar.stop()
        elif kind is None and not self._hidden:
            self._line()

    def advance(self, amount: int = 1) -> None:
        self.done += amount
        if self._first is None:
            self._first = self.done, time.monotonic()
        if self._bar is not None:
            # Rich redraws ten times per second, which is often enough for the text.
            self._bar.update(self._task, completed=self.done)
            if time.monotonic() >= self._next_line:
                self._next_line = time.monotonic() + 0.2
                self._bar.update(self._task, text=shown(self.describe()))
        # The last line is logged at the end, once.
        elif time.monotonic() >= self._next_line and self.done != self.total:
            self._next_line = time.monotonic() + _SECONDS_BETWEEN_LINES
            self._line()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Excludes the block, such as a compilation, from the rate."""
        entered = time.monotonic()
        try:
            yield
        finally:
            if self._first is not None:
                done, began = self._first
                self._first = done, began + time.monotonic() - entered

    def print(self, text: str) -> None:
        """Prints a line that stays, above the bar."""
        (note if self._bar is None else say)(text)

    def _line(self) -> None:
        share = f" {100 * self.done / self.total:.0f} %" if self.total else ""
        left = self._seconds_left()
        rest = "" if left is None else f", {duration(left)} left"
        note(f"{self.title}:{share} {self.describe()}".rstrip() + rest)

    def _seconds_left(self) -> float | None:
        """Returns the remaining seconds at the mean rate of this process, evaluations included."""
        if not self.total or self._first is None or self.done >= self.total:
            return None
        done, began = self._first
        if self.done <= done:
            return None
        return (self.total - self.done) * (time.monotonic() - began) / (self.done - done)
