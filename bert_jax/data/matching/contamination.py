"""Text of test sets in the sources: documents that have a run of words in common with them.

13 words in a row, as GPT-3 looked for its tests (Brown et al. 2020, arXiv:2005.14165, appendix C).
A record of 8 to 12 words is looked for whole, and a shorter one not at all: it would be found in
text that knows nothing of the test.
"""

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bert_jax.data.matching.shingles import shingles, words
from bert_jax.data.sources.read import read_documents
from bert_jax.data.sources.stream import SourceOptions
from bert_jax.errors import UsageError

WORDS, FEWEST = 13, 8
EXAMPLES = 10
_SHOWN = 80  # characters of a document that are kept to be shown


class _Runs(NamedTuple):
    hashes: np.ndarray  # uint64, ascending
    records: np.ndarray  # the number of the record that each is of


class Contamination:
    """The runs of words of test sets, and which of them were found."""

    def __init__(self, sources: Sequence[str], reading: SourceOptions) -> None:
        """Reads the records of the test sets; of plain text, each line is one.

        Raises UsageError where there are none to look for, or they cannot be read.
        """
        reading = dataclasses.replace(reading, document="line", is_held_out=True)
        self.sources = tuple(sources)
        self.records: Counter[str] = Counter()  # of each source
        self.short: Counter[str] = Counter()  # those that are too short to be looked for
        self._source_of: list[str] = []
        self._found: set[int] = set()
        self.dropped: list[tuple[str, str]] = []  # the first: a test set, and how the text begins
        runs: dict[int, list[np.ndarray]] = {}
        records: dict[int, list[np.ndarray]] = {}
        for source in sources:
            for document in read_documents((source,), reading):
                self.records[source] += 1
                of_record = words("\n".join(document))
                length = min(WORDS, len(of_record))
                if length < FEWEST:
                    self.short[source] += 1
                    continue
                found = np.unique(shingles(of_record, length))
                runs.setdefault(length, []).append(found)
                number = np.full(len(found), len(self._source_of))
                records.setdefault(length, []).append(number)
                self._source_of.append(source)
        if not runs:
            raise UsageError(
                f"`decontaminate` {', '.join(sources)}: no record has {FEWEST} words or more, and "
                "shorter ones are not looked for"
            )
        self._runs: dict[int, _Runs] = {}
        digest = hashlib.sha256()
        for length in sorted(runs):
            hashes, numbers = np.concatenate(runs[length]), np.concatenate(records[length])
            order = np.argsort(hashes, kind="stable")
            self._runs[length] = _Runs(hashes[order], numbers[order])
            digest.update(np.unique(hashes).tobytes())
        # Equal for test sets in which the same runs of words are looked for.
        self.hash = digest.hexdigest()

    def is_in(self, text: bytes) -> bool:
        """Returns whether a document, in UTF-8, has a run of words of a test set."""
        decoded = text.decode()
        of_text = words(decoded)
        found: set[int] = set()
        for length, runs in self._runs.items():
            if len(of_text) < length:
                continue
            looked_for = np.unique(shingles(of_text, length))
            first = np.searchsorted(runs.hashes, looked_for, side="left")
            last = np.searchsorted(runs.hashes, looked_for, side="right")
            for a, b in zip(first[last > first], last[last > first], strict=True):
                found.update(runs.records[a:b].tolist())
        if found and len(self.dropped) < EXAMPLES:
            self.dropped.append((self._source_of[min(found)], decoded[:_SHOWN]))
        self._found |= found
        return bool(found)

    def counts(self) -> dict[str, dict[str, int]]:
        """Returns of each test set how many records it has, were looked for, and were found."""
        found = Counter(self._source_of[number] for number in self._found)
        return {
            source: {
                "records": self.records[source],
                "looked_for": self.records[source] - self.short[source],
                "found": found[source],
            }
            for source in self.sources
        }
