"""Offsets of a whole split, read lazily from the offsets of its shards.

The offsets of 100 billion tokens would take 32 GB in memory. Code that reads a large split reads a
part of it at a time.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np


class Offsets:
    """Ascending int64 offsets of all shards, concatenated: can be indexed, sliced and searched.
    `np.asarray` reads all of them.
    """

    def __init__(self, shards: Sequence[np.ndarray], *, shift: int = 0):
        """`shards` are the offsets of each shard, from 0 to its size; `shift` is added to all."""
        self._shards, self._shift = tuple(shards), shift
        # A shard's last offset is the next shard's first; the very last offset is a separate part.
        self._parts = [*(shard[:-1] for shard in shards), np.zeros(1, np.int64)]
        self._first = np.cumsum([0, *map(len, self._parts)], dtype=np.int64)
        self._base = shift + np.cumsum([0, *(int(shard[-1]) for shard in shards)], dtype=np.int64)

    @classmethod
    def join(cls, parts: Sequence["np.ndarray | Offsets"]) -> "Offsets":
        """Returns the concatenated offsets of several splits."""
        shards = [part._shards if isinstance(part, Offsets) else (part,) for part in parts]
        return cls([shard for each in shards for shard in each])

    def shifted(self, shift: int) -> "Offsets":
        return type(self)(self._shards, shift=self._shift + shift)

    @property
    def size(self) -> int:
        return int(self._first[-1])

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: Any) -> Any:
        """Returns one offset as an integer, or the offsets of a slice with step 1 as an array."""
        if not isinstance(index, slice):
            at = range(self.size)[index]
            return int(self[at : at + 1][0])
        start, stop, step = index.indices(self.size)
        if step != 1:
            raise IndexError(f"consecutive offsets have a step of 1, not {step}")
        if start >= stop:
            return np.empty(0, np.int64)
        first, last = np.searchsorted(self._first, [start, stop - 1], side="right") - 1
        return np.concatenate(
            [
                self._base[number] + self._parts[number][max(start - at, 0) : stop - at]
                for number, at in enumerate(self._first[first : last + 1].tolist(), first)
            ]
        )

    def searchsorted(self, value: int) -> int:
        """Returns the index of the first offset that is at least `value`."""
        number = int(np.searchsorted(self._base, value, side="right")) - 1
        if number < 0:
            return 0
        offsets = self._parts[number]
        # With another type, NumPy would copy all offsets of the part.
        within = np.searchsorted(offsets, offsets.dtype.type(value - self._base[number]))
        return int(self._first[number] + within)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self[:].astype(dtype or np.int64, copy=False)
