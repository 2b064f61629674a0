"""Documents that are nearly another one: MinHash finds pairs to look at, and their words decide.

Two documents are compared by the runs of five words in them: their Jaccard similarity is the share
of common runs among all. A document is dropped where it is at least as similar as asked for to one
that comes before it and stays. The signatures (Broder 1997) are those of the package `rensa`; they
are cut into bands, and two documents that agree in a band are looked at (Leskovec, Rajaraman and
Ullman, "Mining of Massive Datasets", section 3.4), by a reading of the sources of its own.
"""

import importlib.util
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from bert_jax.data import counter_rng
from bert_jax.data.matching.identity import beginning
from bert_jax.data.matching.shingles import shingles, words
from bert_jax.errors import UsageError, install_command

WORDS = 5
_SEED = 1
# Rows of a band by the similarity asked for, and how many bands: a pair that is just as similar is
# looked at with a chance of 0.998 and more, 1 - (1 - similarity ** rows) ** bands.
_BANDS = ((0.9, 10, 20), (0.8, 6, 24), (0.7, 4, 28), (0.5, 3, 64), (0.3, 2, 72))
FEWEST_ALIKE = _BANDS[-1][0]
# Documents are signed together that have so many runs of words.
_TOGETHER = 1 << 20
# So many that agree in a band and stay are compared with the next.
_COMPARED = 100


class Near(NamedTuple):
    """A document to drop: its number, how it begins, how the one before it does that it is nearly,
    and how similar they are.
    """

    number: int
    text: str
    other: str
    similarity: float


class NearDuplicates:
    """Looks at documents twice: `add` takes all, `find` takes those again that are `shared`.

    A document is its number, which ascends, and its text in UTF-8.
    """

    def __init__(self, similarity: float) -> None:
        """Raises UsageError where the package is not installed."""
        self.similarity = similarity
        self._rows, self._bands = next((r, b) for s, r, b in _BANDS if similarity >= s)
        self._numbers: list[int] = []
        self._waiting: list[np.ndarray] = []
        self._waiting_runs = 0
        self._keys: list[np.ndarray] = []  # uint64 [documents, bands]
        require_rensa()

    def add(self, number: int, text: bytes) -> None:
        self._numbers.append(number)
        runs = runs_of(text)
        self._waiting.append(runs)
        self._waiting_runs += len(runs)
        if self._waiting_runs >= _TOGETHER:
            self._sign()

    def signed(self) -> np.ndarray:
        """Returns what was taken since, for `extend` in another process: uint64 [documents, bands].

        It is forgotten here.
        """
        if self._waiting:
            self._sign()
        keys = np.concatenate([*self._keys, np.empty((0, self._bands), np.uint64)])
        self._keys, self._numbers = [], []
        return keys

    def extend(self, numbers: Iterable[int], keys: np.ndarray) -> None:
        """Takes documents that were signed elsewhere, as `add` does."""
        self._numbers += numbers
        self._keys.append(keys)

    @cached_property
    def shared(self) -> dict[int, list[int]]:
        """Returns the documents that may be alike: those whose texts `find` needs."""
        return self._shared_keys()

    def find(self, documents: Iterable[tuple[int, bytes]]) -> Iterator[Near]:
        """Yields those to drop; `documents` are those of `shared`, or more, in order."""
        keys, beginnings = self.shared, dict[int, str]()

        def shared() -> Iterator[tuple[int, Sequence[int], np.ndarray]]:
            for number, text in documents:
                if number in keys:
                    beginnings[number] = beginning(text)
                    yield number, keys[number], runs_of(text)

        for number, other, similarity in nearly(shared(), self.similarity):
            yield Near(number, beginnings.pop(number), beginnings[other], similarity)

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

    def _shared_keys(self) -> dict[int, list[int]]:
        """Returns, of each document that agrees with another one in some band, the keys of these
        bands.
        """
        if self._waiting:
            self._sign()
        found: dict[int, list[int]] = defaultdict(list)
        if not self._keys:
            return found
        numbers, keys = np.array(self._numbers), np.concatenate(self._keys)
        self._keys = []
        for band in keys.T:
            _, where, counts = np.unique(band, return_inverse=True, return_counts=True)
            for at in np.flatnonzero(counts[where] > 1):
                found[int(numbers[at])].append(int(band[at]))
        return found


def nearly(
    documents: Iterable[tuple[int, Iterable[int], np.ndarray]], similarity: float
) -> Iterator[tuple[int, int, float]]:
    """Yields documents to drop, with the one before it that each nearly is, and how similar they
    are.

    A document is its number, its keys and its runs of words; two that share no key are not
    compared.
    """
    kept: dict[int, np.ndarray] = {}
    there: defaultdict[int, list[int]] = defaultdict(list)  # by key, those that stay
    for number, keys, all_runs in documents:
        keys, runs = [*keys], np.unique(all_runs)
        for other in dict.fromkeys(n for key in keys for n in there[key][-_COMPARED:]):
            if (found := jaccard(runs, kept[other])) >= similarity:
                yield number, other, found
                break
        else:
            kept[number] = runs
            for key in keys:
                there[key].append(number)


def runs_of(text: bytes) -> np.ndarray:
    """Returns a hash of each run of words of a text in UTF-8: uint64."""
    return shingles(words(text.decode()), WORDS)


def jaccard(a: np.ndarray, b: np.ndarray) -> float:
    """Returns the share of common elements of two sets, sorted arrays without repetition."""
    common = len(np.intersect1d(a, b, assume_unique=True))
    return common / (len(a) + len(b) - common) if common else 0.0


def require_rensa() -> None:
    """Raises UsageError where the package that signs documents is not installed."""
    if importlib.util.find_spec("rensa") is None:
        raise UsageError(f"`near_duplicates` needs rensa: {install_command('rensa')}")
