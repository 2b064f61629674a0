"""The documents of the sources as `prepare` takes them: once each, and on a side of the split."""

import dataclasses
import hashlib
import heapq
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bert_jax.data.corpus.store import SPLITS
from bert_jax.data.matching.contamination import Contamination
from bert_jax.data.matching.identity import beginning, identify
from bert_jax.data.sources.document import Continuation, Document
from bert_jax.data.sources.read import read_documents
from bert_jax.data.sources.stream import Findings, SourceOptions
from bert_jax.errors import UsageError


@dataclass(frozen=True)
class SourceDocument:
    """A document on its way to the encoders."""

    text: bytes  # UTF-8, paragraphs separated by newlines
    digest: bytes  # of the text
    split: str
    priority: int  # a seeded draw: the lowest are the tokenizer's sample; 0 where nothing is drawn
    number: int = 0  # among all that were read


# A larger share to hold out is not proposed.
_MOST_HELD_OUT = 0.2
# What is decided of a document: its side, and this times the number of sides.
_KEPT, _DUPLICATE, _NEAR_DUPLICATE, _CONTAMINATED = range(4)


class Survey:
    """Reads sources, drops duplicates, splits by seeded hash, and counts what it saw.

    Duplicates, and which side a document is on, go by its words (`identity.py`). `decided` are the
    decisions of an earlier reading, which are taken again: to find a document's words takes as long
    as to read it. Where there are sources that are `held_out`, they are the validation side, whole,
    and nothing is drawn; they are read first, so that what they hold is dropped elsewhere. `known`
    are documents that are there already, as `digests` of a Survey gives them. What `contamination`
    finds is dropped, too. `findings` is what the readers left out or doubted.
    """

    def __init__(
        self,
        sources: Sequence[str],
        *,
        validation_fraction: float,
        seed: int,
        reading: SourceOptions | None = None,
        decided: bytes | None = None,
        held_out: Sequence[str] = (),
        known: np.ndarray | None = None,
        contamination: Contamination | None = None,
    ) -> None:
        self.sources = tuple(sources)
        self.findings = Findings()
        self._held_out = tuple(held_out)
        self._reading = reading
        self.documents = dict.fromkeys(SPLITS, 0)
        # Documents that were dropped, by the reason.
        self.duplicates = dict.fromkeys(SPLITS, 0)
        self.near_duplicates = dict.fromkeys(SPLITS, 0)
        self.contaminated = dict.fromkeys(SPLITS, 0)
        # Of each document with text of a test set how it begins, and the records that it has.
        self.found_in: list[tuple[str, set[int]]] = []
        self._contamination = contamination
        self._fraction = validation_fraction
        self._salt = seed.to_bytes(8, "little")
        self._hash = hashlib.sha256()
        self._seen = HashSet(known)
        self._again = decided
        self._decisions = bytearray()  # one for each document that was read
        self._drawn = bytes(16)
        # The two lowest and the two highest draws: which fractions would give either side two.
        self._lowest, self._highest = [1.0, 1.0], [0.0, 0.0]

    @property
    def source_hash(self) -> str:
        """Returns the hash of all documents that were read, in their order."""
        return self._hash.hexdigest()

    def read(self) -> Iterator[SourceDocument]:
        """Yields every document when it comes for the first time.

        Raises UsageError for sources that are not there, or that have changed since the decisions.
        """
        for number, (document, is_held_out) in enumerate(self._documents()):
            text = "\n".join(document).encode()
            digest = hashlib.blake2b(text, digest_size=16).digest()
            self._hash.update(digest)
            if self._again is None:
                decision = self._decide(text, isinstance(document, Continuation), is_held_out)
                self._decisions.append(decision)
                priority = int.from_bytes(self._drawn[8:], "little")
            elif number < len(self._again):
                decision, priority = self._again[number], 0
            else:
                raise self.changed()
            reason, side = divmod(decision, len(SPLITS))
            self._counts(reason)[SPLITS[side]] += 1
            if reason == _KEPT:
                yield SourceDocument(text, digest, SPLITS[side], priority, number)

    def _counts(self, reason: int) -> dict[str, int]:
        return (self.documents, self.duplicates, self.near_duplicates, self.contaminated)[reason]

    def drop_near_duplicates(self, numbers: Iterable[int]) -> None:
        """Decides once more of documents that were kept."""
        for number in numbers:
            side = SPLITS[self._decisions[number]]
            self.documents[side] -= 1
            self.near_duplicates[side] += 1
            self._decisions[number] += _NEAR_DUPLICATE * len(SPLITS)

    def _documents(self) -> Iterator[tuple[Document, bool]]:
        """Yields documents, and whether their source is held out."""
        reading = self._reading or SourceOptions()
        if self._held_out:
            held_out = dataclasses.replace(reading, is_held_out=True)
            for document in read_documents(self._held_out, held_out, findings=self.findings):
                yield document, True
        for document in read_documents(self.sources, reading, findings=self.findings):
            yield document, False

    def _decide(self, text: bytes, goes_on: bool, is_held_out: bool) -> int:
        """Returns the number of a document's side, and with it whether and why it is dropped."""
        identity = identify(text)
        if not goes_on:  # else it lies where its beginning does
            self._drawn = hashlib.blake2b(identity.side, digest_size=16, salt=self._salt).digest()
        draw = int.from_bytes(self._drawn[:6], "little") / 2**48
        side = int(is_held_out if self._held_out else draw < self._fraction)
        if not self._seen.add(int.from_bytes(identity.words[:8], "little")):
            return side + _DUPLICATE * len(SPLITS)
        if self._contamination and (records := self._contamination.records_in(text)):
            self.found_in.append((beginning(text), records))
            return side + _CONTAMINATED * len(SPLITS)
        if draw < self._lowest[1]:
            self._lowest = sorted([self._lowest[0], draw])
        if draw > self._highest[0]:
            self._highest = sorted([self._highest[1], draw])
        return side

    @property
    def found_records(self) -> set[int]:
        """Returns the records of test sets that were found."""
        return set().union(*(records for _, records in self.found_in))

    @property
    def decisions(self) -> bytes:
        """Returns one byte for each document that was read, for a second reading."""
        return bytes(self._decisions)

    @property
    def digests(self) -> np.ndarray:
        """Returns what the documents are known by that came for the first time: uint64, sorted."""
        return self._seen.added()

    def changed(self) -> UsageError:
        """Returns the error for sources that are not what an earlier reading found."""
        where = ", ".join(self.sources)
        return UsageError(f"{where}: changed while they were read; run the same command again")

    def require_text(self) -> None:
        """Raises UsageError where no document was read."""
        if not self._decisions:
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

    _RECENT = 1 << 20

    def __init__(self, known: np.ndarray | None = None) -> None:
        """`known` are hashes that are there from the beginning: uint64, sorted."""
        none = np.empty(0, np.uint64)
        self._known = none if known is None else known
        self._sorted = none
        self._recent: set[int] = set()

    def add(self, value: int) -> bool:
        """Returns false where it was there already."""
        if value in self._recent:
            return False
        for there in (self._sorted, self._known):
            if len(there):
                at = int(np.searchsorted(there, np.uint64(value)))
                if at < len(there) and int(there[at]) == value:
                    return False
        self._recent.add(value)
        if len(self._recent) == self._RECENT:
            recent = np.sort(np.fromiter(self._recent, np.uint64, self._RECENT))
            self._sorted = np.concatenate([self._sorted, recent])
            self._sorted.sort(kind="stable")  # merges two sorted runs
            self._recent.clear()
        return True

    def added(self) -> np.ndarray:
        """Returns the hashes that were added, sorted: uint64."""
        recent = np.fromiter(self._recent, np.uint64, len(self._recent))
        return np.sort(np.concatenate([self._sorted, recent]))


def sample(documents: Iterable[SourceDocument], *, budget: int) -> list[SourceDocument]:
    """Returns the training documents of lowest priority, up to and with the one that fills the
    budget.

    `budget` is in bytes of text, and bounds the memory. The same documents in another order give
    the same sample in the same order.
    """
    heap: list[tuple[int, bytes, SourceDocument]] = []  # the highest priority on top
    size = 0
    for document in documents:
        if document.split == "train":
            heapq.heappush(heap, (-document.priority, document.digest, document))
            size += len(document.text)
            while heap and size - len(heap[0][2].text) >= budget:
                size -= len(heapq.heappop(heap)[2].text)
    return [document for _, _, document in sorted(heap, key=lambda entry: entry[:2], reverse=True)]
