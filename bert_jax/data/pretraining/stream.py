"""The rows of one source in one phase: its epochs, and which planned row a number means.

Rows come from *units*, each of which is planned alone. A unit is an epoch, and row n lies in unit
n // E, where E is the size of the first one. The row's place there goes through the unit's own
permutation to a row of its plan.

A source of more than a block (pieces.py) has smaller units. An epoch takes the source's pieces in
an order of its own, a block of them at a time. The rows of a step are dealt to *lanes*, at most 64,
as many as divide them, and a unit is what a lane has of a block: some of its pieces. So a host
plans the units of the lanes of its rows alone, and any number of hosts has the same batches. E is
then the mean of some units. Of a larger unit a few rows are left out, a smaller one begins again.

Where rows are packed (`data.packing`), examples are numbered and planned in the same way. A unit
has a table of packed rows, each of which names some of its E examples, and a row of a unit goes in
the same way through a permutation of these.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np

from bert_jax.config import DataConfig, PhaseConfig
from bert_jax.data import counter_rng
from bert_jax.data.corpus.pieces import Blocks, Pieces
from bert_jax.data.corpus.store import Split
from bert_jax.data.pretraining import packing
from bert_jax.data.pretraining.epochs import EpochCache, FirstEpoch
from bert_jax.data.pretraining.spans import ranges
from bert_jax.registry import ROWS

# An epoch's plan is begun this far before the epoch itself. A unit of an epoch is small, and is
# begun at once.
_PLAN_AHEAD = 0.8
# The share of a block whose units have E examples on average.
_SAMPLE = 1 / 4


class Key:
    """The purpose of a key, its first counter after the seed: no two uses share a stream."""

    PLAN, SHUFFLE, MASK, EVALUATION, PACKED_ROWS, SOURCE, PIECES = range(7)


class Taken(NamedTuple):
    """Rows that are planned and not read yet."""

    plan: Any  # of their examples
    numbers: np.ndarray  # int64, of each example: decides its masks
    # How many examples each row has; None where each has one.
    counts: np.ndarray | None

    def rows(self, index: np.ndarray) -> "Taken":
        """Returns some of the rows."""
        examples, counts = index, None
        if self.counts is not None:
            counts = self.counts[index]
            examples = ranges((np.cumsum(self.counts) - self.counts)[index], counts)
        return type(self)(self.plan.take(examples), self.numbers[examples], counts)

    @classmethod
    def join(cls, parts: Sequence[Self]) -> "Taken":
        plan = type(parts[0].plan).join([part.plan for part in parts])
        numbers = np.concatenate([part.numbers for part in parts])
        each = [part.counts for part in parts if part.counts is not None]
        return cls(plan, numbers, np.concatenate(each) if each else None)


class Stream:
    """Safe to use from several threads."""

    def __init__(
        self,
        split: Split,
        *,
        options: DataConfig,
        phase: PhaseConfig,
        index: int,
        seed: int,
        rows: int,
        blocks: Blocks,
    ):
        """`index` is the phase's number, `rows` the mean number of the source's rows per step."""
        self._options, self._phase = options, phase
        self._index, self._seed, self._rows = index, seed, rows
        self._pieces = Pieces(split, blocks)
        self._lanes = math.gcd(rows, self._pieces.lanes)
        self._units = self._lanes * self._pieces.blocks  # of an epoch
        self._first: FirstEpoch | None = None
        # Threads are at several steps, one of which may need units of two blocks.
        keep = 2 if self._units == 1 else 3 * self._lanes
        self.plans = EpochCache(self._plan, keep=keep)
        # None where rows are not packed.
        self.packings = EpochCache(self._pack, keep=keep) if options.packing != "none" else None

    @property
    def first(self) -> FirstEpoch:
        """The size of the first epoch, by planning it or a sample of it."""
        if self._first is None:
            self._first = self._counted()
        return self._first

    def take(self, numbers: np.ndarray) -> Taken:
        """Returns the rows of the numbers, which ascend."""
        units, offsets = self._places_of(numbers)
        order = np.argsort(units, kind="stable")
        taken = self._taken(units[order], offsets[order])
        return taken if self._lanes == 1 else taken.rows(np.argsort(order, kind="stable"))

    def planned(self, numbers: np.ndarray) -> Any:
        """Returns the planned examples of the numbers, whose units ascend."""
        parts = []
        for unit, offsets in _by_unit(*np.divmod(numbers, self._unit.examples)):
            plan = self.plans.get(unit)
            parts.append(plan.take(self._shuffled(unit, offsets, len(plan))))
        return parts[0] if len(parts) == 1 else type(parts[0]).join(parts)

    def plan_ahead(self, numbers: np.ndarray, last: int) -> None:
        """Begins the plans of the units that come after those of the rows, in the background, if
        these are near their end and `last`, the last row of the phase, is not before them.
        """
        units, offsets = self._places_of(numbers)
        near = 0 if self._pieces.is_cut else _PLAN_AHEAD * self._unit.rows
        for unit in np.unique(units[offsets >= near]).tolist():
            if self._first_row(unit + self._lanes) <= last:
                (self.packings or self.plans).begin(unit + self._lanes)

    @property
    def _unit(self) -> FirstEpoch:
        """The size of a unit."""
        return FirstEpoch(*(count // self._units for count in self.first))

    def _places_of(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the unit of each row, and its place there."""
        a_lane = self._rows // self._lanes  # rows of a step
        step, row = np.divmod(numbers, self._rows)
        lane, within = np.divmod(row, a_lane)
        turn, offsets = np.divmod(step * a_lane + within, self._unit.rows)
        return turn * self._lanes + lane, offsets

    def _first_row(self, unit: int) -> int:
        turn, lane = divmod(unit, self._lanes)
        a_lane = self._rows // self._lanes
        step, within = divmod(turn * self._unit.rows, a_lane)
        return step * self._rows + lane * a_lane + within

    def _taken(self, units: np.ndarray, offsets: np.ndarray) -> Taken:
        """Returns rows of units, which ascend."""
        size = self._unit.examples
        if self.packings is None:
            numbers = units * size + offsets
            return Taken(self.planned(numbers), numbers, None)
        found = []
        for unit, places in _by_unit(units, offsets):
            table = self.packings.get(unit)
            # As with examples: a smaller unit begins again, a larger one leaves out a few rows.
            key = counter_rng.derive(self._seed, Key.PACKED_ROWS, self._index, unit)
            chosen = counter_rng.permute(places % len(table), len(table), key)
            examples, counts = table.take(chosen)
            # The table has 32 bits, which the units of a long run exceed.
            found.append((unit * size + examples.astype(np.int64), counts))
        examples, counts = (np.concatenate(parts) for parts in zip(*found, strict=True))
        return Taken(self.planned(examples), examples, counts)

    def _counted(self) -> FirstEpoch:
        """Returns the size of an epoch by its first units."""
        examples = rows = self._examples
        tokens = 0
        if self.packings is not None:
            made = [len(self.packings.get(unit)) for unit in self._sample]
            rows = sum(made) // len(made)
            counts = [int(self.plans.get(unit).lengths.sum()) for unit in self._sample]
            tokens = sum(counts) // len(counts)
        return FirstEpoch(examples * self._units, rows * self._units, tokens * self._units)

    @property
    def _sample(self) -> range:
        """The units of which E is a mean."""
        return range(math.ceil(_SAMPLE * self._lanes))

    @property
    def _examples(self) -> int:
        """E, the number of examples of a unit."""
        if self._first is not None:
            return self._first.examples // self._units
        sizes = [len(self.plans.get(unit)) for unit in self._sample]
        return sum(sizes) // len(sizes)

    def _plan(self, unit: int) -> Any:
        epoch, place = divmod(unit, self._units)
        key = counter_rng.derive(self._seed, Key.PLAN, self._index, epoch)
        if not self._pieces.is_cut:
            return self._plan_of(0, key)
        size = len(self._pieces) // self._units
        order = counter_rng.derive(self._seed, Key.PIECES, self._index, epoch)
        chosen = counter_rng.permute(place * size + np.arange(size), len(self._pieces), order)
        plans = [self._plan_of(piece, counter_rng.derive(key, piece)) for piece in chosen.tolist()]
        return plans[0] if size == 1 else type(plans[0]).join(plans)

    def _plan_of(self, piece: int, key: int) -> Any:
        return ROWS[self._options.rows].plan(
            self._pieces[piece],
            options=self._options,
            sequence_length=self._phase.sequence_length,
            key=key,
        )

    def _pack(self, unit: int) -> packing.Packing:
        phase, plan = self._phase, self.plans.get(unit)
        lengths = plan.lengths[self._shuffled(unit, np.arange(self._examples), len(plan))]
        return packing.best_fit(lengths, length=phase.sequence_length, most=phase.sequences)

    def _shuffled(self, unit: int, offsets: np.ndarray, size: int) -> np.ndarray:
        """Returns where in a unit's plan, of that size, its examples stand."""
        # Units differ a little in size. A smaller one begins again, of a larger one a few pairs,
        # never the same, are left out.
        key = counter_rng.derive(self._seed, Key.SHUFFLE, self._index, unit)
        return counter_rng.permute(offsets % size, size, key)


def _by_unit(units: np.ndarray, offsets: np.ndarray) -> Sequence[tuple[int, np.ndarray]]:
    """Returns each unit, of units that ascend, and the offsets that lie in it."""
    edges = np.flatnonzero(np.diff(units, prepend=-1))
    return list(zip(units[edges].tolist(), np.split(offsets, edges[1:]), strict=True))
