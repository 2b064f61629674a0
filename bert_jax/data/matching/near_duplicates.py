"""Drops near duplicates: MinHash finds candidate pairs, and their word n-grams decide.

The similarity of two documents is the Jaccard similarity of their word 5-grams. A document is
dropped if its similarity to an earlier document that is kept reaches the threshold. The signatures
(Broder 1997) are computed by the package `rensa`. They are divided into bands, and two documents
that agree in a band are compared (Leskovec, Rajaraman and Ullman, "Mining of Massive Datasets",
section 3.4).
"""

import importlib.util
from collections import defaultdict
from collections.abc import Iterable, Iterator

import numpy as np

from bert_jax.data import counter_rng
from bert_jax.data.matching.shingles import shingles, words
from bert_jax.errors import UsageError, install_command

WORDS = 5
_SEED = 1
# Threshold, rows per band and number of bands: a pair at the threshold is compared with a
# probability of at least 0.998, which is 1 - (1 - similarity ** rows) ** bands.
_BANDS = ((0.9, 10, 20), (0.8, 6, 24), (0.7, 4, 28), (0.5, 3, 64), (0.3, 2, 72))
FEWEST_ALIKE = _BANDS[-1][0]
# The number of n-grams for which signatures are computed at once.
_TOGETHER = 1 << 20
# The most kept documents in a band with which the next document is compared.
_COMPARED = 100


class Signer:
    """Computes the keys of documents: two documents with a common key are compared."""

    def __init__(self, similarity: float) -> None:
        self._rows, self._bands = next((r, b) for s, r, b in _BANDS if similarity >= s)
        self._waiting: list[np.ndarray] = []
        self._waiting_runs = 0
        self._keys = [np.empty((0, self._bands), np.uint64)]

    def add(self, text: bytes) -> None:
        """Adds the next document, in UTF-8."""
        runs = runs_of(text)
        self._waiting.append(runs)
        self._waiting_runs += len(runs)
        if self._waiting_runs >= _TOGETHER:
            self._sign()

    def signed(self) -> np.ndarray:
        """Returns the keys of all documents: uint64 [documents, bands]."""
        if self._waiting:
            self._sign()
        return np.concatenate(self._keys)

    def _sign(self) -> None:
        from rensa import RMinHash

        rows = np.cumsum([0, *map(len, self._waiting)], dtype=np.uint64)
        hashes = np.concatenate([*self._waiting, np.empty(0, np.uint64)])
        size = self._rows * self._bands
        signed = RMinHash.digest_matrix_from_flat_token_hashes(hashes, rows, size, _SEED)
        digests = np.array(signed.to_rows(), np.uint64).reshape(-1, self._bands, self._rows)
        keys = counter_rng.bits(np.arange(self._bands, dtype=np.uint64)[None])
        for row in range(self._rows):
            keys = counter_rng.bits(keys, digests[:, :, row])
        self._keys.append(keys)
        self._waiting, self._waiting_runs = [], 0


def nearly(
    documents: Iterable[tuple[int, Iterable[int], np.ndarray]], similarity: float
) -> Iterator[int]:
    """Yields the numbers of the documents to drop.

    Each document is given as its number, keys and n-grams (`runs_of`), in the order of the sources.
    Two documents without a common key are not compared.
    """
    kept: dict[int, np.ndarray] = {}
    there: defaultdict[int, list[int]] = defaultdict(list)  # key -> kept documents
    for number, keys, all_runs in documents:
        keys, runs = [*keys], np.unique(all_runs)
        others = dict.fromkeys(n for key in keys for n in there[key][-_COMPARED:])
        if any(jaccard(runs, kept[other]) >= similarity for other in others):
            yield number
            continue
        kept[number] = runs
        for key in keys:
            there[key].append(number)


def runs_of(text: bytes) -> np.ndarray:
    """Returns a hash of each word n-gram of a text in UTF-8: uint64."""
    return shingles(words(text.decode()), WORDS)


def jaccard(a: np.ndarray, b: np.ndarray) -> float:
    """Returns the Jaccard similarity of two sets, given as sorted arrays without repetition."""
    common = len(np.intersect1d(a, b, assume_unique=True))
    return common / (len(a) + len(b) - common) if common else 0.0


def require_possible(similarity: float) -> None:
    """Raises UsageError for a similarity out of range, or if rensa is not installed."""
    if not FEWEST_ALIKE <= similarity <= 1:
        raise UsageError(
            f"`dedup_threshold` {similarity} must be between {FEWEST_ALIKE} and 1: it is the share "
            "of common word 5-grams above which documents are near duplicates"
        )
    if importlib.util.find_spec("rensa") is None:
        raise UsageError(f"`dedup_threshold` needs rensa: {install_command('rensa')}")
