"""Marks on letters, and the number of marks that a text loses if accents are stripped as in BERT.

Stripping accents decomposes a text (NFD) and drops characters of the category Mn: accents, but also
the vowels of Thai and Hindi, and the mark that distinguishes が from か.
"""

import functools
import unicodedata
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bert_jax.data.language import scripts

_LINES_AT_ONCE = 8192
_ASCII = bytes(range(128))
# They select a glyph variant and do not belong to a letter.
_VARIATION_SELECTORS = {*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0)}


class MarkCounts(NamedTuple):
    """The number of words, and of words that would lose a mark.

    In scripts without spaces each letter, with its marks, counts as a word.
    """

    total: int
    losing: int
    # Three words that would lose a mark.
    examples: tuple[str, ...]


def lost(text: str) -> int:
    """Returns the number of marks that a text loses if accents are stripped."""
    counts = Counter(text.encode().translate(None, _ASCII).decode())
    return sum(_marks(ord(character)) * count for character, count in counts.items())


def words(lines: Sequence[str]) -> MarkCounts:
    """Counts the words that would lose a mark."""
    total = losing = 0
    examples: dict[str, None] = {}
    for start in range(0, len(lines), _LINES_AT_ONCE):
        text = "\n".join(lines[start : start + _LINES_AT_ONCE])
        points = scripts.points(text)
        kinds = np.zeros(int(points.max(initial=0)) + 1, np.uint8)
        for point in np.flatnonzero(np.bincount(points)).tolist():
            character = chr(point)
            is_mark = unicodedata.category(character) in ("Mn", "Mc")
            kinds[point] = character.isspace() + 2 * is_mark + 4 * (_marks(point) > 0)
        kind = kinds[points]
        begins = (kind & 1) == 0
        after_space = np.append(True, ~begins[:-1])
        spaceless = scripts.is_spaceless(points)
        changes = spaceless | np.append(False, spaceless[:-1])
        begins &= after_space | (changes & ((kind & 2) == 0))
        first = np.flatnonzero(begins)
        if not first.size:
            continue
        loses = np.logical_or.reduceat((kind & 4) > 0, first)
        total += first.size
        losing += int(loses.sum())
        for word in np.flatnonzero(loses)[:50].tolist():
            if len(examples) == 3:
                break
            end = first[word + 1] if word + 1 < first.size else len(text)
            examples[text[first[word] : end].strip()] = None
    return MarkCounts(total, losing, tuple(examples))


@functools.cache
def _marks(point: int) -> int:
    """Returns the number of marks of a character that are stripped."""
    if point < 0x80 or point in _VARIATION_SELECTORS or 0xD800 <= point < 0xE000:
        return 0
    parts = unicodedata.normalize("NFD", chr(point))
    return sum(unicodedata.category(part) == "Mn" for part in parts)
