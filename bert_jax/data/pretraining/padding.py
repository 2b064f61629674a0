"""The share of padding in the rows of a corpus, each sequence alone and packed."""

import dataclasses
from typing import NamedTuple

from bert_jax.config import DataConfig, PhaseConfig
from bert_jax.config.entries import entry_of
from bert_jax.data.corpus.store import Split
from bert_jax.data.pretraining import packing


class Padding(NamedTuple):
    """Shares of the tokens in the rows of one epoch, and how many rows there are."""

    sequences: int
    packed_rows: int
    unpacked: float
    packed: float


def padding(
    split: Split, *, options: DataConfig, phase: PhaseConfig, seed: int, most_documents: int = 0
) -> Padding:
    """Returns the padding of the rows that `phase` has in its first epoch.

    `most_documents` above 0 looks at so many in the middle of the split. Takes seconds for a
    thousand million tokens. Raises UsageError where the split makes no rows of that length.
    """
    kind, length = entry_of(options, "rows"), phase.sequence_length
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


def middle(split: Split, documents: int) -> Split:
    """Returns the split with so many documents of its middle alone, or all of fewer."""
    there = split.document_starts.size - 1
    first = max(0, (there - documents) // 2)
    starts = split.document_starts[first : first + documents + 1]
    return dataclasses.replace(
        split,
        document_starts=starts - starts[0],
        sentence_starts=split.sentence_starts[starts[0] : starts[-1] + 1],
    )
