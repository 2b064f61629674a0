"""Epochs of a phase: the size of the first epoch, by which examples are numbered, and the plans of
the epochs used last.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Any, NamedTuple


class FirstEpoch(NamedTuple):
    """The size of a phase's epoch 0, by which the examples of all its epochs are numbered."""

    examples: int
    rows: int  # as many, where they are not packed
    tokens: int  # of all examples; 0 where rows are not packed


class EpochCache:
    """The plans of the two epochs used last, or of more. A plan that several threads ask for is
    computed by one of them.
    """

    def __init__(self, plan: Callable[[Any], Any], *, keep: int = 2):
        """`plan` is called with an epoch, or another key."""
        self._plan, self._keep = plan, keep
        self._lock = threading.Lock()
        self._futures: OrderedDict[Hashable, Future[Any]] = OrderedDict()
        # Of those that are to be computed in the background, what nobody has begun.
        self._waiting: dict[Hashable, Future[Any]] = {}
        self._is_working = False

    def get(self, epoch: Hashable) -> Any:
        future, is_new = self._entry(epoch)
        with self._lock:
            is_new |= self._waiting.pop(epoch, None) is not None
        if is_new:
            self._fill(epoch, future)
        return future.result()

    def begin(self, epoch: Hashable) -> None:
        """Computes in the background what is not there and not under way, one after the other."""
        future, is_new = self._entry(epoch)
        if not is_new:
            return
        with self._lock:
            self._waiting[epoch] = future
            if self._is_working:
                return
            self._is_working = True
        threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._is_working = False
                    return
                epoch = next(iter(self._waiting))
                future = self._waiting.pop(epoch)
            self._fill(epoch, future)

    def _entry(self, epoch: Hashable) -> tuple[Future[Any], bool]:
        with self._lock:
            is_new = epoch not in self._futures
            future = self._futures.setdefault(epoch, Future())
            self._futures.move_to_end(epoch)
            if len(self._futures) > self._keep:
                self._futures.popitem(last=False)
            return future, is_new

    def _fill(self, epoch: Hashable, future: Future[Any]) -> None:
        try:
            future.set_result(self._plan(epoch))
        except BaseException as error:
            with self._lock:
                self._futures.pop(epoch, None)  # whoever asks next tries again
            future.set_exception(error)
