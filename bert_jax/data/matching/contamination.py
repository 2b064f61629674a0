"""Finds documents that contain text of test sets, by common word n-grams.

N-grams of 13 words, as in GPT-3's test for contamination (Brown et al. 2020, arXiv:2005.14165,
appendix C). A record of 8 to 12 words must match as a whole. Shorter records are skipped, because
unrelated text would match. In scripts without spaces, a word counts as two characters (Chinese,
Japanese) or four (Thai, Khmer, ...), since 13 characters are an everyday phrase.
"""

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from bert_jax.data.language import scripts
from bert_jax.data.matching.shingles import shingles, words
from bert_jax.data.sources.read import read_documents
from bert_jax.data.sources.stream import TESTS, SourceOptions
from bert_jax.errors import UsageError

WORDS, FEWEST = 13, 8


class _Runs(NamedTuple):
    hashes: np.ndarray  # uint64, ascending
    records: np.ndarray  # the number of the record of each hash


class Contamination:
    """The word n-grams of test sets; records are numbered over all test sets."""

    def __init__(self, sources: Sequence[str], reading: SourceOptions) -> None:
        """Reads the records of the test sets; each line of plain text is a record. From a folder
        with splits, all splits but `train` are read.

        Raises UsageError if no record is long enough, or if a record cannot be read: skipping it
        would leave its text in the corpus.
        """
        reading = dataclasses.replace(reading, document="line", splits=TESTS, skips_records=False)
        self.sources = tuple(sources)
        self.records: Counter[str] = Counter()  # of each source
        self.short: Counter[str] = Counter()  # records that are too short to match
        self.source_of: list[str] = []  # of each record that can match
        runs: dict[int, list[np.ndarray]] = {}
        records: dict[int, list[np.ndarray]] = {}
        for source in sources:
            for document in read_documents((source,), reading):
                self.records[source] += 1
                text = "\n".join(document)
                of_record, a_word = words(text), _characters_of_a_word(text)
                length = min(WORDS * a_word, len(of_record))
                if length < FEWEST * a_word:
                    self.short[source] += 1
                    continue
                found = np.unique(shingles(of_record, length))
                runs.setdefault(length, []).append(found)
                number = np.full(len(found), len(self.source_of))
                records.setdefault(length, []).append(number)
                self.source_of.append(source)
        if not runs:
            raise UsageError(
                f"`decontaminate` {', '.join(sources)}: no record has {FEWEST} words or more, and "
                "shorter records are skipped"
            )
        self._runs: dict[int, _Runs] = {}
        digest = hashlib.sha256()
        for length in sorted(runs):
            hashes, numbers = np.concatenate(runs[length]), np.concatenate(records[length])
            order = np.argsort(hashes, kind="stable")
            self._runs[length] = _Runs(hashes[order], numbers[order])
            digest.update(np.unique(hashes).tobytes())
        # Equal for test sets with the same n-grams.
        self.hash = digest.hexdigest()

    def records_in(self, text: bytes) -> set[int]:
        """Returns the numbers of the records that share an n-gram with a document in UTF-8."""
        of_text = words(text.decode())
        found: set[int] = set()
        for length, runs in self._runs.items():
            if len(of_text) < length:
                continue
            looked_for = np.unique(shingles(of_text, length))
            first = np.searchsorted(runs.hashes, looked_for, side="left")
            last = np.searchsorted(runs.hashes, looked_for, side="right")
            for a, b in zip(first[last > first], last[last > first], strict=True):
                found.update(runs.records[a:b].tolist())
        return found

    def counts(self, found: Iterable[int]) -> dict[str, dict[str, int]]:
        """Returns for each test set the numbers of records, of compared and of found records."""
        of_source = Counter(self.source_of[number] for number in found)
        return {
            source: {
                "records": self.records[source],
                "looked_for": self.records[source] - self.short[source],
                "found": of_source[source],
            }
            for source in self.sources
        }


def _characters_of_a_word(text: str) -> int:
    if not scripts.is_mostly_spaceless(text):
        return 1
    found = scripts.count(text)
    run_together = sum(found.get(name, 0) for name in scripts.RUN_TOGETHER)
    return 4 if 2 * run_together > sum(found.values()) else 2
