"""Batches as a pure function of (corpus, options, seed, step) in NumPy, and their tf.data pipeline.

Row r of step s of a phase is row number s * global_batch_size + r of the corpus (stream.py). If
there are several sources, the rows of a batch are shared out to them, and each source numbers its
rows (mixture.py). A batch does not depend on earlier batches: a run resumes from its step, and
hosts agree because they request rows of the same step.
"""

import bisect
import dataclasses
import functools
import itertools
import math
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from bert_jax.config import DataConfig, PhaseConfig
from bert_jax.config.source_shares import shares
from bert_jax.data import counter_rng
from bert_jax.data.corpus.pieces import BLOCKS, Blocks
from bert_jax.data.corpus.store import Split
from bert_jax.data.pretraining import packing
from bert_jax.data.pretraining.batch import ArraySpec, Batch, Draw, Field
from bert_jax.data.pretraining.dealing import Dealing
from bert_jax.data.pretraining.mixture import Mixture
from bert_jax.data.pretraining.stream import Key, Stream, Taken
from bert_jax.data.tokenizer.tokenizer import Vocabulary
from bert_jax.errors import UsageError
from bert_jax.registry import SEQUENCE_FORMATS


class Collator(Protocol):
    """The part of an objective that the pipeline uses: it computes the arrays of a batch."""

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
        sources: Mapping[str, Split] = types.MappingProxyType({}),
        blocks: Blocks = BLOCKS,
    ):
        """Plans nothing yet: the first batch of an epoch waits for the plan of the epoch, and of
        the first epoch of the phase.

        `options` are those of all phases, or one for each phase. `sources` are the parts of
        `split`; the options determine the share of each. A source that is larger than a block is
        planned in pieces.

        Raises `UsageError` if the split has no rows, the sizes of a phase are impossible, or the
        weights do not name the sources.
        """
        self._split, self._collator, self._vocabulary = split, collator, vocabulary
        each = [options] * len(phases) if isinstance(options, DataConfig) else options
        pairs = list(zip(phases, each, strict=True))
        phases = tuple(p.resolved(o.masked_lm_prob, packing=o.packing) for p, o in pairs)
        self._phases, self._seed = phases, seed
        # A phase may override the mask rate.
        self._options = [
            dataclasses.replace(o, masked_lm_prob=p.mask_rate(o.masked_lm_prob)) for p, o in pairs
        ]
        # The shape of sequences before they are packed.
        self._unpacked = tuple(
            phase.unpacked(o.masked_lm_prob) for phase, (_, o) in zip(phases, pairs, strict=True)
        )
        self._phase_ends = list(itertools.accumulate(phase.steps for phase in phases))
        several = sources if len(sources) > 1 else {}
        tokens = {name: source.tokens for name, source in several.items()}
        self._names = tuple(several)
        self._shares = [shares(o, tokens) for o in each] if several else []
        self._streams = [
            self._streams_of(index, several or {"": split}, blocks) for index in range(len(phases))
        ]
        # None if there is one source.
        self._mixtures = [
            Mixture(streams, dealing=self._dealing(index), phase=phases[index]) if several else None
            for index, streams in enumerate(self._streams)
        ]

    def _has_pairs(self, index: int) -> bool:
        """Returns whether the rows of a phase are pairs, so that a batch has one source."""
        return SEQUENCE_FORMATS[self._options[index].sequence_format].texts > 1

    def _dealing(self, index: int) -> Dealing:
        rows = self._phases[index].global_batch_size
        return Dealing(self._shares[index], rows, one_source_per_batch=self._has_pairs(index))

    def _streams_of(self, index: int, sources: Mapping[str, Split], blocks: Blocks) -> list[Stream]:
        options, phase, unpacked = self._options[index], self._phases[index], self._unpacked[index]
        parts = self._shares[index] if self._shares else [1.0]
        if self._has_pairs(index):
            parts = [1.0] * len(parts)
        streams = []
        for number, split in enumerate(sources.values()):
            _check_sizes(split, options, unpacked.sequence_length, unpacked.max_predictions)
            # Parallel sources, such as translations, must not be shuffled in the same order.
            seed = counter_rng.derive(self._seed, Key.SOURCE, number) if number else self._seed
            streams.append(
                Stream(
                    split,
                    options=options,
                    phase=phase,
                    index=index,
                    seed=seed,
                    rows=max(1, int(parts[number] * phase.global_batch_size)),
                    blocks=blocks,
                )
            )
        return streams

    def batch_at(self, step: int, rows: range) -> Batch:
        """Returns the given rows of the batch of `step`, which counts over all phases.

        The concatenation of consecutive ranges is the batch, in whatever order they are computed.
        """
        index = bisect.bisect_right(self._phase_ends, step)
        phase, mixture = self._phases[index], self._mixtures[index]
        local_step = step - (self._phase_ends[index] - phase.steps)
        if mixture is not None:
            return self._made(index, mixture.take(local_step, rows))
        numbers = local_step * phase.global_batch_size + np.arange(rows.start, rows.stop)
        (stream,) = self._streams[index]
        batch = self._made(index, stream.take(numbers))
        stream.plan_ahead(numbers, phase.steps * phase.global_batch_size - 1)
        return batch

    def fill(self, phase_index: int) -> packing.Fill:
        """Returns the mean sequences and tokens of a packed row of a phase."""
        parts = self._shares[phase_index] if self._shares else [1.0]
        firsts = [stream.first for stream in self._streams[phase_index]]
        each = list(zip(parts, firsts, strict=True))
        return packing.Fill(
            sum(part * first.examples / first.rows for part, first in each),
            sum(part * first.tokens / first.rows for part, first in each),
        )

    def shares(self, phase_index: int) -> dict[str, float]:
        """Returns the share of each source in the rows of a phase; empty if there is one source."""
        each = self._shares[phase_index] if self._shares else ()
        return dict(zip(self._names, each, strict=True))

    def epochs(self, step: int) -> dict[str, float]:
        """Returns the number of epochs of each source in the batches before `step`, over all
        phases. The name of a single source is "".
        """
        names = self._names or ("",)
        found, begin = dict.fromkeys(names, 0.0), 0
        for phase, streams, mixture, end in zip(
            self._phases, self._streams, self._mixtures, self._phase_ends, strict=True
        ):
            if step > begin:
                steps = min(step, end) - begin
                rows = [steps * phase.global_batch_size]
                if mixture is not None:
                    rows = mixture.rows_before(steps).tolist()
                for name, stream, count in zip(names, streams, rows, strict=True):
                    found[name] += count / stream.first.rows if count else 0.0
            begin = end
        return found

    def _made(self, index: int, taken: Taken) -> Batch:
        """Returns planned rows as a batch."""
        phase, (plan, numbers, counts) = self._phases[index], taken
        if counts is None:
            return self._examples(index, plan, numbers, phase.sequence_length)
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

    def _examples(self, index: int, plan: Any, numbers: np.ndarray, columns: int) -> Batch:
        """Returns planned rows of at most `columns` tokens, in arrays with `columns` columns."""
        phase, options = self._unpacked[index], self._options[index]
        most = phase.max_predictions
        if columns < phase.sequence_length:
            most = min(most, math.ceil(columns * options.masked_lm_prob))
        return _batch(
            self._split,
            plan,
            collator=self._collator,
            sequence_length=columns,
            draw=Draw(
                vocabulary=self._vocabulary,
                options=options,
                max_predictions=most,
                key=counter_rng.derive(self._seed, Key.MASK, index),
                example_numbers=numbers,
                sequence_length=phase.sequence_length,
            ),
        )


class EvaluationSet:
    """Validation examples: the same rows with the same masks at every evaluation."""

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
        """Plans one epoch of `split` and keeps at most `num_examples` of it.

        Raises `UsageError` if the split has no rows, or the sizes are impossible.
        """
        _check_sizes(split, options, sequence_length, max_predictions)
        key = counter_rng.derive(seed, Key.EVALUATION)
        plan = SEQUENCE_FORMATS[options.sequence_format].plan(
            split,
            options=options,
            sequence_length=sequence_length,
            key=counter_rng.derive(key, Key.PLAN),
        )
        self.num_examples = min(num_examples, len(plan))
        self.num_batches = -(-self.num_examples // batch_size)
        shuffle_key = counter_rng.derive(key, Key.SHUFFLE)
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
            key=counter_rng.derive(key, Key.MASK),
        )

    def batch_at(self, index: int, rows: range) -> Batch:
        """Returns the given rows of batch `index`.

        Rows after the last example repeat it with weights of 0. They do not change a score, and
        they have tokens, so that no softmax is empty.
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
    rows = SEQUENCE_FORMATS[draw.options.sequence_format].read(
        split, plan, vocabulary=draw.vocabulary, sequence_length=sequence_length
    )
    return collator.collate(rows, draw)


def _check_sizes(
    split: Split, options: DataConfig, sequence_length: int, max_predictions: int
) -> None:
    kind = SEQUENCE_FORMATS[options.sequence_format]
    kind.check(split, sequence_length=sequence_length)
    tokens = sequence_length - kind.num_special
    if not 1 <= max_predictions <= tokens:
        raise UsageError(
            f"max_predictions {max_predictions} is out of range: a row of {sequence_length} tokens "
            f"allows 1 to {tokens} predictions"
        )


def tf_batches(
    batch_at: Callable[[int], Batch],
    start: int,
    stop: int,
    *,
    signature: Mapping[str, ArraySpec],
    num_workers: int,
    prefetch: int,
) -> Iterator[Batch]:
    """Yields `batch_at(step)` for the steps `[start, stop)`, in order, through `tf.data`.

    The arrays that are named in `signature` are cast to its types and must have its shapes. They
    are read-only. `num_workers` threads compute batches, and `prefetch` batches wait for the
    consumer. The computation starts before this function returns. The function imports TensorFlow,
    which takes seconds. An exception of `batch_at` reaches the consumer unchanged.
    """
    import tensorflow as tf

    tf.config.set_visible_devices([], "GPU")  # JAX uses the accelerator
    # TensorFlow replaces the exceptions of a Python function by its own types.
    errors: list[BaseException] = []

    def compute(step: np.int64) -> list[np.ndarray]:
        try:
            batch = batch_at(int(step))
        except BaseException as error:
            errors.append(error)
            raise
        return [np.asarray(batch[name], spec.dtype) for name, spec in signature.items()]

    @tf.autograph.experimental.do_not_convert
    def load(step: Any) -> dict[str, Any]:
        types = [tf.as_dtype(np.dtype(spec.dtype)) for spec in signature.values()]
        arrays = tf.numpy_function(compute, [step], types, stateful=False)
        return {
            name: tf.ensure_shape(array, spec.shape)
            for (name, spec), array in zip(signature.items(), arrays, strict=True)
        }

    options = tf.data.Options()
    options.autotune.enabled = False
    # TensorFlow defines its options at run time.
    options.experimental_warm_start = True  # pyright: ignore[reportAttributeAccessIssue]
    dataset = (
        tf.data.Dataset.range(start, stop)
        .map(load, num_parallel_calls=num_workers, deterministic=True)
        .prefetch(prefetch)
        .with_options(options)
    )
    batches: Any = dataset.as_numpy_iterator()
    op_error = tf.errors.OpError  # the module may be gone when the interpreter ends

    def consume() -> Iterator[Batch]:
        try:
            yield from batches
        except op_error:
            if errors:
                raise errors[0] from None
            raise

    return consume()
