"""Text of test sets in the sources: documents that have a run of words in common with them.

13 words in a row, as GPT-3 looked for its tests (Brown et al. 2020, arXiv:2005.14165, appendix C).
A record of 8 to 12 words is looked for whole, and a shorter one not at all: it would be found in
text that knows nothing of the test. Where no spaces are between words, one is taken to have two
characters (Chinese, Japanese) or four (Thai, Khmer, ...): 13 characters are an everyday phrase.
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
    records: np.ndarray  # the number of the record that each is of


class Contamination:
    """The runs of words of test sets, whose records are numbered over all of them."""

    def __init__(self, sources: Sequence[str], reading: SourceOptions) -> None:
        """Reads the records of the test sets; of plain text, each line is one. Of a folder that has
        splits, all but `train` are read.

        Raises UsageError where there are none to look for, or they cannot be read: a record that
        may be left out of a text would here be one that stays in it.
        """
        reading = dataclasses.replace(reading, document="line", splits=TESTS, skips_records=False)
        self.sources = tuple(sources)
        self.records: Counter[str] = Counter()  # of each source
        self.short: Counter[str] = Counter()  # those that are too short to be looked for
        self.source_of: list[str] = []  # of each record that is looked for
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

    def records_in(self, text: bytes) -> set[int]:
        """Returns the numbers of the records of which a document, in UTF-8, has a run of words."""
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
        """Returns of each test set how many records it has, were looked for, and were found."""
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
