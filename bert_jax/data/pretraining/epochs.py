"""Epochs of a phase: which one a number lies in, and the plans of the two used last."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import numpy as np


def by_epoch(numbers: np.ndarray, size: int) -> Iterator[tuple[int, np.ndarray]]:
    """Yields each epoch, of `size` numbers, and the places within it of those that lie in it."""
    epochs, offsets = np.divmod(numbers, size)
    for epoch in range(int(epochs[0]), int(epochs[-1]) + 1):
        yield epoch, offsets[epochs == epoch]


class EpochCache:
    """The plans of the two epochs used last. A plan that several threads ask for is computed by one
    of them.
    """

    def __init__(self, plan: Callable[[int], Any]):
        self._plan = plan
        self._lock = threading.Lock()
        self._futures: OrderedDict[int, Future[Any]] = OrderedDict()
        self._first_size: int | None = None

    def first_size(self) -> int:
        """Returns the size of epoch 0's plan, remembered after the plan has gone."""
        if self._first_size is None:
            self._first_size = len(self.get(0))
        return self._first_size

    def get(self, epoch: int) -> Any:
        future, is_new = self._entry(epoch)
        if is_new:
            self._fill(epoch, future)
        return future.result()

    def begin(self, epoch: int) -> None:
        """Computes in the background what is not there and not under way."""
        future, is_new = self._entry(epoch)
        if is_new:
            threading.Thread(target=self._fill, args=(epoch, future), daemon=True).start()

    def _entry(self, epoch: int) -> tuple[Future[Any], bool]:
        with self._lock:
            is_new = epoch not in self._futures
            future = self._futures.setdefault(epoch, Future())
            self._futures.move_to_end(epoch)
            if len(self._futures) > 2:
                self._futures.popitem(last=False)
            return future, is_new

    def _fill(self, epoch: int, future: Future[Any]) -> None:
        try:
            future.set_result(self._plan(epoch))
        except BaseException as error:
            with self._lock:
                self._futures.pop(epoch, None)  # whoever asks next tries again
            future.set_exception(error)
