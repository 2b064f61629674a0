"""Offsets of a whole split, read from those of its shards where they are asked for.

The offsets of 100 billion tokens would take 32 GB in memory. What reads a large split looks at a
part of it at a time; of a small one all are read once (`store.py`).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np


class Offsets:
    """Ascending offsets, each shard's behind those of the shards before it: an array of int64 that
    can be indexed, sliced and searched. As an array (`np.asarray`) it is read whole.
    """

    def __init__(self, shards: Sequence[np.ndarray], *, shift: int = 0):
        """`shards` are the offsets of each, from 0 to its size; `shift` is added to all."""
        self._shards, self._shift = tuple(shards), shift
        self._first = np.cumsum([0, *(len(shard) - 1 for shard in shards)], dtype=np.int64)
        self._base = shift + np.cumsum([0, *(int(shard[-1]) for shard in shards)], dtype=np.int64)

    @classmethod
    def join(cls, parts: Sequence["np.ndarray | Offsets"]) -> "Offsets":
        """Returns the offsets of several splits behind each other."""
        shards = [part._shards if isinstance(part, Offsets) else (part,) for part in parts]
        return cls([shard for each in shards for shard in each])

    def shifted(self, shift: int) -> "Offsets":
        return type(self)(self._shards, shift=self._shift + shift)

    @property
    def size(self) -> int:
        return int(self._first[-1]) + 1

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: Any) -> Any:
        """Returns one offset as an integer, or several as an array."""
        if isinstance(index, slice):
            start, stop, step = index.indices(self.size)
            if step != 1:
                return self[np.arange(start, stop, step)]
            return self._between(start, max(start, stop))
        asked = np.asarray(index)
        if asked.dtype == bool:
            (asked,) = np.nonzero(asked)
        if asked.size and (asked.min() < -self.size or asked.max() >= self.size):
            raise IndexError(f"index out of range of {self.size} offsets")
        asked = np.where(asked < 0, asked + self.size, asked)
        # The last offset of all is the base of a shard that is not there.
        shard = np.searchsorted(self._first, asked, side="right") - 1
        found = self._base[shard]
        for number in np.unique(shard[asked < self._first[-1]]).tolist():
            here = shard == number
            within = asked[here] - self._first[number]
            found = np.array(found)
            found[here] += self._shards[number][within].astype(np.int64)
        return int(found) if found.ndim == 0 else found

    def searchsorted(self, value: int) -> int:
        """Returns where the first offset stands that is `value` or more."""
        shard = int(np.searchsorted(self._base, value, side="right")) - 1
        if shard < 0:
            return 0
        if shard == len(self._shards):
            return self.size - (value == self._base[-1])
        offsets = self._shards[shard]
        # Of another type, NumPy would make a copy of all offsets of the shard.
        within = np.searchsorted(offsets, offsets.dtype.type(value - self._base[shard]))
        return int(self._first[shard] + within)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self._between(0, self.size).astype(dtype or np.int64, copy=False)

    def _between(self, start: int, stop: int) -> np.ndarray:
        found, at = np.empty(stop - start, np.int64), start
        while at < stop:
            shard = int(np.searchsorted(self._first, at, side="right")) - 1
            if shard == len(self._shards):
                found[at - start :] = self._base[-1]
                break
            first = int(self._first[shard])
            end = min(stop, int(self._first[shard + 1]))
            part = self._shards[shard][at - first : end - first]
            np.add(part, self._base[shard], out=found[at - start : end - start], casting="unsafe")
            at = end
        return found
