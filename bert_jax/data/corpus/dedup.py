"""The documents of the sources as `prepare` takes them: once each, and on a side of the split.

Decided in one process, of all documents in their order, from what `survey.py` found of them.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from bert_jax.data.corpus.store import SPLITS
from bert_jax.data.corpus.survey import Found, Lowest, Place, Unit
from bert_jax.data.sources.stream import Findings
from bert_jax.errors import UsageError

# Shards have whole parts of so much text: where they end depends on it.
PART_BYTES = 4 << 20
# A larger share to hold out is not proposed.
_MOST_HELD_OUT = 0.2
# What is decided of a document: its side, and this times the number of sides.
_KEPT, _DUPLICATE, _NEAR_DUPLICATE, _CONTAMINATED = range(4)


class Order(NamedTuple):
    """The documents of a unit that are encoded, and the parts that they lie in."""

    decisions: bytes  # one of each document: below the number of sides, it is kept, on that side
    # Of each side: the number, in the unit, of a part's last document there -> that of the part.
    parts: dict[str, dict[int, int]]
    digest: bytes  # SHA-256 of the digests of all documents


def decide(unit: Unit, found: Found, is_new: np.ndarray, fraction: float | None) -> np.ndarray:
    """Returns what becomes of the documents of a unit: uint8 [documents].

    `is_new` says which are no duplicates of earlier ones. Of those a `fraction` is drawn for the
    validation side; with None, the unit is on one side, whole.
    """
    if fraction is None:
        decisions = np.full(len(found.draws), unit.is_held_out, np.uint8)
    else:
        decisions = (found.draws / 2.0**48 < fraction).astype(np.uint8)
    decisions[~is_new] += _DUPLICATE * len(SPLITS)
    contaminated = [number for number in found.records if is_new[number]]
    decisions[contaminated] += _CONTAMINATED * len(SPLITS)
    return decisions


def kept_bytes(decisions: np.ndarray, sizes: np.ndarray) -> dict[str, int]:
    """Returns how much text of either side is kept of a unit."""
    return {split: int(sizes[decisions == side].sum()) for side, split in enumerate(SPLITS)}


def order_of(
    decisions: np.ndarray, sizes: np.ndarray, begun: Mapping[str, int], digest: bytes
) -> Order:
    """Returns what is to be encoded of a unit, before which `begun` bytes of either side are kept.

    The text of a side, of all units, is cut into parts of PART_BYTES: a document belongs to the one
    that it begins in.
    """
    parts: dict[str, dict[int, int]] = {}
    for side, split in enumerate(SPLITS):
        (where,) = np.nonzero(decisions == side)
        starts = begun[split] + np.cumsum(sizes[where], dtype=np.int64) - sizes[where]
        part = starts // PART_BYTES
        last = np.append(part[1:] != part[:-1], [True])[: len(part)]
        parts[split] = dict(zip(where[last].tolist(), part[last].tolist(), strict=True))
    return Order(decisions.tobytes(), parts, digest)


class Totals:
    """Counts of the documents of some units, or of all.

    `sources` are those of the command, and `held_out` those that are the validation side.
    """

    def __init__(self, sources: Sequence[str], held_out: Sequence[str] = ()) -> None:
        self.sources, self._held_out = tuple(sources), tuple(held_out)
        self.findings = Findings()  # what the readers left out or doubted
        self.total = 0  # documents that were read
        self.documents = dict.fromkeys(SPLITS, 0)
        # Documents that were dropped, by the reason.
        self.duplicates = dict.fromkeys(SPLITS, 0)
        self.near_duplicates = dict.fromkeys(SPLITS, 0)
        self.contaminated = dict.fromkeys(SPLITS, 0)
        # Of each document with text of a test set how it begins, and the records that it has.
        self.found_in: list[tuple[str, set[int]]] = []
        self.text_bytes = 0  # of the documents that are kept
        # The two lowest and the two highest draws: which fractions would give either side two.
        self._lowest, self._highest = [1.0, 1.0], [0.0, 0.0]

    def count(self, found: Found, decisions: np.ndarray) -> None:
        """Counts the next unit."""
        self.findings.add(found.findings)
        self.total += len(decisions)
        for reason, counts in (
            (_KEPT, self.documents),
            (_DUPLICATE, self.duplicates),
            (_CONTAMINATED, self.contaminated),
        ):
            for side, split in enumerate(SPLITS):
                counts[split] += int((decisions == side + reason * len(SPLITS)).sum())
        contaminated = decisions // len(SPLITS) == _CONTAMINATED
        self.found_in += [found.records[n] for n in found.records if contaminated[n]]
        kept = decisions < len(SPLITS)
        draws = np.sort(found.draws[kept] / 2.0**48)
        self._extremes(draws[:2].tolist(), draws[-2:].tolist())
        self.text_bytes += sum(kept_bytes(decisions, found.sizes).values())

    def count_near_duplicates(self, decisions: np.ndarray, places: np.ndarray) -> None:
        """Drops documents of a unit that was counted, which are kept in its decisions."""
        for side, split in enumerate(SPLITS):
            dropped = int((decisions[places] == side).sum())
            self.documents[split] -= dropped
            self.near_duplicates[split] += dropped
        decisions[places] += _NEAR_DUPLICATE * len(SPLITS)

    def add(self, other: "Totals") -> None:
        """Adds the counts of units that come after these."""
        self.findings.add(other.findings)
        self.total += other.total
        for name in ("documents", "duplicates", "near_duplicates", "contaminated"):
            mine, theirs = getattr(self, name), getattr(other, name)
            mine.update({split: mine[split] + theirs[split] for split in SPLITS})
        self.found_in += other.found_in
        self.text_bytes += other.text_bytes
        self._extremes(other._lowest, other._highest)

    def _extremes(self, lowest: list[float], highest: list[float]) -> None:
        self._lowest = sorted([*self._lowest, *lowest])[:2]
        self._highest = sorted([*self._highest, *highest])[-2:]

    @property
    def parts(self) -> int:
        """Returns how many parts are full."""
        return self.text_bytes // PART_BYTES

    @property
    def found_records(self) -> set[int]:
        """Returns the records of test sets that were found."""
        return set().union(*(records for _, records in self.found_in))

    def require_text(self) -> None:
        """Raises UsageError where no document was read."""
        if not self.total:
            raise UsageError(f"{', '.join(self.sources)}: empty: no document with text")

    def check(self, documents: Mapping[str, int]) -> None:
        """Refuses a split in which a document has no other; `documents` are those of each side."""
        where = ", ".join(self.sources)
        total = sum(documents[split] for split in SPLITS)
        if total == 0:
            raise UsageError(f"{where}: empty: no document with text")
        if total == 1:
            raise UsageError(
                f"{where}: only one document; next-sentence pairs need another document. "
                "Documents in .txt files are separated by a blank line; `document` line makes one "
                "of each line, `document` file of each file"
            )
        for split in SPLITS:
            if documents[split] < 2:
                enough = math.floor(100 * self._lowest[1] + 1) / 100
                if self._held_out:
                    where = ", ".join(self._held_out) if split == "validation" else where
                    remedy = "more documents are needed"
                elif enough <= min(self._highest[0], _MOST_HELD_OUT):
                    remedy = f"`validation_fraction` {enough} would do"
                else:
                    remedy = (
                        "name held-out text with `validation_source`, or make more documents: "
                        "`document` line makes one of each line of .txt files"
                    )
                raise UsageError(
                    f"{where}: {split} would get {documents[split]} of {total} documents and needs "
                    f"at least 2: {remedy}"
                )


class Survey(Totals):
    """Decides which documents are kept, and on which side, and counts what it saw.

    Duplicates, and which side a document is on, go by its words (`identity.py`). Where there are
    sources that are `held_out`, they are the validation side, whole, and nothing is drawn; they are
    taken first, so that what they hold is dropped elsewhere. `known` are documents that are there
    already, as `digests` of a Survey gives them. `budget` is how much text the tokenizer's sample
    has, in bytes.
    """

    def __init__(
        self,
        sources: Sequence[str],
        *,
        validation_fraction: float,
        held_out: Sequence[str] = (),
        known: np.ndarray | None = None,
        budget: int = 0,
    ) -> None:
        super().__init__(sources, held_out)
        self.sample = Lowest(budget)
        self.places: dict[int, Place] = {}  # of texts that are written down
        self.starts = [0]  # the number of the first document of each unit, and of all
        self._fraction = None if held_out else validation_fraction
        self._hash = hashlib.sha256()
        self._seen = HashSet(known)
        self._decisions: list[np.ndarray] = []  # of each unit, a byte a document
        self._sizes: list[np.ndarray] = []
        self._unit_hashes: list[bytes] = []

    @property
    def source_hash(self) -> str:
        """Returns the hash of all documents that were read, in their order."""
        return self._hash.hexdigest()

    def take(self, unit: Unit, found: Found) -> np.ndarray:
        """Takes what was found in the next unit. Returns which documents are kept, as places."""
        digests = found.digests.tobytes()
        self._hash.update(digests)
        self._unit_hashes.append(hashlib.sha256(digests).digest())
        decisions = decide(unit, found, self._seen.add(found.words), self._fraction)
        self.count(found, decisions)
        self._decisions.append(decisions)
        self._sizes.append(found.sizes.copy())
        self._choose(found, np.flatnonzero(decisions == SPLITS.index("train")))
        self.starts.append(self.total)
        return np.flatnonzero(decisions < len(SPLITS))

    def _choose(self, found: Found, places: np.ndarray) -> None:
        """Takes training documents for the sample."""
        if self.sample.highest is not None:
            places = places[found.priorities[places] <= self.sample.highest]
        for at in places.tolist():
            number = self.starts[-1] + at
            if (place := found.texts.get(at)) is not None:
                self.places[number] = place
            digest, size = found.digests[at].tobytes(), int(found.sizes[at])
            for gone in self.sample.add(int(found.priorities[at]), digest, size, number):
                self.places.pop(gone, None)

    def drop_near_duplicates(self, numbers: Sequence[int]) -> None:
        """Decides once more of documents that were kept."""
        found = np.array(numbers, np.int64)
        units = np.searchsorted(self.starts, found, side="right") - 1
        for unit in np.unique(units).tolist():
            places = found[units == unit] - self.starts[unit]
            self.count_near_duplicates(self._decisions[unit], places)

    def orders(self) -> list[Order]:
        """Returns of each unit what is to be encoded of it."""
        orders: list[Order] = []
        begun = dict.fromkeys(SPLITS, 0)
        for decisions, sizes, digest in zip(
            self._decisions, self._sizes, self._unit_hashes, strict=True
        ):
            orders.append(order_of(decisions, sizes, begun, digest))
            for split, size in kept_bytes(decisions, sizes).items():
                begun[split] += size
        return orders

    @property
    def digests(self) -> np.ndarray:
        """Returns what the documents are known by that came for the first time: uint64, sorted."""
        return self._seen.added()


class HashSet:
    """A set of 64-bit hashes at 8 bytes each, where Python's own takes a hundred.

    Among a hundred million documents, two different ones share a hash with a chance of 3 in 10,000.
    """

    def __init__(self, known: np.ndarray | None = None) -> None:
        """`known` are hashes that are there from the beginning: uint64, sorted."""
        self._known = np.empty(0, np.uint64) if known is None else known
        self._runs: list[np.ndarray] = []  # sorted, each more than twice as long as the next

    def add(self, values: np.ndarray) -> np.ndarray:
        """Returns which of the values were not there, nor before them among these: bool."""
        unique, first = np.unique(values, return_index=True)
        is_new = np.ones(len(unique), bool)
        for run in (self._known, *self._runs):
            at = np.searchsorted(run, unique)
            inside = at < len(run)
            is_new[inside] &= run[at[inside]] != unique[inside]
        run = unique[is_new]
        while self._runs and len(self._runs[-1]) <= 2 * len(run):
            run = np.concatenate([self._runs.pop(), run])
            run.sort(kind="stable")  # merges two sorted runs
        self._runs.append(run)
        found = np.zeros(len(values), bool)
        found[first[is_new]] = True
        return found

    def added(self) -> np.ndarray:
        """Returns the hashes that were added, sorted: uint64."""
        return np.sort(np.concatenate([*self._runs, np.empty(0, np.uint64)]))
