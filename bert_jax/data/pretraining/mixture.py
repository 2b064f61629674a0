"""Combines the rows of the sources into the batches of one phase.

A batch contains the rows of the first source, then those from the second source, and so on
(dealing.py). Planning one row of each of 200 sources would take longer than reading the batch, so
the rows of several steps are planned together and cached.
"""

from collections.abc import Sequence

import numpy as np

from bert_jax.config import PhaseConfig
from bert_jax.data.pretraining.dealing import Dealing
from bert_jax.data.pretraining.epochs import EpochCache
from bert_jax.data.pretraining.spans import ranges
from bert_jax.data.pretraining.stream import Stream, Taken

# Rows that are planned at once per source, on average.
_TOGETHER = 512
# Several threads may be at several steps, and each asks for several ranges of rows.
_KEPT = 8
# The distance between the example numbers of two sources, which keeps them distinct.
_APART = 1 << 40


class Mixture:
    """The planned rows of a batch, as a function of its step. Safe to use from several threads."""

    def __init__(self, streams: Sequence[Stream], *, dealing: Dealing, phase: PhaseConfig):
        self.streams, self._phase, self._dealing = streams, phase, dealing
        self._runs = EpochCache(self._plan, keep=_KEPT)

    def rows_before(self, step: int) -> np.ndarray:
        """Returns how many rows each source has in the phase before a step of it: int64 `[K]`."""
        return self._dealing.before(np.array([step]))[0]

    def take(self, step: int, rows: range) -> Taken:
        """Returns the given rows of the batch of a step, which counts within the phase."""
        steps = -(-_TOGETHER * len(self.streams) // len(rows))
        run, place = divmod(step, steps)
        taken, order = self._runs.get((run * steps, (run + 1) * steps, rows.start, rows.stop))
        return taken.rows(order[place * len(rows) : (place + 1) * len(rows)])

    def _plan(self, key: tuple[int, int, int, int]) -> tuple[Taken, np.ndarray]:
        """Returns the rows `[start, stop)` of the batches of some steps, grouped by source, and the
        indices among them of the rows of the first batch, then of the second, and so on.
        """
        first, end, start, stop = key
        steps = np.arange(first, min(end, self._phase.steps))
        before = self._dealing.before(np.append(steps, steps[-1] + 1))
        ends = np.cumsum(np.diff(before, axis=0), axis=1)  # of each source's rows in a batch
        begins = ends - np.diff(before, axis=0)
        low, high = (np.clip(edge, begins, ends) for edge in (start, stop))
        places = (steps[:, None] - first) * (stop - start) + low - start
        parts, at = [], []
        for source in np.flatnonzero((high > low).any(0)).tolist():
            stream, count = self.streams[source], (high - low)[:, source]
            numbers = ranges((before[:-1] + low - begins)[:, source], count)
            taken = stream.take(numbers)
            parts.append(taken._replace(numbers=taken.numbers + source * _APART))
            at.append(ranges(places[:, source], count))
            stream.plan_ahead(numbers, int(self.rows_before(self._phase.steps)[source]) - 1)
        order = np.empty(steps.size * (stop - start), np.int64)
        order[np.concatenate(at)] = np.arange(order.size)
        return Taken.join(parts), order
