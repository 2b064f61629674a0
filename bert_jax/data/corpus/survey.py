"""The first reading of a unit of the sources: what decides which of its documents are kept.

In any process. What it returns has numbers and digests of documents, and no text.
"""

import hashlib
import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bert_jax.data.corpus.pool import count
from bert_jax.data.matching.contamination import Contamination
from bert_jax.data.matching.identity import beginning, identify
from bert_jax.data.matching.near_duplicates import NearDuplicates
from bert_jax.data.sources.document import Continuation
from bert_jax.data.sources.read import Reader, readers_of
from bert_jax.data.sources.stream import HELD_OUT, Findings, SourceOptions

# Small files are read together.
_UNIT_BYTES = 4 << 20
_COUNTED_AT_ONCE = 256
# A draw has so many bits, of which floating point holds all.
_DRAW = 2.0**48


@dataclass(frozen=True)
class Unit:
    """Files that one process reads, one after the other."""

    number: int
    readers: tuple[Reader, ...]
    is_held_out: bool

    @property
    def is_here(self) -> bool:
        """Returns whether this process alone can read it."""
        return any(reader.is_here for reader in self.readers)

    def without(self, names: frozenset[str]) -> "Unit":
        left = tuple(reader for reader in self.readers if reader.name not in names)
        return Unit(self.number, left, self.is_held_out)


def units_of(sources: Iterable[tuple[Sequence[str], SourceOptions]]) -> list[Unit]:
    """Returns the units of sources, in their order."""
    units: list[Unit] = []
    for names, reading in sources:
        waiting: list[Reader] = []
        size = 0
        for reader in readers_of(names, reading):
            waiting.append(reader)
            size += reader.size or _UNIT_BYTES
            if size >= _UNIT_BYTES:
                units.append(Unit(len(units), tuple(waiting), reading.splits == HELD_OUT))
                waiting, size = [], 0
        if waiting:
            units.append(Unit(len(units), tuple(waiting), reading.splits == HELD_OUT))
    return units


@dataclass(frozen=True)
class Looked:
    """The choices of a first reading, for all units."""

    fraction: float
    salt: bytes
    folder: Path
    budget: int  # bytes of text of the tokenizer's sample
    draws: bool  # else the unit says which side it is on
    skips_files: bool  # of a file that cannot be read to its end nothing is taken
    near_duplicates: float | None = None
    contamination: Contamination | None = None
    is_exact: bool = False  # case and signs tell documents apart (identity.py)


class Place(NamedTuple):
    """The place of a document's text in a file of texts."""

    file: Path
    offset: int
    size: int

    def read(self) -> bytes:
        with self.file.open("rb") as stream:
            stream.seek(self.offset)
            return stream.read(self.size)


@dataclass(kw_only=True)
class Found:
    """The findings of a unit; arrays have a row for each document."""

    findings: Findings
    digests: np.ndarray  # of the text, uint8 [documents, 16]
    words: np.ndarray  # equal for duplicates, uint64
    draws: np.ndarray  # of its side, uint64 below 2**48
    priorities: np.ndarray  # the lowest are the sample, uint64
    sizes: np.ndarray  # bytes of text, uint32
    records: dict[int, tuple[str, set[int]]]  # those with text of test sets: beginning, records
    keys: np.ndarray | None  # to find near duplicates by, uint64 [documents, bands]
    texts: dict[int, Place]  # of documents that may be in the sample


_ROW = np.dtype([("digest", "u1", 16), ("words", "<u8"), ("draw", "<u8"),
                 ("priority", "<u8"), ("size", "<u4")])  # fmt: skip


def look_through(looked: Looked, unit: Unit, highest: int | None) -> Found:
    """Reads a unit to its end. Of the sample, documents of priorities up to `highest` are kept."""
    findings = Findings()
    rows = bytearray()
    records: dict[int, tuple[str, set[int]]] = {}
    keys: list[np.ndarray] = []
    number = uncounted = 0
    alike = looked.near_duplicates
    with _Sampled(looked, unit.number, highest) as sampled:
        for reader in unit.readers:
            of_file = Findings()
            first, first_row = number, len(rows)
            near = None if alike is None else NearDuplicates(alike)
            drawn = bytes(16)
            for document in reader.documents(of_file):
                text = "\n".join(document).encode()
                identity = identify(text, is_exact=looked.is_exact)
                if not isinstance(document, Continuation):  # else it lies where its beginning does
                    drawn = hashlib.blake2b(
                        identity.side, digest_size=16, salt=looked.salt
                    ).digest()
                digest = hashlib.blake2b(text, digest_size=16).digest()
                rows += digest + identity.words[:8] + drawn[:6] + b"\0\0" + drawn[8:]
                rows += len(text).to_bytes(4, "little")
                if near is not None:
                    near.add(number - first, text)
                if looked.contamination and (found := looked.contamination.records_in(text)):
                    records[number] = beginning(text), found
                elif not unit.is_held_out and _may_be_trained_on(looked, drawn):
                    priority = int.from_bytes(drawn[8:], "little")
                    sampled.add(priority, digest, identity.words, number, text)
                number += 1
                uncounted += 1
                if uncounted == _COUNTED_AT_ONCE:
                    count(uncounted)
                    uncounted = 0
            if looked.skips_files and of_file.files:
                del rows[first_row:]
                records = {n: found for n, found in records.items() if n < first}
                sampled.forget(first)
                number = first
                findings.files |= of_file.files
                continue
            findings.add(of_file)
            if near is not None:
                keys.append(near.signed())
        texts = sampled.places()
    count(uncounted)
    table = np.frombuffer(bytes(rows), _ROW)
    return Found(
        findings=findings,
        digests=table["digest"],
        words=table["words"],
        draws=table["draw"],
        priorities=table["priority"],
        sizes=table["size"],
        records=records,
        keys=np.concatenate(keys) if keys else None,
        texts=texts,
    )


def _may_be_trained_on(looked: Looked, drawn: bytes) -> bool:
    draw = int.from_bytes(drawn[:6], "little") / _DRAW
    return not looked.draws or draw >= looked.fraction


class Lowest:
    """Documents of the lowest priority, up to and with the one that fills a budget of bytes.

    The same documents in another order give the same ones in the same order.
    """

    def __init__(self, budget: int) -> None:
        self._budget, self._size = budget, 0
        self._heap: list[tuple[int, bytes, int, int]] = []  # the highest priority on top

    def add(self, priority: int, digest: bytes, size: int, number: int) -> list[int]:
        """Returns the numbers of those that fell out."""
        heapq.heappush(self._heap, (-priority, digest, size, number))
        self._size += size
        out = []
        while self._heap and self._size - self._heap[0][2] >= self._budget:
            _, _, gone, of = heapq.heappop(self._heap)
            self._size -= gone
            out.append(of)
        return out

    @property
    def highest(self) -> int | None:
        """Returns the highest priority that another document may have; None while any may."""
        return -self._heap[0][0] if self._heap and self._size >= self._budget else None

    def numbers(self) -> list[int]:
        """Returns the numbers of the documents, the lowest priority first."""
        ordered = sorted(self._heap, key=lambda entry: entry[:2], reverse=True)
        return [number for _, _, _, number in ordered]


class _Sampled:
    """The texts of a unit that may be in the sample, on the disk."""

    def __init__(self, looked: Looked, unit: int, highest: int | None) -> None:
        self._file = looked.folder / f"{unit:06}.sample"
        self._budget, self._highest = looked.budget, highest
        self._lowest = Lowest(looked.budget)
        self._places: dict[int, tuple[int, int, bytes]] = {}
        self._words: set[bytes] = set()
        self._offset = 0

    def __enter__(self) -> "_Sampled":
        self._stream = self._file.open("wb") if self._budget else None
        return self

    def __exit__(self, *_: object) -> None:
        if self._stream is not None:
            self._stream.close()

    def add(self, priority: int, digest: bytes, words: bytes, number: int, text: bytes) -> None:
        limits = [h for h in (self._highest, self._lowest.highest) if h is not None]
        # Duplicates have one priority: where one is there, the other would be, too.
        if self._stream is None or priority > min(limits, default=priority) or words in self._words:
            return
        self._stream.write(text)
        self._places[number] = self._offset, len(text), words
        self._words.add(words)
        self._offset += len(text)
        for gone in self._lowest.add(priority, digest, len(text), number):
            self._words.discard(self._places.pop(gone)[2])

    def forget(self, first: int) -> None:
        """Forgets documents of these numbers and higher ones: of a file that cannot be read."""
        self._places = {n: place for n, place in self._places.items() if n < first}
        self._words = {words for _, _, words in self._places.values()}
        self._lowest = Lowest(self._budget)

    def places(self) -> dict[int, Place]:
        return {n: Place(self._file, at, size) for n, (at, size, _) in self._places.items()}


def gather(looked: Looked, unit: Unit, numbers: frozenset[int]) -> dict[int, Place]:
    """Writes the texts of some documents of a unit to a file. Returns their places."""
    file = looked.folder / f"{unit.number:06}.texts"
    last, offset = max(numbers), 0
    found: dict[int, Place] = {}
    with file.open("wb") as stream:
        for number, text in enumerate(texts_of(unit)):
            if number in numbers:
                stream.write(text)
                found[number] = Place(file, offset, len(text))
                offset += len(text)
            if number == last:
                break
    return found


def texts_of(unit: Unit) -> Iterator[bytes]:
    """Yields the texts of a unit that was looked through. Raises UsageError where it cannot be read
    any more.
    """
    for reader in unit.readers:
        for document in reader.documents():
            yield "\n".join(document).encode()
