"""Batches as a pure function of (corpus, options, seed, step) in NumPy, and their tf.data pipeline.

The rows of a batch are shared out to the sources of the corpus (mixture.py), and each source
numbers its rows (stream.py): row r of step s of a phase is row s * global_batch_size + r of a
single source. A batch does not depend on earlier batches: a run resumes from its step, and hosts
agree because they request rows of the same step.
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
        ends = itertools.accumulate(phase.steps for phase in phases)
        self._phase_starts = [0, *ends][: len(phases)]
        self._sources = sources if len(sources) > 1 else {"": split}
        tokens = {name: source.tokens for name, source in self._sources.items()}
        self._shares = [shares(o, tokens) if len(tokens) > 1 else [1.0] for o in each]
        self._mixtures = [self._mixture(index, blocks) for index in range(len(phases))]

    def _mixture(self, index: int, blocks: Blocks) -> Mixture:
        options, phase, unpacked = self._options[index], self._phases[index], self._unpacked[index]
        parts, rows = self._shares[index], phase.global_batch_size
        # All rows of a batch of pairs come from one source.
        one_source = SEQUENCE_FORMATS[options.sequence_format].texts > 1
        streams = []
        for number, (split, part) in enumerate(zip(self._sources.values(), parts, strict=True)):
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
                    rows=rows if one_source else max(1, int(part * rows)),
                    blocks=blocks,
                )
            )
        dealing = Dealing(parts, rows, one_source_per_batch=one_source)
        return Mixture(streams, dealing=dealing, phase=phase)

    def batch_at(self, step: int, rows: range) -> Batch:
        """Returns the given rows of the batch of `step`, which counts over all phases.

        The concatenation of consecutive ranges is the batch, in whatever order they are computed.
        """
        index = bisect.bisect_right(self._phase_starts, step) - 1
        taken = self._mixtures[index].take(step - self._phase_starts[index], rows)
        return self._made(index, taken)

    def fill(self, phase_index: int) -> packing.Fill:
        """Returns the mean sequences and tokens of a packed row of a phase."""
        streams = self._mixtures[phase_index].streams
        each = list(zip(self._shares[phase_index], streams, strict=True))
        return packing.Fill(
            sum(part * stream.unit_examples / stream.unit_rows for part, stream in each),
            sum(part * stream.unit_tokens / stream.unit_rows for part, stream in each),
        )

    def shares(self, phase_index: int) -> dict[str, float]:
        """Returns the share of each source in the rows of a phase; empty if there is one source."""
        each = dict(zip(self._sources, self._shares[phase_index], strict=True))
        return each if len(each) > 1 else {}

    def epochs(self, step: int) -> dict[str, float]:
        """Returns the number of epochs of each source in the batches before `step`, over all
        phases. The name of a single source is "".
        """
        found = dict.fromkeys(self._sources, 0.0)
        for phase, mixture, begin in zip(
            self._phases, self._mixtures, self._phase_starts, strict=True
        ):
            rows = mixture.rows_before(min(max(step - begin, 0), phase.steps)).tolist()
            for name, stream, count in zip(found, mixture.streams, rows, strict=True):
                found[name] += count / stream.epoch_rows if count else 0.0
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
