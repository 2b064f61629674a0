"""Batches as a pure function of (corpus, options, seed, step): pure NumPy, and tf.data around it.

Example n of a phase is row n % global_batch_size of its step n // global_batch_size. It lies in
epoch n // E, where E is the size of the phase's first epoch, and its place there goes through the
epoch's own permutation to a sentence pair of the epoch's plan. Nothing is carried from batch to
batch: a run resumes from its step alone, and hosts agree by asking for rows of the same step.
"""

import bisect
import dataclasses
import itertools
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from typing import Any, Protocol, cast

import numpy as np

from bert_jax.config import DataConfig, PhaseConfig
from bert_jax.data import counter_rng
from bert_jax.data.corpus.store import Split
from bert_jax.data.pretraining.batch import Batch, Field
from bert_jax.data.tokenizer.tokenizer import Vocabulary
from bert_jax.errors import UsageError
from bert_jax.registry import ROWS

# An epoch's plan is begun this far before the epoch itself.
_PLAN_AHEAD = 0.8


class _Key:
    """The purpose of a key, its first counter after the seed: no two uses share a stream."""

    PLAN, SHUFFLE, MASK, EVALUATION = range(4)


class Collator(Protocol):
    """An objective, as the pipeline sees it: it makes the arrays of a batch of some rows."""

    @property
    def fields(self) -> Mapping[str, Field]: ...

    @property
    def rows(self) -> tuple[str, ...]: ...

    def collate(
        self,
        rows: dict[str, np.ndarray],
        *,
        vocabulary: Vocabulary,
        options: DataConfig,
        max_predictions: int,
        key: int,
        example_numbers: np.ndarray,
    ) -> Batch: ...


class Pipeline:
    """Training batches. Safe to call from several threads."""

    def __init__(
        self,
        split: Split,
        *,
        collator: Collator,
        vocabulary: Vocabulary,
        options: DataConfig,
        phases: tuple[PhaseConfig, ...],
        seed: int,
    ):
        """Costs nothing; the first batch of an epoch waits for the epoch's plan.

        Raises `UsageError` if the split has no two documents, or a phase's sizes are impossible.
        """
        self._split, self._collator, self._vocabulary = split, collator, vocabulary
        phases = tuple(phase.resolved(options.masked_lm_prob) for phase in phases)
        self._options, self._phases, self._seed = options, phases, seed
        # Those of each phase, which may have a mask rate of its own.
        self._phase_options = [
            dataclasses.replace(options, masked_lm_prob=phase.mask_rate(options.masked_lm_prob))
            for phase in phases
        ]
        self._rows = ROWS[options.rows]
        for phase in phases:
            _check_sizes(split, options, phase.sequence_length, phase.max_predictions)
        self._phase_ends = list(itertools.accumulate(phase.steps for phase in phases))
        self._plans = [_PlanCache(self._planner(index)) for index in range(len(phases))]

    def batch_at(self, step: int, rows: range) -> Batch:
        """Returns the given rows of the batch of `step`, which counts over all phases.

        Any ranges may be asked for, in any order; put together they are the whole batch.
        """
        index = bisect.bisect_right(self._phase_ends, step)
        phase = self._phases[index]
        local_step = step - (self._phase_ends[index] - phase.steps)
        numbers = local_step * phase.global_batch_size + np.arange(rows.start, rows.stop)
        return _batch(
            self._split,
            self._examples(index, numbers),
            collator=self._collator,
            vocabulary=self._vocabulary,
            options=self._phase_options[index],
            sequence_length=phase.sequence_length,
            max_predictions=phase.max_predictions,
            mask_key=counter_rng.derive(self._seed, _Key.MASK, index),
            example_numbers=numbers,
        )

    def examples_per_epoch(self, phase_index: int) -> int:
        """Returns the number of rows in one pass over the split.

        Waits for the phase's first plan.
        """
        return self._plans[phase_index].first_size()

    def _planner(self, index: int) -> Callable[[int], Any]:
        def plan(epoch: int) -> Any:
            return self._rows.plan(
                self._split,
                options=self._options,
                sequence_length=self._phases[index].sequence_length,
                key=counter_rng.derive(self._seed, _Key.PLAN, index, epoch),
            )

        return plan

    def _examples(self, index: int, numbers: np.ndarray) -> Any:
        """Returns the planned rows of the phase's examples `numbers`, which ascend."""
        plans, phase = self._plans[index], self._phases[index]
        epochs, offsets = np.divmod(numbers, plans.first_size())
        parts = []
        for epoch in range(int(epochs[0]), int(epochs[-1]) + 1):
            plan = plans.get(epoch)
            # Epochs differ a little in size. A smaller one begins again, of a larger one a few
            # pairs, never the same, are left out.
            offset = offsets[epochs == epoch] % len(plan)
            key = counter_rng.derive(self._seed, _Key.SHUFFLE, index, epoch)
            parts.append(plan.take(counter_rng.permute(offset, len(plan), key)))
        last_number = phase.steps * phase.global_batch_size - 1
        if offsets[-1] >= _PLAN_AHEAD * plans.first_size():
            next_epoch = int(epochs[-1]) + 1
            if next_epoch * plans.first_size() <= last_number:
                plans.begin(next_epoch)
        return parts[0] if len(parts) == 1 else type(parts[0]).join(parts)


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

        Raises `UsageError` if the split has no two documents, or the sizes are impossible.
        """
        _check_sizes(split, options, sequence_length, max_predictions)
        key = counter_rng.derive(seed, _Key.EVALUATION)
        plan = ROWS[options.rows].plan(
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
        self._split = split
        self._arguments = {
            "collator": collator,
            "vocabulary": vocabulary,
            "options": options,
            "sequence_length": sequence_length,
            "max_predictions": max_predictions,
            "mask_key": counter_rng.derive(key, _Key.MASK),
        }

    def batch_at(self, index: int, rows: range) -> Batch:
        """Returns the given rows of batch `index`.

        Rows after the last example repeat it with weights of 0: they count for nothing, and yet
        hold tokens that attend to each other, so that no softmax is empty.
        """
        numbers = index * self._batch_size + np.arange(rows.start, rows.stop)
        is_example = numbers < self.num_examples
        numbers = np.minimum(numbers, self.num_examples - 1)
        rows = self._plan.take(numbers)
        batch = _batch(self._split, rows, example_numbers=numbers, **self._arguments)
        for name, array in batch.items():
            if name.endswith("weights"):
                array *= is_example[:, None]
        return batch


def _batch(
    split: Split,
    plan: Any,
    *,
    collator: Collator,
    vocabulary: Vocabulary,
    options: DataConfig,
    sequence_length: int,
    max_predictions: int,
    mask_key: int,
    example_numbers: np.ndarray,
) -> Batch:
    rows = ROWS[options.rows].read(
        split, plan, vocabulary=vocabulary, sequence_length=sequence_length
    )
    return collator.collate(
        rows,
        vocabulary=vocabulary,
        options=options,
        max_predictions=max_predictions,
        key=mask_key,
        example_numbers=example_numbers,
    )


def _check_sizes(
    split: Split, options: DataConfig, sequence_length: int, max_predictions: int
) -> None:
    kind = ROWS[options.rows]
    kind.check(split, sequence_length=sequence_length)
    tokens = sequence_length - kind.num_special
    if not 1 <= max_predictions <= tokens:
        raise UsageError(
            f"max_predictions {max_predictions} is impossible: a row of {sequence_length} has "
            f"1 to {tokens} tokens to predict"
        )


class _PlanCache:
    """The two plans used last. A plan that several threads ask for is computed by one of them."""

    def __init__(self, plan: Callable[[int], Any]):
        self._plan = plan
        self._lock = threading.Lock()
        self._futures: OrderedDict[int, Future[Any]] = OrderedDict()
        self._first_size: int | None = None

    def first_size(self) -> int:
        """Returns the number of examples in epoch 0, remembered after its plan has gone."""
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
