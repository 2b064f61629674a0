"""Batches as a pure function of (corpus, options, seed, step): pure NumPy, and tf.data around it.

Example n of a phase is row n % global_batch_size of its step n // global_batch_size. It lies in
epoch n // E, where E is the size of the phase's first epoch, and its place there goes through the
epoch's own permutation to a sentence pair of the epoch's plan. Nothing is carried from batch to
batch: a run resumes from its step alone, and hosts agree by asking for rows of the same step.
"""

import bisect
import itertools
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, cast

import numpy as np

from bert_jax.config import DataConfig, PhaseConfig
from bert_jax.data import counter
from bert_jax.data.examples import NUM_SPECIAL, Plan, plan_epoch, read_rows
from bert_jax.data.masking import mask_rows
from bert_jax.data.store import Split
from bert_jax.data.tokenizer import SpecialIds
from bert_jax.errors import UsageError

Batch = dict[str, np.ndarray]

# Of a batch of R rows of L tokens with M predictions: every array, its second size and its type.
FIELDS: dict[str, tuple[str, type]] = {
    "input_ids": ("L", np.int32),
    "token_type_ids": ("L", np.int32),
    "position_ids": ("L", np.int32),
    "sequence_ids": ("L", np.int32),
    "mlm_positions": ("M", np.int32),
    "mlm_targets": ("M", np.int32),
    "mlm_weights": ("M", np.float32),
    "nsp_positions": ("1", np.int32),
    "nsp_labels": ("1", np.int32),
    "nsp_weights": ("1", np.float32),
}

# An epoch's plan is begun this far before the epoch itself.
_PLAN_AHEAD = 0.8


class _Key:
    """What a key is for, first counter after the seed: no two uses share a stream."""

    PLAN, SHUFFLE, MASK, EVALUATION = range(4)


class Pipeline:
    """Training batches. Safe to call from several threads."""

    def __init__(
        self,
        split: Split,
        *,
        special: SpecialIds,
        vocab_size: int,
        options: DataConfig,
        phases: tuple[PhaseConfig, ...],
        seed: int,
    ):
        """Costs nothing; the first batch of an epoch waits for the epoch's plan.

        Raises `UsageError` if the split has no two documents, or a phase's sizes are impossible.
        """
        self._split, self._special, self._vocab_size = split, special, vocab_size
        self._options, self._phases, self._seed = options, phases, seed
        for phase in phases:
            _check_sizes(split, phase.sequence_length, phase.max_predictions)
        self._phase_ends = list(itertools.accumulate(phase.steps for phase in phases))
        self._plans = [_PlanCache(self._planner(index)) for index in range(len(phases))]

    def batch_at(self, step: int, rows: range) -> Batch:
        """The given rows of the batch of `step`, which counts over all phases.

        Any ranges may be asked for, in any order; put together they are the whole batch.
        """
        index = bisect.bisect_right(self._phase_ends, step)
        phase = self._phases[index]
        local_step = step - (self._phase_ends[index] - phase.steps)
        numbers = local_step * phase.global_batch_size + np.arange(rows.start, rows.stop)
        return _batch(
            self._split,
            self._pairs(index, numbers),
            special=self._special,
            vocab_size=self._vocab_size,
            options=self._options,
            sequence_length=phase.sequence_length,
            max_predictions=phase.max_predictions,
            mask_key=counter.derive(self._seed, _Key.MASK, index),
            example_numbers=numbers,
        )

    def examples_per_epoch(self, phase_index: int) -> int:
        """Sentence pairs in one pass over the split. Waits for the phase's first plan."""
        return self._plans[phase_index].first_size()

    def steps_per_epoch(self, phase_index: int) -> float:
        phase = self._phases[phase_index]
        return self.examples_per_epoch(phase_index) / phase.global_batch_size

    def _planner(self, index: int) -> Callable[[int], Plan]:
        def plan(epoch: int) -> Plan:
            return plan_epoch(
                self._split,
                options=self._options,
                sequence_length=self._phases[index].sequence_length,
                key=counter.derive(self._seed, _Key.PLAN, index, epoch),
            )

        return plan

    def _pairs(self, index: int, numbers: np.ndarray) -> Plan:
        """The sentence pairs of the phase's examples `numbers`, which ascend."""
        plans, phase = self._plans[index], self._phases[index]
        epochs, places = np.divmod(numbers, plans.first_size())
        parts = []
        for epoch in range(int(epochs[0]), int(epochs[-1]) + 1):
            plan = plans.get(epoch)
            # Epochs differ a little in size. A smaller one begins again, of a larger one a few
            # pairs, never the same, are left out.
            place = places[epochs == epoch] % len(plan)
            key = counter.derive(self._seed, _Key.SHUFFLE, index, epoch)
            parts.append(plan.take(counter.permute(place, len(plan), key)))
        last_number = phase.steps * phase.global_batch_size - 1
        if places[-1] >= _PLAN_AHEAD * plans.first_size():
            next_epoch = int(epochs[-1]) + 1
            if next_epoch * plans.first_size() <= last_number:
                plans.begin(next_epoch)
        return parts[0] if len(parts) == 1 else Plan.join(parts)


class EvaluationSet:
    """Held-out examples: the same pairs with the same masks every time, whatever is asked first."""

    def __init__(
        self,
        split: Split,
        *,
        special: SpecialIds,
        vocab_size: int,
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
        _check_sizes(split, sequence_length, max_predictions)
        key = counter.derive(seed, _Key.EVALUATION)
        plan = plan_epoch(
            split,
            options=options,
            sequence_length=sequence_length,
            key=counter.derive(key, _Key.PLAN),
        )
        self.num_examples = min(num_examples, len(plan))
        self.num_batches = -(-self.num_examples // batch_size)
        shuffle_key = counter.derive(key, _Key.SHUFFLE)
        chosen = counter.permute(np.arange(self.num_examples), len(plan), shuffle_key)
        self._pairs = plan.take(chosen)
        self._batch_size = batch_size
        self._split = split
        self._arguments = {
            "special": special,
            "vocab_size": vocab_size,
            "options": options,
            "sequence_length": sequence_length,
            "max_predictions": max_predictions,
            "mask_key": counter.derive(key, _Key.MASK),
        }

    def batch_at(self, index: int, rows: range) -> Batch:
        """The given rows of batch `index`.

        Rows after the last example repeat it with weights of 0: they count for nothing, and yet
        hold tokens that attend to each other, so that no softmax is empty.
        """
        numbers = index * self._batch_size + np.arange(rows.start, rows.stop)
        is_example = numbers < self.num_examples
        numbers = np.minimum(numbers, self.num_examples - 1)
        pairs = self._pairs.take(numbers)
        batch = _batch(self._split, pairs, example_numbers=numbers, **self._arguments)
        for name in ("mlm_weights", "nsp_weights"):
            batch[name] *= is_example[:, None]
        return batch


def _batch(
    split: Split,
    pairs: Plan,
    *,
    special: SpecialIds,
    vocab_size: int,
    options: DataConfig,
    sequence_length: int,
    max_predictions: int,
    mask_key: int,
    example_numbers: np.ndarray,
) -> Batch:
    inputs = read_rows(
        split,
        pairs,
        cls=special.cls,
        sep=special.sep,
        pad=special.pad,
        sequence_length=sequence_length,
    )
    masked = mask_rows(
        inputs["input_ids"],
        pairs.a_length + pairs.b_length + NUM_SPECIAL,
        special=special,
        vocab_size=vocab_size,
        options=options,
        max_predictions=max_predictions,
        key=mask_key,
        example_numbers=example_numbers,
    )
    rows = len(pairs)
    return {
        **inputs,
        **masked,
        "nsp_positions": np.zeros((rows, 1), np.int32),
        "nsp_labels": pairs.is_random[:, None].astype(np.int32),
        "nsp_weights": np.ones((rows, 1), np.float32),
    }


def _check_sizes(split: Split, sequence_length: int, max_predictions: int) -> None:
    documents = split.document_starts.size - 1
    if documents < 2:
        raise UsageError(
            f"the {split.name} split of the corpus has {documents} document(s), but every second "
            "pair takes a segment from another document: prepare a corpus of more documents "
            "(in text files a blank line ends a document)"
        )
    tokens = sequence_length - NUM_SPECIAL
    if tokens < 2:
        raise UsageError(f"sequence_length {sequence_length} has no room for a pair of segments")
    if not 1 <= max_predictions <= tokens:
        raise UsageError(
            f"max_predictions {max_predictions} is impossible: a row of {sequence_length} has "
            f"1 to {tokens} tokens to predict"
        )


class _PlanCache:
    """The two plans used last. A plan that several threads ask for is computed by one of them."""

    def __init__(self, plan: Callable[[int], Plan]):
        self._plan = plan
        self._lock = threading.Lock()
        self._futures: OrderedDict[int, Future[Plan]] = OrderedDict()
        self._first_size: int | None = None

    def first_size(self) -> int:
        """Examples in epoch 0, remembered after its plan has gone."""
        if self._first_size is None:
            self._first_size = len(self.get(0))
        return self._first_size

    def get(self, epoch: int) -> Plan:
        future, is_new = self._entry(epoch)
        if is_new:
            self._fill(epoch, future)
        return future.result()

    def begin(self, epoch: int) -> None:
        """Computes in the background what is not there and not under way."""
        future, is_new = self._entry(epoch)
        if is_new:
            threading.Thread(target=self._fill, args=(epoch, future), daemon=True).start()

    def _entry(self, epoch: int) -> tuple[Future[Plan], bool]:
        with self._lock:
            is_new = epoch not in self._futures
            future = self._futures.setdefault(epoch, Future())
            self._futures.move_to_end(epoch)
            if len(self._futures) > 2:
                self._futures.popitem(last=False)
            return future, is_new

    def _fill(self, epoch: int, future: Future[Plan]) -> None:
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
    num_workers: int,
    prefetch: int,
) -> Iterator[Batch]:
    """`batch_at(step, rows)` for the steps `[start, stop)`, in order, made ahead by tf.data.

    `rows` is whatever `batch_at` understands: one range of global rows, or several.
    Imports TensorFlow (seconds) and starts on the first batches before it returns. An error in
    `batch_at` is raised to the consumer as it is. Steps must be of one shape.
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
        return [batch[name] for name in FIELDS]

    def fetch(step):
        dtypes = [dtype for _, dtype in FIELDS.values()]
        values = tf.numpy_function(arrays, [step], dtypes, stateful=False)
        return dict(zip(FIELDS, values, strict=True))

    dataset = tf.data.Dataset.range(start, stop)
    dataset = dataset.map(fetch, num_parallel_calls=num_workers, deterministic=True)
    dataset = dataset.prefetch(prefetch)
    options = tf.data.Options()
    options.autotune.enabled = False
    # Its options are made at run time.
    options.experimental_warm_start = True  # pyright: ignore[reportAttributeAccessIssue]
    iterator = cast(Iterator[Batch], dataset.with_options(options).as_numpy_iterator())

    def consume() -> Iterator[Batch]:
        try:
            yield from iterator
        except tf.errors.OpError:
            if errors:
                raise errors[0] from None
            raise

    return consume()


def check_batch(
    batch: Batch, *, rows: int, sequence_length: int, max_predictions: int, vocab_size: int
) -> None:
    """Asserts the table of `FIELDS` and what holds between its columns."""
    sizes = {"L": sequence_length, "M": max_predictions, "1": 1}
    assert set(batch) == set(FIELDS), set(batch) ^ set(FIELDS)
    for name, (size, dtype) in FIELDS.items():
        assert batch[name].dtype == dtype, (name, batch[name].dtype)
        assert batch[name].shape == (rows, sizes[size]), (name, batch[name].shape)
    for name, bound in (
        ("input_ids", vocab_size),
        ("mlm_targets", vocab_size),
        ("token_type_ids", 2),
        ("position_ids", sequence_length),
        ("mlm_positions", sequence_length),
        ("nsp_positions", sequence_length),
        ("nsp_labels", 2),
        ("mlm_weights", 2),
        ("nsp_weights", 2),
    ):
        assert (batch[name] >= 0).all() and (batch[name] < bound).all(), name
    is_token = batch["sequence_ids"] != 0
    assert is_token.any(axis=1).all(), "a row without tokens"
    weights = batch["mlm_weights"]
    assert np.isin(weights, (0, 1)).all() and np.isin(batch["nsp_weights"], (0, 1)).all()
    used = weights != 0
    at = np.take_along_axis(is_token, batch["mlm_positions"], axis=1)
    assert at[used].all(), "a prediction on padding"
    apart = np.diff(batch["mlm_positions"], axis=1) > 0
    assert apart[used[:, 1:]].all(), "predictions do not ascend"
    assert (np.diff(weights, axis=1) <= 0).all(), "a prediction after the last one"
