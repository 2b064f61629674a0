"""Caches plans in memory."""

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any


class EpochCache:
    """Caches the plans of the `keep` most recently used epochs, or other keys.

    Safe to use from several threads: one thread computes a plan, and the others wait for it.
    """

    def __init__(self, plan: Callable[[Any], Any], *, keep: int = 2):
        """`plan` is called with an epoch, or another key."""
        self._plan, self._keep = plan, keep
        self._lock, self._background = threading.Lock(), threading.Lock()
        self._entries: OrderedDict[Hashable, _Entry] = OrderedDict()

    def get(self, epoch: Hashable) -> Any:
        """Returns the plan. After an exception the next call computes the plan again."""
        return self._entry(epoch)[0].get()

    def begin(self, epoch: Hashable) -> None:
        """Computes a plan that is not in the cache in the background, one plan at a time."""
        entry, is_new = self._entry(epoch)
        if is_new:
            # One thread per plan ends with its work; a pool would keep an idle thread.
            threading.Thread(target=self._compute, args=(entry,), daemon=True).start()

    def _compute(self, entry: "_Entry") -> None:
        with self._background, contextlib.suppress(Exception):  # `get` raises it
            entry.get()

    def _entry(self, epoch: Hashable) -> tuple["_Entry", bool]:
        """Returns the entry of an epoch, and whether this call created it."""
        with self._lock:
            is_new = epoch not in self._entries
            entry = self._entries.setdefault(epoch, _Entry(self._plan, epoch))
            self._entries.move_to_end(epoch)
            if len(self._entries) > self._keep:
                self._entries.popitem(last=False)
            return entry, is_new


class _Entry:
    """A plan that the first caller computes."""

    def __init__(self, plan: Callable[[Any], Any], epoch: Hashable):
        self._plan, self._epoch = plan, epoch
        self._lock = threading.Lock()
        self._computed: list[Any] = []

    def get(self) -> Any:
        with self._lock:
            if not self._computed:
                self._computed.append(self._plan(self._epoch))
            return self._computed[0]
