"""Measures the rows of a corpus before training: the share of padding with and without packing, and
the number of epochs over each source.
"""

import dataclasses
from typing import NamedTuple

import numpy as np

from bert_jax.config import DataConfig, PhaseConfig, TrainConfig
from bert_jax.config.source_shares import shares
from bert_jax.data.corpus.store import Corpus, Split
from bert_jax.data.pretraining import packing
from bert_jax.data.pretraining.dealing import Dealing
from bert_jax.registry import SEQUENCE_FORMATS


class Padding(NamedTuple):
    """Shares of the tokens in the rows of one epoch, and the number of rows."""

    sequences: int
    packed_rows: int
    unpacked: float
    packed: float


def padding(
    split: Split, *, options: DataConfig, phase: PhaseConfig, seed: int, most_documents: int = 0
) -> Padding:
    """Returns the padding in the rows of the first epoch of `phase`.

    `most_documents` above 0 measures only as many documents, from the middle of the split. Takes
    seconds for a billion tokens. Raises UsageError if the split makes no rows of this length.
    """
    kind, length = SEQUENCE_FORMATS[options.sequence_format], phase.sequence_length
    kind.check(split, sequence_length=length)
    part = middle(split, most_documents) if most_documents else split
    lengths = kind.plan(part, options=options, sequence_length=length, key=seed).lengths
    packed = phase.resolved(options.masked_lm_prob, packing="best_fit")
    rows = len(packing.best_fit(lengths, length=length, most=packed.sequences))
    tokens = int(lengths.sum())
    return Padding(
        sequences=lengths.size,
        packed_rows=rows,
        unpacked=1 - tokens / (lengths.size * length),
        packed=1 - tokens / (rows * length),
    )


class SourceRows(NamedTuple):
    """One source of a corpus in one phase of a run."""

    name: str
    share: float  # of the rows of the phase
    rows: int
    epochs: float  # number of epochs that the phase's rows make
    epoch: Padding  # of one epoch, in the measured documents


def source_rows(
    config: TrainConfig, corpus: Corpus, number: int, *, most_documents: int = 0
) -> list[SourceRows]:
    """Returns the rows of each source in phase `number`; for a corpus without sources, one entry
    without a name.

    `most_documents` is passed to `padding`. Raises UsageError if a source makes no rows, or the
    weights do not name the sources.
    """
    options, phase = config.in_phase(number).data, config.phases[number]
    splits = {name: source.train for name, source in corpus.sources.items()}
    splits = splits or {"": corpus.train}
    parts = shares(options, {name: split.tokens for name, split in splits.items()})
    one_source = SEQUENCE_FORMATS[options.sequence_format].texts > 1
    dealing = Dealing(parts, phase.global_batch_size, one_source_per_batch=one_source)
    rows = dealing.before(np.array([phase.steps]))[0].tolist()
    found = []
    for (name, split), share, count in zip(splits.items(), parts, rows, strict=True):
        epoch = padding(
            split, options=options, phase=phase, seed=config.seed, most_documents=most_documents
        )
        looked_at = middle(split, most_documents) if most_documents else split
        each = epoch.sequences if options.packing == "none" else epoch.packed_rows
        epochs = count / (each * split.tokens / looked_at.tokens)
        found.append(SourceRows(name, share, count, epochs, epoch))
    return found


def middle(split: Split, documents: int) -> Split:
    """Returns only the middle `documents` documents of the split, or all if it has fewer."""
    there = split.document_starts.size - 1
    first = max(0, (there - documents) // 2)
    starts = split.document_starts[first : first + documents + 1]
    return dataclasses.replace(
        split,
        document_starts=starts - starts[0],
        sentence_starts=split.sentence_starts[starts[0] : starts[-1] + 1],
    )
