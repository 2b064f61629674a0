"""Describes a corpus to make, and the values that pass between the stages of `pipeline.py`.

Stages exchange numbers, digests and names of files, never text. Larger values are files in the
job's folder, each complete or absent, with a name that its content or its unit determines. A stage
may therefore run several times, on any machine, also concurrently.
"""

import dataclasses
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from bert_jax.data.corpus.folder import PARTS, Folder
from bert_jax.data.corpus.options import CorpusOptions
from bert_jax.data.matching.contamination import Contamination
from bert_jax.data.sources.document import Continuation
from bert_jax.data.sources.read import Reader, readers_of
from bert_jax.data.sources.stream import HELD_OUT, SourceOptions
from bert_jax.errors import UsageError
from bert_jax.versions import installed

# Small files are read together, in units of this size.
UNIT_BYTES = 4 << 20
# The text of a split is divided into parts of this size; a document belongs to the part in which it
# begins. Shards contain whole parts, so these sizes decide where shards end.
PART_BYTES = 4 << 20
SHARD_TOKENS = 32 << 20
# The size of the tokenizer's training sample.
SAMPLE_BYTES = 64 << 20
# Units per range of hashes, and the largest number of ranges.
_UNITS_PER_RANGE, _MOST_RANGES = 64, 1024


# A document in a range of hashes: its number in its unit, and its split.
HASHED = np.dtype([("hash", "<u8"), ("number", "<u4"), ("split", "u1")])
NO_SPLIT = 255


@dataclass(frozen=True)
class Unit:
    """Files that one process reads in sequence. Can be pickled."""

    number: int
    readers: tuple[Reader, ...]
    is_held_out: bool

    def texts(self, without: Iterable[str]) -> Iterator[bytes]:
        """Yields the texts of the unit in UTF-8, except those of the files named in `without`.

        Raises UsageError if a file cannot be read.
        """
        left_out = {*without}
        for reader in self.readers:
            if reader.name not in left_out:
                for text, _ in texts_of(reader):
                    yield text


def texts_of(reader: Reader, findings: Any = None) -> Iterator[tuple[bytes, bool]]:
    """Yields the documents of a file in UTF-8, and whether each continues the one before it."""
    for document in reader.documents(findings):
        yield "\n".join(document).encode(), isinstance(document, Continuation)


def units_of(sources: Iterable[tuple[Sequence[str], SourceOptions]], unit_bytes: int) -> list[Unit]:
    """Returns the units of sources, in their order.

    A unit contains files of at least `unit_bytes` in total, or one file of unknown size.
    """
    units: list[Unit] = []
    for names, reading in sources:
        waiting: list[Reader] = []
        size = 0
        for reader in readers_of(names, reading):
            waiting.append(reader)
            size += reader.size or unit_bytes
            if size >= unit_bytes:
                units.append(Unit(len(units), tuple(waiting), reading.splits == HELD_OUT))
                waiting, size = [], 0
        if waiting:
            units.append(Unit(len(units), tuple(waiting), reading.splits == HELD_OUT))
    return units


@dataclass(frozen=True, kw_only=True)
class Job:
    """A requested corpus, and the place where it is made. Can be pickled."""

    options: CorpusOptions
    output: Folder
    described: Mapping[str, Any]  # the options as corpus.json keeps them
    by_character: bool  # one token per character: documents are compared exactly
    contamination: Contamination | None = None
    ranges: int = 1  # of hashes; the duplicates of each range are found at once
    # A unique name, so that files written by a late worker of an earlier attempt are not read.
    attempt: str = field(default_factory=lambda: secrets.token_hex(8))
    # Copies of the module's sizes, so that every process uses the sizes of the command.
    part_bytes: int = field(default_factory=lambda: PART_BYTES)
    shard_tokens: int = field(default_factory=lambda: SHARD_TOKENS)
    sample_bytes: int = field(default_factory=lambda: SAMPLE_BYTES)
    versions: Mapping[str, str | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.versions:
            names = ["bert-jax", "sentencex", "sentencepiece", "tokenizers"]
            names += ["rensa"] if self.options.dedup_threshold is not None else []
            object.__setattr__(self, "versions", {n: installed(n).get(n) for n in names})

    def cut(self, reading: SourceOptions) -> "tuple[Job, list[Unit]]":
        """Returns the units of the sources, and the job with the number of ranges for them."""
        units = units_of(self.options.of_sources(reading), UNIT_BYTES)
        ranges = max(1, min(_MOST_RANGES, len(units) // _UNITS_PER_RANGE))
        return dataclasses.replace(self, ranges=ranges), units

    @property
    def folder(self) -> Folder:
        """Returns the folder of the files that the stages write, also for later attempts."""
        return self.output / PARTS

    @property
    def pieces(self) -> Folder:
        """Returns the folder of the encoded pieces, which a later attempt reuses."""
        return self.folder / "pieces"

    @property
    def scratch(self) -> Folder:
        """Returns the folder of this attempt."""
        return self.folder / f"try-{self.attempt}"

    @property
    def tokenizer(self) -> Folder:
        """Returns the folder of the corpus's tokenizer."""
        return self.output / "tokenizer"

    def require_versions(self) -> None:
        """Raises UsageError if this machine's packages differ from those of the command."""
        for name, theirs in self.versions.items():
            if (ours := installed(name).get(name)) != theirs:
                raise UsageError(
                    f"a worker has {name} {ours}, but the command has {theirs}, and the version "
                    "decides the bytes of the corpus: install the same version on the workers"
                )


class Hashes(NamedTuple):
    """Documents of a unit with hashes in one range, in the order of their numbers."""

    unit: int
    rows: bytes  # HASHED

    @staticmethod
    def of_unit(
        job: Job,
        unit: int,
        numbers: np.ndarray,
        hashes: np.ndarray,
        splits: np.ndarray | int = NO_SPLIT,
    ) -> "list[tuple[int, Hashes]]":
        """Returns the hashes of documents of a unit by range. Ranges ascend as hashes do."""
        rows = np.empty(len(hashes), HASHED)
        rows["hash"], rows["number"], rows["split"] = hashes, numbers, splits
        return [(of, Hashes(unit, rows[at].tobytes())) for of, at in by_range(job, hashes)]

    @staticmethod
    def joined(several: "Iterable[Hashes]") -> tuple[np.ndarray, np.ndarray]:
        """Returns units, int64 [documents], and HASHED [documents], sorted by hash; equal hashes in
        the order of the sources.
        """
        found = [*several]
        rows = np.frombuffer(b"".join(each.rows for each in found), HASHED)
        sizes = [len(each.rows) // HASHED.itemsize for each in found]
        units = np.repeat(np.array([each.unit for each in found], np.int64), sizes)
        order = np.lexsort((rows["number"], units, rows["hash"]))
        return units[order], rows[order]


def by_range(job: Job, hashes: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Yields each range that contains some of the hashes, and the indices of these hashes."""
    top = hashes >> np.uint64(32)
    where = (top * np.uint64(job.ranges) >> np.uint64(32)).astype(np.int64)
    for of in np.unique(where).tolist():
        yield of, np.flatnonzero(where == of)


def by_unit(units: np.ndarray, values: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Yields each unit, and the values of its documents."""
    order = np.argsort(units, kind="stable")
    found, starts = np.unique(units[order], return_index=True)
    return zip(found.tolist(), np.split(values[order], starts)[1:], strict=True)
