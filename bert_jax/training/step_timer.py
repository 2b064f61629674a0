"""Measures the time of a step, without evaluation and saving."""

import contextlib
import time
from collections.abc import Iterator


class StepTimer:
    """Seconds a step, over the steps since the last row, without evaluation and saving."""

    def __init__(self):
        self.restart()

    def restart(self) -> None:
        self.steps, self.waited, self._began = 0, 0.0, time.monotonic()

    def seconds_per_step(self) -> float:
        return max(time.monotonic() - self._began, 1e-9) / max(self.steps, 1)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Leaves out of the time what happens inside."""
        entered = time.monotonic()
        try:
            yield
        finally:
            self._began += time.monotonic() - entered

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Counts what happens inside as `waited`, too."""
        entered = time.monotonic()
        try:
            yield
        finally:
            self.waited += time.monotonic() - entered
