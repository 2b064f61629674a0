"""Hashes of word n-grams, for comparing texts that are not exactly equal.

Words are runs of letters, marks and digits, without case (NFKC). In scripts without spaces each
character is a word. NumPy handles a whole text at once: about 15 MB/s per core.
"""

import functools
import sys
import unicodedata

import numpy as np

from bert_jax.data import counter_rng
from bert_jax.data.language import scripts

# Odd, so that their powers keep all 64 bits.
_OF_LETTERS, _OF_WORDS = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD1342543DE82EF95)


def words(text: str) -> np.ndarray:
    """Returns a hash of each word, in order: uint64 `[words]`."""
    points = scripts.points(unicodedata.normalize("NFKC", text.casefold()))
    kind = _kinds()[points]
    is_letter = kind > 0
    before = np.concatenate([np.zeros(1, kind.dtype), kind[:-1]])
    # A word begins after a non-word character, and before and after a single-character word.
    begins = is_letter & ((before != 1) | (kind == 2))
    points, begins = points[is_letter], begins[is_letter]
    if not len(points):
        return np.empty(0, np.uint64)
    first = np.flatnonzero(begins)
    place = np.arange(len(points)) - np.repeat(first, np.diff(first, append=len(points)))
    letters = counter_rng.bits(0, points) * _powers(_OF_LETTERS, int(place.max()) + 1)[place]
    return counter_rng.bits(0, np.add.reduceat(letters, first))


def shingles(hashes: np.ndarray, length: int) -> np.ndarray:
    """Returns a hash of each run of `length` words, in order: uint64. A shorter text has one hash
    of all its words.
    """
    length = min(length, len(hashes))
    if not length:
        return hashes
    powers = _powers(_OF_WORDS, length)
    count = len(hashes) - length + 1
    found = np.zeros(count, np.uint64)
    for place, power in enumerate(powers):
        found += hashes[place : place + count] * power
    return counter_rng.bits(length, found)


def _powers(base: np.uint64, count: int) -> np.ndarray:
    return np.multiply.accumulate(np.full(count, base))


@functools.cache
def _kinds() -> np.ndarray:
    """Returns for each code point 1 if it is part of a word, 2 if it is a word, else 0: uint8."""
    kinds = np.array([unicodedata.category(chr(i))[0] in "LMN" for i in range(sys.maxunicode + 1)])
    spaceless = scripts.is_spaceless(np.arange(len(kinds), dtype=np.uint32))
    return kinds.astype(np.uint8) * np.where(spaceless, 2, 1).astype(np.uint8)
