"""The rows of a corpus before anything is trained: the share of padding, each sequence alone and
packed, and how often the phases of a run go over each source. And those that a run comes to again,
or passes over, where its config changes within a phase.
"""

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from bert_jax.config import DataConfig, PhaseConfig, TrainConfig
from bert_jax.config.entries import entry_of
from bert_jax.config.source_shares import shares
from bert_jax.data.corpus.store import Corpus, Split
from bert_jax.data.pretraining import packing
from bert_jax.data.pretraining.dealing import Dealing
from bert_jax.data.pretraining.epochs import decisive
from bert_jax.errors import some


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


class SourceRows(NamedTuple):
    """One source of a corpus in one phase of a run."""

    name: str
    share: float  # of the rows of the phase
    rows: int
    epochs: float  # that these are
    epoch: Padding  # of one epoch, of the documents that were looked at


def source_rows(
    config: TrainConfig, corpus: Corpus, number: int, *, most_documents: int = 0
) -> list[SourceRows]:
    """Returns what the phase of a number has of each source; of a corpus without sources, which is
    one that has no name.

    `most_documents` is as for `padding`. Raises UsageError where a source makes no rows, or
    weights are not those of the sources.
    """
    options, phase = config.in_phase(number).data, config.phases[number]
    splits = {name: source.train for name, source in corpus.sources.items()}
    splits = splits or {"": corpus.train}
    parts = shares(options, {name: split.tokens for name, split in splits.items()})
    rows = Dealing(parts, phase.global_batch_size).before(np.array([phase.steps]))[0].tolist()
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
    """Returns the split with so many documents of its middle alone, or all of fewer."""
    there = split.document_starts.size - 1
    first = max(0, (there - documents) // 2)
    starts = split.document_starts[first : first + documents + 1]
    return dataclasses.replace(
        split,
        document_starts=starts - starts[0],
        sentence_starts=split.sentence_starts[starts[0] : starts[-1] + 1],
    )


def note_of_moved_rows(
    before: TrainConfig, after: TrainConfig, step: int, tokens: Mapping[str, int]
) -> str | None:
    """Returns what to say of a run that goes on from `step` with another config; None where its
    rows are the next ones, or all of its phase's rows are others.

    `tokens` are those that the sources train on, by their names; empty where there is one corpus.
    """
    number = after.phase_of(step)
    if number >= len(before.phases) or _plan(before, number) != _plan(after, number):
        return None
    had, has = (_rows_before(config, number, step, tokens) for config in (before, after))
    moved = {name: has[name] - had[name] for name in has}
    again = [_said(name, -rows) for name, rows in moved.items() if rows < 0]
    passed_over = [_said(name, rows) for name, rows in moved.items() if rows > 0]
    if not again and not passed_over:
        return None
    parts = [f"{some(again)} come again"] if again else []
    parts += [f"{some(passed_over)} are passed over"] if passed_over else []
    return (
        f"phase {number}: its rows are numbered as if it had begun with this batch and these "
        f"shares: {', and '.join(parts)}. A phase of its own from step {step} on has no such rows"
    )


def _said(name: str, rows: int) -> str:
    return f"{rows:,} rows of {name}" if name else f"{rows:,} rows"


def _plan(config: TrainConfig, number: int) -> str:
    """Returns what decides the rows of a phase, but for how many of them a batch has."""
    return decisive(config.in_phase(number).data, config.phases[number], config.seed)


def _rows_before(
    config: TrainConfig, number: int, step: int, tokens: Mapping[str, int]
) -> dict[str, int]:
    """Returns how many rows of a phase each source has had before a step."""
    phase = config.phases[number]
    steps = step - (config.phase_ends[number] - phase.steps)
    dealing = Dealing(shares(config.in_phase(number).data, tokens), phase.global_batch_size)
    rows = dealing.before(np.array([min(max(steps, 0), phase.steps)]))[0].tolist()
    return dict(zip(tokens or ("",), rows, strict=True))
