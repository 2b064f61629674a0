"""Caches the ids of chunks of text between spaces. Valid only for BERT's WordPiece.

BERT's normalizer considers one character, or a letter and its marks, and a space always ends a
word. The ids of a sentence are therefore the concatenated ids of its chunks, and most chunks of a
text occur repeatedly.
"""

import re
from array import array
from collections.abc import Callable, Iterable
from itertools import chain

import numpy as np

# The largest number of cached chunks (about 30 MB); a full cache is cleared.
_MOST_CHUNKS = 200_000
# In a script without spaces a chunk is a whole sentence, which rarely repeats.
_LONGEST_CHUNK = 32  # characters, on average
# This chunk marks the end of a sentence, and this id the end of its ids.
_END, _END_ID = "\n", -1
# In printable ASCII each run of letters and digits is a word, and each other sign is a word.
_WORDS = re.compile(r"[0-9A-Za-z]+|[^0-9A-Za-z]")


class ChunkCache:
    """Encodes sentences as `encode` does, faster the more of their words are cached."""

    def __init__(
        self, encode: Callable[[list[str]], list[list[int]]], tokens: Iterable[str]
    ) -> None:
        """`encode` returns the ids of texts, each independent of the others. `tokens`, which
        contain no spaces, are matched before the text is split into words.
        """
        self._encode = encode
        self._tokens = [token.lower() for token in tokens]
        self._known = _empty()

    def encode(self, sentences: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Returns the concatenated ids of all sentences, and the length of each: int64."""
        text = f" {_END} ".join(sentences)
        chunks = [*text.split(" "), _END] if sentences else []
        has_line_end = text.count(_END) >= max(len(sentences), 1)  # a sentence contains one
        if has_line_end or len(text) > _LONGEST_CHUNK * (len(chunks) - len(sentences)):
            return flat(self._encode(sentences))
        if len(self._known) > _MOST_CHUNKS:
            self._known = _empty()
        known = self._known  # threads may share it: entries are only added
        self._learn(set(chunks).difference(known), known)
        ids = np.frombuffer(b"".join(map(known.__getitem__, chunks)), np.int32)
        is_end = ids == _END_ID
        (ends,) = np.nonzero(is_end)
        return ids[~is_end].astype(np.int64), np.diff(ends, prepend=-1) - 1

    def _learn(self, chunks: set[str], known: dict[str, bytes]) -> None:
        """Adds the ids of new chunks. A chunk with signs is encoded in parts, which repeat more."""
        signs = [*filter(_has_signs, chunks)]
        if self._has_token(" ".join(signs)):
            signs = [chunk for chunk in signs if not self._has_token(chunk)]
        parts = [*map(_WORDS.findall, signs)]
        words = chunks.difference(signs).union(chain.from_iterable(parts))
        new = [*words.difference(known)]
        known.update(zip(new, map(_packed, self._encode(new)), strict=True))
        for chunk, pieces in zip(signs, parts, strict=True):
            known[chunk] = b"".join(map(known.__getitem__, pieces))

    def _has_token(self, text: str) -> bool:
        text = text.lower()
        return any(token in text for token in self._tokens)


def _has_signs(chunk: str) -> bool:
    return len(chunk) > 1 and chunk.isascii() and not chunk.isalnum() and chunk.isprintable()


def _empty() -> dict[str, bytes]:
    return {_END: _packed([_END_ID])}


def _packed(ids: list[int]) -> bytes:
    return array("i", ids).tobytes()


def flat(ids: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the concatenated ids of all sentences, and the length of each: int64."""
    lengths = np.fromiter(map(len, ids), np.int64, len(ids))
    return np.fromiter(chain.from_iterable(ids), np.int64, int(lengths.sum())), lengths
