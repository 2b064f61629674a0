"""Batches as a pure function of (corpus, options, seed, step): pure NumPy, and tf.data around it.

Example n of a phase is row n % global_batch_size of its step n // global_batch_size. It lies in
epoch n // E, where E is the size of the phase's first epoch, and its place there goes through the
epoch's own permutation to a row of the epoch's plan. Nothing is carried from batch to batch: a run
resumes from its step alone, and hosts agree by asking for rows of the same step. E may be kept
somewhere, so that it need not be counted again; it is what the plan of epoch 0 says all the same.

Where rows are packed (`data.packing`), examples are numbered and made in the same way. An epoch has
a table of packed rows, each of which names some of its E examples, and row n of a phase goes in the
same way through a permutation of these.
"""

import bisect
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, cast

import numpy as np

from bert_jax.config import DataConfig, PhaseConfig
from bert_jax.config.entries import entry_of
from bert_jax.data import counter_rng
from bert_jax.data.corpus.store import Split
from bert_jax.data.pretraining import packing
from bert_jax.data.pretraining.batch import Batch, Draw, Field
from bert_jax.data.pretraining.epochs import EpochCache, FirstEpoch, KeptEpochs, by_epoch, decisive
from bert_jax.data.tokenizer.tokenizer import Vocabulary
from bert_jax.errors import UsageError

# An epoch's plan is begun this far before the epoch itself.
_PLAN_AHEAD = 0.8


class _Key:
    """The purpose of a key, its first counter after the seed: no two uses share a stream."""

    PLAN, SHUFFLE, MASK, EVALUATION, PACKED_ROWS = range(5)


class Collator(Protocol):
    """An objective, as the pipeline sees it: it makes the arrays of a batch of some rows."""

    @property
    def fields(self) -> Mapping[str, Field]: ...

    @property
    def rows(self) -> tuple[str, ...]: ...

    def collate(self, rows: Batch, draw: Draw) -> Batch: ...


class Pipeline:
    """Training batches. Safe to call from several threads."""

    def __init__(
        self,
        split: Split,
        *,
        collator: Collator,
        vocabulary: Vocabulary,
        options: DataConfig | Sequence[DataConfig],
        phases: tuple[PhaseConfig, ...],
        seed: int,
        kept: KeptEpochs | None = None,
    ):
        """Costs nothing; the first batch of an epoch waits for the epoch's plan, and for that of
        the phase's first epoch, unless its size is `kept`. `options` are those of all phases, or
        one for each.

        Raises `UsageError` if the split makes no rows, or a phase's sizes are impossible.
        """
        self._split, self._collator, self._vocabulary = split, collator, vocabulary
        each = [options] * len(phases) if isinstance(options, DataConfig) else options
        pairs = list(zip(phases, each, strict=True))
        phases = tuple(p.resolved(o.masked_lm_prob, packing=o.packing) for p, o in pairs)
        self._phases, self._seed = phases, seed
        # A phase may have a mask rate of its own.
        self._options = [
            dataclasses.replace(o, masked_lm_prob=p.mask_rate(o.masked_lm_prob)) for p, o in pairs
        ]
        # As sequences are before they are packed.
        self._unpacked = tuple(
            phase.unpacked(o.masked_lm_prob) for phase, (_, o) in zip(phases, pairs, strict=True)
        )
        for phase, (_, o) in zip(self._unpacked, pairs, strict=True):
            _check_sizes(split, o, phase.sequence_length, phase.max_predictions)
        self._phase_ends = list(itertools.accumulate(phase.steps for phase in phases))
        indices = range(len(phases))
        self._plans = [EpochCache(self._planner(index)) for index in indices]
        # None where rows are not packed.
        self._packings = [
            EpochCache(self._packer(index)) if options.packing != "none" else None
            for index, (_, options) in enumerate(pairs)
        ]
        self._kept = kept
        self._firsts: dict[int, FirstEpoch] = {}

    def batch_at(self, step: int, rows: range) -> Batch:
        """Returns the given rows of the batch of `step`, which counts over all phases.

        Any ranges may be asked for, in any order; put together they are the whole batch.
        """
        index = bisect.bisect_right(self._phase_ends, step)
        phase = self._phases[index]
        local_step = step - (self._phase_ends[index] - phase.steps)
        numbers = local_step * phase.global_batch_size + np.arange(rows.start, rows.stop)
        is_packed = self._packings[index] is not None
        batch = self._packed(index, numbers) if is_packed else self.examples(index, numbers)
        self._plan_ahead(index, int(numbers[-1]))
        return batch

    def examples(self, index: int, numbers: np.ndarray) -> Batch:
        """Returns a phase's examples of the given numbers, each in a row of its own.

        Their epochs ascend.
        """
        plan = self._planned(index, numbers)
        return self._examples(index, plan, numbers, self._phases[index].sequence_length)

    def _examples(self, index: int, plan: Any, numbers: np.ndarray, columns: int) -> Batch:
        """Returns planned rows, of at most so many tokens, in tables of so many columns."""
        phase = self._unpacked[index]
        return _batch(
            self._split,
            plan,
            collator=self._collator,
            sequence_length=columns,
            draw=Draw(
                vocabulary=self._vocabulary,
                options=self._options[index],
                max_predictions=min(phase.max_predictions, columns),
                key=counter_rng.derive(self._seed, _Key.MASK, index),
                example_numbers=numbers,
                sequence_length=phase.sequence_length,
            ),
        )

    def rows_per_epoch(self, phase_index: int) -> int:
        """Returns the number of rows in one pass over the split.

        Waits for the phase's first plan, as the two below do, unless its size is kept.
        """
        return self._first(phase_index).rows

    def examples_per_epoch(self, phase_index: int) -> int:
        """Returns the number of examples in one pass over the split: as many rows, if not
        packed.
        """
        return self._first(phase_index).examples

    def fill(self, phase_index: int) -> packing.Fill:
        """Returns how full the packed rows of a phase are."""
        first = self._first(phase_index)
        return packing.Fill(first.examples / first.rows, first.tokens / first.rows)

    def _first(self, index: int) -> FirstEpoch:
        """Returns the size of a phase's first epoch: as it is kept, or by planning it."""
        first = self._firsts.get(index)
        if first is not None:
            return first
        digest = decisive(self._options[index], self._phases[index], self._seed)
        if self._kept is not None:
            first = self._kept.get(index, digest)
        if first is None:
            plan, packings = self._plans[index].get(0), self._packings[index]
            rows, tokens = len(plan), 0
            if packings is not None:
                rows, tokens = len(packings.get(0)), int(plan.lengths.sum())
            first = FirstEpoch(len(plan), rows, tokens)
            if self._kept is not None:
                self._kept.put(index, digest, first)
        return self._firsts.setdefault(index, first)

    def _epochs(self, index: int) -> EpochCache:
        return self._packings[index] or self._plans[index]

    def _planner(self, index: int) -> Callable[[int], Any]:
        def plan(epoch: int) -> Any:
            options = self._options[index]
            made = entry_of(options, "rows").plan(
                self._split,
                options=options,
                sequence_length=self._phases[index].sequence_length,
                key=counter_rng.derive(self._seed, _Key.PLAN, index, epoch),
            )
            if epoch == 0 and index in self._firsts:
                self._require(index, self._firsts[index].examples, len(made))
            return made

        return plan

    def _packer(self, index: int) -> Callable[[int], packing.Packing]:
        def pack(epoch: int) -> packing.Packing:
            phase, plan = self._phases[index], self._plans[index].get(epoch)
            # Of the first epoch the plan itself says it, and the size is not known before it.
            examples = self.examples_per_epoch(index) if epoch else len(plan)
            lengths = plan.lengths[self._places(index, epoch, np.arange(examples), len(plan))]
            length, most = phase.sequence_length, phase.sequences
            made = packing.best_fit(lengths, length=length, most=most)
            if epoch == 0 and index in self._firsts:
                self._require(index, self._firsts[index].rows, len(made))
            return made

        return pack

    def _require(self, index: int, kept: int, found: int) -> None:
        """Raises the error for a first epoch that has not the size that was kept."""
        if self._kept is not None and kept != found:
            raise self._kept.disagree(index, kept, found)

    def _places(self, index: int, epoch: int, offsets: np.ndarray, size: int) -> np.ndarray:
        """Returns where in an epoch's plan, of that size, its examples stand."""
        # Epochs differ a little in size. A smaller one begins again, of a larger one a few pairs,
        # never the same, are left out.
        key = counter_rng.derive(self._seed, _Key.SHUFFLE, index, epoch)
        return counter_rng.permute(offsets % size, size, key)

    def _planned(self, index: int, numbers: np.ndarray) -> Any:
        """Returns the planned rows of the phase's examples `numbers`, whose epochs ascend."""
        parts = []
        for epoch, offsets in by_epoch(numbers, self.examples_per_epoch(index)):
            plan = self._plans[index].get(epoch)
            parts.append(plan.take(self._places(index, epoch, offsets, len(plan))))
        return parts[0] if len(parts) == 1 else type(parts[0]).join(parts)

    def _packed(self, index: int, rows: np.ndarray) -> Batch:
        """Returns the phase's packed rows of the numbers `rows`, whose epochs ascend."""
        phase, packings, found = self._phases[index], self._epochs(index), []
        for epoch, offsets in by_epoch(rows, self.rows_per_epoch(index)):
            table = packings.get(epoch)
            # As with examples: a smaller epoch begins again, a larger one leaves out a few rows.
            key = counter_rng.derive(self._seed, _Key.PACKED_ROWS, index, epoch)
            chosen = counter_rng.permute(offsets % len(table), len(table), key)
            examples, counts = table.take(chosen)
            found.append((epoch * self.examples_per_epoch(index) + examples, counts))
        numbers, counts = (np.concatenate(parts) for parts in zip(*found, strict=True))
        plan = self._planned(index, numbers)
        widths = packing.by_width(plan.lengths, sequence_length=phase.sequence_length)
        return packing.place(
            [(i, self._examples(index, plan.take(i), numbers[i], width)) for i, width in widths],
            counts,
            fields=self._collator.fields,
            pad=self._vocabulary.special.pad,
            sequence_length=phase.sequence_length,
            max_predictions=phase.max_predictions,
            max_sequences=phase.sequences,
        )

    def _plan_ahead(self, index: int, row: int) -> None:
        """Begins the next epoch's plan in the background, if the phase's row `row` is near it."""
        phase, size = self._phases[index], self.rows_per_epoch(index)
        epoch, offset = divmod(row, size)
        last = phase.steps * phase.global_batch_size - 1
        if offset >= _PLAN_AHEAD * size and (epoch + 1) * size <= last:
            self._epochs(index).begin(epoch + 1)


class EvaluationSet:
    """Held-out examples: the same pairs with the same masks every time, whatever is asked first."""

    def __init__(
        self,
        split: Split,
        *,
        collator: Collator,
        vocabulary: Vocabulary,
        options: DataConfig,
        sequence_length: int,
        max_predictions: int,
        num_examples: int,
        batch_size: int,
        seed: int,
    ):
        """Plans one epoch of `split` and keeps `num_examples` of it, or all if it has fewer.

        Raises `UsageError` if the split makes no rows, or the sizes are impossible.
        """
        _check_sizes(split, options, sequence_length, max_predictions)
        key = counter_rng.derive(seed, _Key.EVALUATION)
        plan = entry_of(options, "rows").plan(
            split,
            options=options,
            sequence_length=sequence_length,
            key=counter_rng.derive(key, _Key.PLAN),
        )
        self.num_examples = min(num_examples, len(plan))
        self.num_batches = -(-self.num_examples // batch_size)
        shuffle_key = counter_rng.derive(key, _Key.SHUFFLE)
        chosen = counter_rng.permute(np.arange(self.num_examples), len(plan), shuffle_key)
        self._plan = plan.take(chosen)
        self._batch_size = batch_size
        self._batch = functools.partial(
            _batch, split, collator=collator, sequence_length=sequence_length
        )
        self._draw = functools.partial(
            Draw,
            vocabulary=vocabulary,
            options=options,
            max_predictions=max_predictions,
            key=counter_rng.derive(key, _Key.MASK),
        )

    def batch_at(self, index: int, rows: range) -> Batch:
        """Returns the given rows of batch `index`.

        Rows after the last example repeat it with weights of 0: they count for nothing, and yet
        hold tokens that attend to each other, so that no softmax is empty.
        """
        numbers = index * self._batch_size + np.arange(rows.start, rows.stop)
        is_example = numbers < self.num_examples
        numbers = np.minimum(numbers, self.num_examples - 1)
        batch = self._batch(self._plan.take(numbers), draw=self._draw(example_numbers=numbers))
        for name, array in batch.items():
            if name.endswith("weights"):
                array *= is_example[:, None]
        return batch


def _batch(
    split: Split, plan: Any, *, collator: Collator, sequence_length: int, draw: Draw
) -> Batch:
    rows = entry_of(draw.options, "rows").read(
        split, plan, vocabulary=draw.vocabulary, sequence_length=sequence_length
    )
    return collator.collate(rows, draw)


def _check_sizes(
    split: Split, options: DataConfig, sequence_length: int, max_predictions: int
) -> None:
    kind = entry_of(options, "rows")
    kind.check(split, sequence_length=sequence_length)
    tokens = sequence_length - kind.num_special
    if not 1 <= max_predictions <= tokens:
        raise UsageError(
            f"max_predictions {max_predictions} is impossible: a row of {sequence_length} has "
            f"1 to {tokens} tokens to predict"
        )


def tf_batches(
    batch_at: Callable[[int, Any], Batch],
    start: int,
    stop: int,
    rows: Any,
    *,
    fields: Mapping[str, Field],
    num_workers: int,
    prefetch: int,
) -> Iterator[Batch]:
    """Yields `batch_at(step, rows)` for the steps `[start, stop)`, in order, made ahead by tf.data.

    `fields` are the arrays of a batch. `rows` is whatever `batch_at` understands: one range of
    global rows, or several. Imports TensorFlow (seconds) and starts on the first batches before it
    returns. An error in `batch_at` is raised to the consumer as it is. Steps must be of one shape.
    """
    import tensorflow as tf

    tf.config.set_visible_devices([], "GPU")  # the accelerator belongs to jax
    errors: list[BaseException] = []

    def arrays(step: np.int64) -> list[np.ndarray]:
        try:
            batch = batch_at(int(step), rows)
        except BaseException as error:
            errors.append(error)
            raise
        return [batch[name] for name in fields]

    def fetch(step):
        dtypes = [field.dtype for field in fields.values()]
        values = tf.numpy_function(arrays, [step], dtypes, stateful=False)
        return dict(zip(fields, values, strict=True))

    dataset = tf.data.Dataset.range(start, stop)
    dataset = dataset.map(fetch, num_parallel_calls=num_workers, deterministic=True)
    dataset = dataset.prefetch(prefetch)
    options = tf.data.Options()
    options.autotune.enabled = False
    # Its options are made at run time.
    options.experimental_warm_start = True  # pyright: ignore[reportAttributeAccessIssue]
    iterator = cast(Iterator[Batch], dataset.with_options(options).as_numpy_iterator())

    of_tensorflow = tf.errors.OpError  # at the interpreter's end the module is gone before it

    def consume() -> Iterator[Batch]:
        try:
            yield from iterator
        except of_tensorflow:
            if errors:
                raise errors[0] from None
            raise

    return consume()
