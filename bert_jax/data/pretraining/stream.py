"""The rows of one source in one phase: its epochs, and the planned row of each row number.

Rows come from *units*, which are planned independently. By default a unit is an epoch. Row n is in
unit n // E, where E is the size of the first unit. A permutation that is drawn for the unit maps
the position of the row in the unit to a row of the unit's plan.

A source that is larger than a block (pieces.py) has smaller units. An epoch takes the pieces of the
source in an order that is drawn for the epoch, one block of pieces at a time. The rows of a step
are divided evenly among at most 64 *lanes*, and a unit consists of the pieces of one lane in one
block. A host therefore only plans the units of the lanes of its rows, and the batches do not depend
on the number of hosts. E is then the mean size of a sample of units. A larger unit omits a few
rows, and a smaller unit repeats its first rows.

If rows are packed (`data.packing`), examples are numbered and planned in the same way. Each unit
has a table of packed rows, which lists some of its E examples per row. Another permutation maps a
row of the unit to a row of the table.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self

import numpy as np

from bert_jax.config import DataConfig, PhaseConfig
from bert_jax.data import counter_rng
from bert_jax.data.corpus.pieces import Blocks, Pieces
from bert_jax.data.corpus.store import Split
from bert_jax.data.pretraining import packing
from bert_jax.data.pretraining.epochs import EpochCache
from bert_jax.data.pretraining.spans import ranges
from bert_jax.registry import SEQUENCE_FORMATS

# The share of an epoch after which the next epoch is planned. The next unit of a large source is
# small, and is planned at once.
_PLAN_AHEAD = 0.8
# The share of a block that is sampled to compute E.
_SAMPLE = 1 / 4


class Key:
    """The purposes of keys: the first counter after the seed, so that no draws are shared."""

    PLAN, SHUFFLE, MASK, EVALUATION, PACKED_ROWS, SOURCE, PIECES = range(7)


class Taken(NamedTuple):
    """Planned rows that are not read yet."""

    plan: Any  # of the examples of the rows
    numbers: np.ndarray  # int64, one per example: determines its masks
    # The number of examples of each row; None if each row has one.
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
    """The rows of one source in one phase. Safe to use from several threads."""

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
        self._units = self._lanes * self._pieces.blocks  # per epoch
        # Several threads work at several steps, and a step may need units of two blocks.
        keep = 2 if self._units == 1 else 3 * self._lanes
        self.plans = EpochCache(self._plan, keep=keep)
        # None if rows are not packed.
        self.packings = EpochCache(self._pack, keep=keep) if options.packing != "none" else None

    @functools.cached_property
    def unit_examples(self) -> int:
        """E, the number of examples of a unit, by which all examples are numbered."""
        return self._mean(lambda unit: len(self.plans.get(unit)))

    @functools.cached_property
    def unit_rows(self) -> int:
        """The number of rows of a unit: E if rows are not packed."""
        return self._mean(lambda unit: len((self.packings or self.plans).get(unit)))

    @functools.cached_property
    def unit_tokens(self) -> int:
        """The number of tokens of the examples of a unit."""
        return self._mean(lambda unit: int(self.plans.get(unit).lengths.sum()))

    @property
    def epoch_rows(self) -> int:
        """The number of rows of an epoch."""
        return self.unit_rows * self._units

    def _mean(self, count: Callable[[int], int]) -> int:
        """Returns the mean over the first epoch, or over a sample of its units."""
        units = range(math.ceil(_SAMPLE * self._lanes))
        return sum(map(count, units)) // len(units)

    def take(self, numbers: np.ndarray) -> Taken:
        """Returns the rows of the given numbers, in ascending order."""
        units, offsets = self._places_of(numbers)
        order = np.argsort(units, kind="stable")
        taken = self._taken(units[order], offsets[order])
        return taken if self._lanes == 1 else taken.rows(np.argsort(order, kind="stable"))

    def plan_ahead(self, numbers: np.ndarray, last: int) -> None:
        """Plans the units after those of the rows in the background, if the rows are near the end
        of a unit. `last` is the last row of the phase: units after it are not planned.
        """
        units, offsets = self._places_of(numbers)
        near = 0 if self._pieces.is_cut else _PLAN_AHEAD * self.unit_rows
        for unit in np.unique(units[offsets >= near]).tolist():
            if self._first_row(unit + self._lanes) <= last:
                (self.packings or self.plans).begin(unit + self._lanes)

    def _planned(self, numbers: np.ndarray) -> Any:
        """Returns the planned examples of the given numbers, in ascending order of units."""
        parts = []
        for unit, offsets in _by_unit(*np.divmod(numbers, self.unit_examples)):
            plan = self.plans.get(unit)
            parts.append(plan.take(self._shuffled(unit, offsets, len(plan))))
        return parts[0] if len(parts) == 1 else type(parts[0]).join(parts)

    def _places_of(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the unit of each row, and the position of the row in the unit."""
        a_lane = self._rows // self._lanes  # rows per step
        step, row = np.divmod(numbers, self._rows)
        lane, within = np.divmod(row, a_lane)
        turn, offsets = np.divmod(step * a_lane + within, self.unit_rows)
        return turn * self._lanes + lane, offsets

    def _first_row(self, unit: int) -> int:
        turn, lane = divmod(unit, self._lanes)
        a_lane = self._rows // self._lanes
        step, within = divmod(turn * self.unit_rows, a_lane)
        return step * self._rows + lane * a_lane + within

    def _taken(self, units: np.ndarray, offsets: np.ndarray) -> Taken:
        """Returns rows of units, in ascending order of units."""
        size = self.unit_examples
        if self.packings is None:
            numbers = units * size + offsets
            return Taken(self._planned(numbers), numbers, None)
        found = []
        for unit, places in _by_unit(units, offsets):
            table = self.packings.get(unit)
            # As in `_shuffled`, units differ in size.
            key = counter_rng.derive(self._seed, Key.PACKED_ROWS, self._index, unit)
            chosen = counter_rng.permute(places % len(table), len(table), key)
            examples, counts = table.take(chosen)
            # The table is 32-bit, which the example numbers of a long run exceed.
            found.append((unit * size + examples.astype(np.int64), counts))
        examples, counts = (np.concatenate(parts) for parts in zip(*found, strict=True))
        return Taken(self._planned(examples), examples, counts)

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
        return SEQUENCE_FORMATS[self._options.sequence_format].plan(
            self._pieces[piece],
            options=self._options,
            sequence_length=self._phase.sequence_length,
            key=key,
        )

    def _pack(self, unit: int) -> packing.Packing:
        phase, plan = self._phase, self.plans.get(unit)
        lengths = plan.lengths[self._shuffled(unit, np.arange(self.unit_examples), len(plan))]
        return packing.best_fit(lengths, length=phase.sequence_length, most=phase.sequences)

    def _shuffled(self, unit: int, offsets: np.ndarray, size: int) -> np.ndarray:
        """Returns the positions of examples of a unit in its plan, which has `size` examples."""
        # Units differ a little in size. A smaller unit repeats its first examples; a larger unit
        # omits a few examples, which differ between units.
        key = counter_rng.derive(self._seed, Key.SHUFFLE, self._index, unit)
        return counter_rng.permute(offsets % size, size, key)


def _by_unit(units: np.ndarray, offsets: np.ndarray) -> Sequence[tuple[int, np.ndarray]]:
    """Returns each unit and its offsets. `units` ascend."""
    edges = np.flatnonzero(np.diff(units, prepend=-1))
    return list(zip(units[edges].tolist(), np.split(offsets, edges[1:]), strict=True))
