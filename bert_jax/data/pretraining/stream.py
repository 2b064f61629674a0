"""The rows of one source in one phase: its epochs, and which planned row a number means.

Number n lies in epoch n // E, where E is the size of the source's first epoch in the phase, and its
place there goes through the epoch's own permutation to a row of the epoch's plan. E may be kept
somewhere, so that it need not be counted again; it is what the plan of epoch 0 says all the same.

Where rows are packed (`data.packing`), examples are numbered and planned in the same way. An epoch
has a table of packed rows, each of which names some of its E examples, and row n of a phase goes in
the same way through a permutation of these.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np

from bert_jax.config import DataConfig, PhaseConfig
from bert_jax.config.entries import entry_of
from bert_jax.data import counter_rng
from bert_jax.data.corpus.store import Split
from bert_jax.data.pretraining import packing
from bert_jax.data.pretraining.epochs import EpochCache, FirstEpoch, KeptEpochs, by_epoch, decisive
from bert_jax.data.pretraining.spans import ranges

# An epoch's plan is begun this far before the epoch itself.
_PLAN_AHEAD = 0.8


class Key:
    """The purpose of a key, its first counter after the seed: no two uses share a stream."""

    PLAN, SHUFFLE, MASK, EVALUATION, PACKED_ROWS, SOURCE = range(6)


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
        kept: KeptEpochs | None = None,
        kept_as: str | None = None,
    ):
        """`index` is the phase's number. A size of the first epoch is kept by that, or `kept_as`
        another name.
        """
        self._split, self._options, self._phase = split, options, phase
        self._index, self._seed = index, seed
        self._kept, self._kept_as = kept, str(index) if kept_as is None else kept_as
        self._first: FirstEpoch | None = None
        self.plans = EpochCache(self._plan)
        # None where rows are not packed.
        self.packings = EpochCache(self._pack) if options.packing != "none" else None

    @property
    def first(self) -> FirstEpoch:
        """The size of the first epoch: as it is kept, or by planning it."""
        if self._first is not None:
            return self._first
        digest = decisive(self._options, self._phase, self._seed)
        first = None if self._kept is None else self._kept.get(self._kept_as, digest)
        if first is None:
            plan = self.plans.get(0)
            rows, tokens = len(plan), 0
            if self.packings is not None:
                rows, tokens = len(self.packings.get(0)), int(plan.lengths.sum())
            first = FirstEpoch(len(plan), rows, tokens)
            if self._kept is not None:
                self._kept.put(self._kept_as, digest, first)
        self._first = first
        return first

    def take(self, numbers: np.ndarray) -> Taken:
        """Returns the rows of the numbers, which ascend."""
        if self.packings is None:
            return Taken(self.planned(numbers), numbers, None)
        found, first = [], self.first
        for epoch, offsets in by_epoch(numbers, first.rows):
            table = self.packings.get(epoch)
            # As with examples: a smaller epoch begins again, a larger one leaves out a few rows.
            key = counter_rng.derive(self._seed, Key.PACKED_ROWS, self._index, epoch)
            chosen = counter_rng.permute(offsets % len(table), len(table), key)
            examples, counts = table.take(chosen)
            # The table has 32 bits, which the epochs of a long run exceed.
            found.append((epoch * first.examples + examples.astype(np.int64), counts))
        examples, counts = (np.concatenate(parts) for parts in zip(*found, strict=True))
        return Taken(self.planned(examples), examples, counts)

    def planned(self, numbers: np.ndarray) -> Any:
        """Returns the planned examples of the numbers, whose epochs ascend."""
        parts = []
        for epoch, offsets in by_epoch(numbers, self.first.examples):
            plan = self.plans.get(epoch)
            parts.append(plan.take(self._places(epoch, offsets, len(plan))))
        return parts[0] if len(parts) == 1 else type(parts[0]).join(parts)

    def plan_ahead(self, row: int, last: int) -> None:
        """Begins the next epoch's plan in the background, if the source's row `row` is near it and
        `last`, the last one of the phase, in it.
        """
        size = self.first.rows
        epoch, offset = divmod(row, size)
        if offset >= _PLAN_AHEAD * size and (epoch + 1) * size <= last:
            (self.packings or self.plans).begin(epoch + 1)

    def _plan(self, epoch: int) -> Any:
        made = entry_of(self._options, "rows").plan(
            self._split,
            options=self._options,
            sequence_length=self._phase.sequence_length,
            key=counter_rng.derive(self._seed, Key.PLAN, self._index, epoch),
        )
        if epoch == 0 and self._first is not None:
            self._require(self._first.examples, len(made))
        return made

    def _pack(self, epoch: int) -> packing.Packing:
        phase, plan = self._phase, self.plans.get(epoch)
        # Of the first epoch the plan itself says it, and the size is not known before it.
        examples = self.first.examples if epoch else len(plan)
        lengths = plan.lengths[self._places(epoch, np.arange(examples), len(plan))]
        made = packing.best_fit(lengths, length=phase.sequence_length, most=phase.sequences)
        if epoch == 0 and self._first is not None:
            self._require(self._first.rows, len(made))
        return made

    def _require(self, kept: int, found: int) -> None:
        """Raises the error for a first epoch that has not the size that was kept."""
        if self._kept is not None and kept != found:
            raise self._kept.disagree(self._kept_as, kept, found)

    def _places(self, epoch: int, offsets: np.ndarray, size: int) -> np.ndarray:
        """Returns where in an epoch's plan, of that size, its examples stand."""
        # Epochs differ a little in size. A smaller one begins again, of a larger one a few pairs,
        # never the same, are left out.
        key = counter_rng.derive(self._seed, Key.SHUFFLE, self._index, epoch)
        return counter_rng.permute(offsets % size, size, key)
