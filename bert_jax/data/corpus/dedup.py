"""The documents of the sources as `prepare` takes them: once each, and on a side of the split.

Decided in one process, of all documents in their order, from what `survey.py` found of them.
"""

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from bert_jax.data.corpus.store import SPLITS
from bert_jax.data.corpus.survey import Found, Lowest, Place, Unit
from bert_jax.data.sources.stream import Findings
from bert_jax.errors import UsageError

# A part of a shard has at least so much text: where shards end depends on it.
PART_BYTES = 4 << 20
# A larger share to hold out is not proposed.
_MOST_HELD_OUT = 0.2
# What is decided of a document: its side, and this times the number of sides.
_KEPT, _DUPLICATE, _NEAR_DUPLICATE, _CONTAMINATED = range(4)


class Order(NamedTuple):
    """The documents of a unit that are encoded, and where parts end."""

    decisions: bytes  # one of each document: below the number of sides, it is kept, on that side
    first_part: dict[str, int]  # the number of the part that goes on with the unit
    ends: dict[str, list[int]]  # the numbers, in the unit, of the documents that end a part
    digest: bytes  # SHA-256 of the digests of all documents


class Survey:
    """Decides which documents are kept, and on which side, and counts what it saw.

    Duplicates, and which side a document is on, go by its words (`identity.py`). Where there are
    sources that are `held_out`, they are the validation side, whole, and nothing is drawn; they are
    taken first, so that what they hold is dropped elsewhere. `known` are documents that are there
    already, as `digests` of a Survey gives them. `budget` is how much text the tokenizer's sample
    has, in bytes. `findings` is what the readers left out or doubted.
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
        self.sources = tuple(sources)
        self.findings = Findings()
        self.documents = dict.fromkeys(SPLITS, 0)
        # Documents that were dropped, by the reason.
        self.duplicates = dict.fromkeys(SPLITS, 0)
        self.near_duplicates = dict.fromkeys(SPLITS, 0)
        self.contaminated = dict.fromkeys(SPLITS, 0)
        # Of each document with text of a test set how it begins, and the records that it has.
        self.found_in: list[tuple[str, set[int]]] = []
        self.text_bytes = 0  # of the documents that are kept
        self.sample = Lowest(budget)
        self.places: dict[int, Place] = {}  # of texts that are written down
        self.starts = [0]  # the number of the first document of each unit, and of all
        self._held_out = tuple(held_out)
        self._fraction = validation_fraction
        self._hash = hashlib.sha256()
        self._seen = HashSet(known)
        self._decisions: list[np.ndarray] = []  # of each unit, a byte a document
        self._sizes: list[np.ndarray] = []
        self._unit_hashes: list[bytes] = []
        # The two lowest and the two highest draws: which fractions would give either side two.
        self._lowest, self._highest = [1.0, 1.0], [0.0, 0.0]

    @property
    def source_hash(self) -> str:
        """Returns the hash of all documents that were read, in their order."""
        return self._hash.hexdigest()

    @property
    def total(self) -> int:
        """Returns how many documents were read."""
        return self.starts[-1]

    def take(self, unit: Unit, found: Found) -> np.ndarray:
        """Takes what was found in the next unit. Returns which documents are kept, as places."""
        digests = found.digests.tobytes()
        self._hash.update(digests)
        self._unit_hashes.append(hashlib.sha256(digests).digest())
        self.findings.add(found.findings)
        draws = found.draws / 2.0**48
        is_held_out = (
            np.full(len(draws), unit.is_held_out) if self._held_out else draws < self._fraction
        )
        decisions = is_held_out.astype(np.uint8)
        is_new = self._seen.add(found.words)
        decisions[~is_new] += _DUPLICATE * len(SPLITS)
        for number, (beginning, records) in found.records.items():
            if is_new[number]:
                self.found_in.append((beginning, records))
                decisions[number] += _CONTAMINATED * len(SPLITS)
        for reason in (_KEPT, _DUPLICATE, _CONTAMINATED):
            for side, split in enumerate(SPLITS):
                count = int((decisions == side + reason * len(SPLITS)).sum())
                self._counts(reason)[split] += count
        kept = np.flatnonzero(decisions < len(SPLITS))
        self._lowest = sorted([*self._lowest, *np.sort(draws[kept])[:2].tolist()])[:2]
        self._highest = sorted([*self._highest, *np.sort(draws[kept])[-2:].tolist()])[-2:]
        self.text_bytes += int(found.sizes[kept].sum())
        self._decisions.append(decisions)
        self._sizes.append(found.sizes.copy())
        self._choose(found, np.flatnonzero(decisions == SPLITS.index("train")))
        self.starts.append(self.total + len(decisions))
        return kept

    def _choose(self, found: Found, places: np.ndarray) -> None:
        """Takes training documents for the sample."""
        if self.sample.highest is not None:
            places = places[found.priorities[places] <= self.sample.highest]
        for at in places.tolist():
            number = self.total + at
            if (place := found.texts.get(at)) is not None:
                self.places[number] = place
            digest, size = found.digests[at].tobytes(), int(found.sizes[at])
            for gone in self.sample.add(int(found.priorities[at]), digest, size, number):
                self.places.pop(gone, None)

    def _counts(self, reason: int) -> dict[str, int]:
        return (self.documents, self.duplicates, self.near_duplicates, self.contaminated)[reason]

    def drop_near_duplicates(self, numbers: Iterable[int]) -> None:
        """Decides once more of documents that were kept."""
        for number in numbers:
            unit = int(np.searchsorted(self.starts, number, side="right")) - 1
            decisions, at = self._decisions[unit], number - self.starts[unit]
            side = SPLITS[decisions[at]]
            self.documents[side] -= 1
            self.near_duplicates[side] += 1
            decisions[at] += _NEAR_DUPLICATE * len(SPLITS)

    def orders(self) -> list[Order]:
        """Returns of each unit what is to be encoded of it.

        The documents of a side, of all units, are cut into parts where PART_BYTES are full.
        """
        orders: list[Order] = []
        begun, parts = dict.fromkeys(SPLITS, 0), dict.fromkeys(SPLITS, 0)
        for decisions, sizes, known in zip(
            self._decisions, self._sizes, self._unit_hashes, strict=True
        ):
            order = Order(decisions.tobytes(), {}, {}, known)
            for side, split in enumerate(SPLITS):
                where = np.flatnonzero(decisions == side)
                ends = begun[split] + np.cumsum(sizes[where], dtype=np.int64)
                order.first_part[split], order.ends[split] = parts[split], []
                done = 0
                while (at := int(np.searchsorted(ends, done + PART_BYTES))) < len(ends):
                    order.ends[split].append(int(where[at]))
                    done = int(ends[at])
                parts[split] += len(order.ends[split])
                begun[split] = int(ends[-1] if len(ends) else begun[split]) - done
            orders.append(order)
        return orders

    @property
    def found_records(self) -> set[int]:
        """Returns the records of test sets that were found."""
        return set().union(*(records for _, records in self.found_in))

    @property
    def digests(self) -> np.ndarray:
        """Returns what the documents are known by that came for the first time: uint64, sorted."""
        return self._seen.added()

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
