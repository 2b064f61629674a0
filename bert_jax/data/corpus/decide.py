"""Decides which documents a corpus keeps, and in which split: each document once.

Duplicates and splits depend on the words of a document (`matching/identity.py`). The first document
in the order of the sources is kept; the sources of the validation split come first.
"""

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from bert_jax.data.corpus.job import Hashes, Job, Unit, by_range, by_unit
from bert_jax.data.corpus.look import Found
from bert_jax.data.corpus.store import SPLITS
from bert_jax.data.language.guess import note_other_language
from bert_jax.data.matching.contamination import FEWEST
from bert_jax.data.sources.columns import NO_COLUMN
from bert_jax.data.sources.stream import Findings
from bert_jax.errors import UsageError
from bert_jax.progress import note


class Fate(enum.IntEnum):
    """The decision about a document."""

    KEPT, DUPLICATE, NEAR_DUPLICATE, CONTAMINATED = range(4)


# The most bad files that are listed; the rest is only counted.
_LISTED = 100
# The size of the text from which the language is guessed.
_LOOKED_AT_BYTES = 1 << 20
# Per document: its split, as an index into SPLITS, and its `Fate`.
DECIDED = np.dtype([("split", "u1"), ("fate", "u1")])


# --- duplicates -----------------------------------------------------------------------------------


def _known_file(of: int) -> str:
    return f"known/{of:06}.u64"


def keep_known(job: Job, keys: Sequence[np.ndarray]) -> None:
    """Writes the keys of known corpora, by range: arrays of uint64."""
    if keys:
        together = np.unique(np.concatenate(keys))
        for of, at in by_range(job, together):
            job.scratch.write(_known_file(of), together[at].tobytes())


def duplicates(job: Job, of: int, several: Iterable[Hashes]) -> list[tuple[int, bytes]]:
    """Returns the numbers of the duplicates in one range by unit: uint32. Writes the new hashes of
    each split.

    Duplicates are all documents of a known corpus, and all but the first document, in the order of
    the sources, of each hash.
    """
    units, rows = Hashes.joined(several)
    hashes = rows["hash"]
    is_new = np.append(True, hashes[1:] != hashes[:-1])
    if job.options.known and job.scratch.has(_known_file(of)):
        is_new &= ~np.isin(hashes, np.frombuffer(job.scratch.read(_known_file(of)), np.uint64))
    for at, split in enumerate(SPLITS):
        keys = hashes[is_new & (rows["split"] == at)]
        job.scratch.write(f"keys/{split}/{of:06}.u64", keys.tobytes())
    lost = rows["number"][~is_new]
    return [(unit, numbers.tobytes()) for unit, numbers in by_unit(units[~is_new], lost)]


# --- units ----------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class Counts:
    """Counts of the documents of one unit or of all units."""

    # Documents by split and fate: int64 [splits, fates].
    documents: np.ndarray = field(default_factory=lambda: np.zeros((len(SPLITS), len(Fate)), int))
    # Bytes of the kept text: int64 [splits].
    kept_bytes: np.ndarray = field(default_factory=lambda: np.zeros(len(SPLITS), int))
    findings: Findings = field(default_factory=Findings)
    contaminated: set[int] = field(default_factory=set)  # matched records of test sets

    def add(self, other: "Counts") -> None:
        """Adds the counts of the next unit."""
        self.documents = self.documents + other.documents
        self.kept_bytes = self.kept_bytes + other.kept_bytes
        self.findings.add(other.findings)
        self.contaminated = self.contaminated | other.contaminated

    def of(self, fate: Fate) -> dict[str, int]:
        """Returns the number of documents of a fate by split."""
        return {split: int(self.documents[at, fate]) for at, split in enumerate(SPLITS)}

    @property
    def total(self) -> int:
        """Returns the number of documents that were read."""
        return int(self.documents.sum())


def _counts(found: Found, decided: np.ndarray) -> Counts:
    counts = Counts(findings=found.findings)
    for at in range(len(SPLITS)):
        fates = decided["fate"][decided["split"] == at]
        counts.documents[at] = np.bincount(fates, minlength=len(Fate))
        kept = (decided["split"] == at) & (decided["fate"] == Fate.KEPT)
        counts.kept_bytes[at] = found.documents["size"][kept].sum(dtype=np.int64)
    for number, records in found.contaminated.items():
        if decided["fate"][number] == Fate.CONTAMINATED:
            counts.contaminated |= {*records}
    return counts


def fates(found: Found, *lost: Iterable[bytes]) -> np.ndarray:
    """Returns the decisions about the documents of a unit: DECIDED [documents].

    `lost` are the numbers of its duplicates, and of its near duplicates: uint32.
    """
    decided = np.zeros(len(found.documents), DECIDED)
    decided["split"] = found.documents["split"]
    decided["fate"][np.array([*found.contaminated], np.int64)] = Fate.CONTAMINATED
    for fate, several in zip((Fate.DUPLICATE, Fate.NEAR_DUPLICATE), lost, strict=False):
        decided["fate"][np.frombuffer(b"".join(several), np.uint32)] = fate
    return decided


def decide(job: Job, number: int, _: Unit, *lost: Iterable[bytes]) -> list[tuple[int, Counts]]:
    """Writes the decisions about the documents of a unit. Returns counts."""
    found = Found.load(job, number)
    decided = fates(found, *lost)
    job.scratch.write(_file(number), decided.tobytes())
    return [(number, _counts(found, decided))]


def decided_of(job: Job, unit: int) -> np.ndarray:
    """Returns the decisions that `decide` wrote: DECIDED [documents]."""
    return np.frombuffer(job.scratch.read(_file(unit)), DECIDED)


def _file(unit: int) -> str:
    return f"decided/{unit:06}.u16"


# --- all units ------------------------------------------------------------------------------------


class Whole(NamedTuple):
    """The counts of all units, and the position of each unit's text."""

    counts: Counts
    begun: dict[int, tuple[int, ...]]  # unit -> bytes of each split that are kept before it


def begun(whole: Whole) -> list[tuple[int, tuple[int, ...]]]:
    """Returns the position of each unit's text."""
    return [*whole.begun.items()]


def require_two(job: Job, documents: Mapping[str, int], counts: Counts) -> None:
    """Raises UsageError for a split with fewer than two documents, since a next-sentence pair takes
    text from another document. `documents` is the number of documents by split.
    """
    where, total = ", ".join(job.options.source), sum(documents.values())
    if total == 0 and counts.total:
        dropped = ", ".join(
            f"{number:,} {fate.name.lower().replace('_', ' ')}"
            for fate in Fate
            if (number := sum(counts.of(fate).values()))
        )
        raise UsageError(f"{where}: all {counts.total:,} documents were dropped ({dropped})")
    if total == 0:
        raise UsageError(f"{where}: empty: no document contains text")
    if total == 1:
        raise UsageError(
            f"{where}: only one document; next-sentence pairs need another document. Documents in "
            ".txt files are separated by a blank line; `document_boundary` line "
            "makes one of each line, `document_boundary` file of each file"
        )
    for split, number in documents.items():
        if number < 2:
            # Documents are drawn: half of four are probably two.
            fraction, change = min(max(4 / total, 0.05), 0.5), ""
            if split == SPLITS[1] and total >= 4 and fraction > job.options.validation_fraction:
                change = f"change `validation_fraction`, for example to {fraction:.2g}, "
            raise UsageError(
                f"{where}: {split} would get {number} of {total} documents and needs at least 2: "
                f"add documents, {change}or name held-out text with `validation_source`"
            )


def assign(job: Job, lines: Iterable[tuple[int, Counts]]) -> Whole:
    """Returns the counts of all units, and the position of each unit's text.

    Raises UsageError for sources that cannot be read, and for too few documents.
    """
    whole = Whole(Counts(), {})
    for unit, counts in sorted(lines, key=lambda line: line[0]):
        whole.begun[unit] = tuple(whole.counts.kept_bytes.tolist())
        whole.counts.add(counts)
    _note_bad(job, whole.counts)
    if job.contamination is not None:
        for source, found in job.contamination.counts(whole.counts.contaminated).items():
            short = found["records"] - found["looked_for"]
            aside = f" ({short:,} with fewer than {FEWEST} words are skipped)" if short else ""
            share = f"{found['found']:,} of {found['records']:,}"
            note(f"{source}: {share} records occur in the text{aside}")
    require_two(job, whole.counts.of(Fate.KEPT), whole.counts)
    if job.options.language is None:
        beginnings = (Found.load(job, unit).beginning for unit in sorted(whole.begun)[:16])
        note_other_language("\n".join(beginnings)[:_LOOKED_AT_BYTES])
    return whole


def _note_bad(job: Job, counts: Counts) -> None:
    """Prints notes about files and records that are skipped.

    Raises UsageError if `on_bad_record` skip is not set, or if too many records are bad.
    """
    findings = counts.findings
    files = [*findings.files.values()]
    # `text_column`, which these errors name, is the fix.
    lacks_column = all(NO_COLUMN in why for why in files)
    if len(files) == 1 and not job.options.skips_bad_records:
        fix = "" if lacks_column else "; fix the file, or skip it with `on_bad_record` skip"
        raise UsageError(f"{files[0]}{fix}")
    if files:
        more = [f"  and {len(files) - _LISTED:,} more"] * (len(files) > _LISTED)
        listed = [f"  {why}" for why in files[:_LISTED]] + more
        if not job.options.skips_bad_records:
            fix = [] if lacks_column else ["fix them, or skip them with `on_bad_record` skip"]
            raise UsageError(f"{len(files):,} files cannot be read:", *listed, *fix)
        for line in (f"skipped {len(files):,} files that cannot be read:", *listed):
            note(line)
    bad = findings.records.total()
    if bad:
        total = bad + counts.total + findings.without_text
        limit = job.options.bad_record_limit
        listed = [
            f"  {number:,} in {name}; the first: {findings.first_bad[name]}"
            for name, number in findings.records.most_common(_LISTED)
        ]
        if bad > limit * total:
            raise UsageError(
                f"{bad:,} of {total:,} records cannot be read, a larger share than "
                f"`bad_record_limit` {limit:g}:",
                *listed,
            )
        for line in (f"skipped {bad:,} of {total:,} records that cannot be read:", *listed):
            note(line)


def parts_of(
    job: Job, found: Found, decided: np.ndarray, begun: Sequence[int]
) -> dict[str, dict[int, int]]:
    """Returns, for each split, the last document of each part (numbered in the unit) -> the part.

    `begun` bytes of each split are kept before the unit.
    """
    parts: dict[str, dict[int, int]] = {}
    for at, split in enumerate(SPLITS):
        (where,) = np.nonzero((decided["split"] == at) & (decided["fate"] == Fate.KEPT))
        sizes = found.documents["size"][where].astype(np.int64)
        part = (begun[at] + np.cumsum(sizes) - sizes) // job.part_bytes
        is_last = np.append(part[1:] != part[:-1], [True])[: len(part)]
        parts[split] = dict(zip(where[is_last].tolist(), part[is_last].tolist(), strict=True))
    return parts
