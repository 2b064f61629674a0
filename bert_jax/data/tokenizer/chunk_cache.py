"""Ids of text by what stands between spaces, each of which is encoded once: BERT's WordPiece only.

Its normaliser looks at a character, or at a letter and its marks, and a space ends a word whatever
stands beside it. So the ids of a sentence are those of its chunks one after the other, and most
chunks of a text were there before.
"""

import re
from collections.abc import Callable, Iterable
from itertools import chain

import numpy as np

# When so many are known, they are forgotten: about 30 MB of a process, both together.
_MOST_CHUNKS, _MOST_WORDS = 1 << 16, 1 << 17
# In a script without spaces a chunk is a sentence, which does not come again.
_LONGEST_CHUNK = 32  # characters
_END = "\n"  # stands where a sentence ends, in the place of a chunk
_END_ID = -1
# Of printable ASCII, a run of letters and digits is a word, and so is each other sign.
_WORDS = re.compile(r"[0-9A-Za-z]+|[^0-9A-Za-z]")


class ChunkCache:
    """Encodes sentences as `encode` does, and the faster the more of their words are known."""

    def __init__(
        self, encode: Callable[[list[str]], list[list[int]]], tokens: Iterable[str]
    ) -> None:
        """`encode` gives the ids of texts, none of which knows another. `tokens`, which have no
        spaces, are found before text is cut into words.
        """
        self._encode = encode
        self._tokens = [token.lower() for token in tokens]
        self._is_cut = all(map(str.isascii, self._tokens))
        self._known: dict[str, tuple[int, ...]] = {}  # chunks
        self._words: dict[str, tuple[int, ...]] = {}  # of them

    def encode(self, sentences: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Returns the ids of all sentences, one after the other, and how many each has: int64."""
        text = f" {_END} ".join(sentences)
        chunks = [*text.split(" "), _END] if sentences else []
        has_line_end = text.count(_END) >= max(len(sentences), 1)  # one of them itself
        if has_line_end or len(text) > _LONGEST_CHUNK * (
            len(chunks) - len(sentences)
        ):  # or nothing will come again
            return flat(self._encode(sentences))
        new = set(chunks).difference(self._known, [_END])
        if len(self._known) + len(new) > _MOST_CHUNKS:
            self._known.clear()
            new = set(chunks).difference([_END])
        self._known[_END] = (_END_ID,)
        self._add(new)
        found = chain.from_iterable(map(self._known.__getitem__, chunks))
        ids = np.fromiter(found, np.int64)
        for chunk in new:
            if len(chunk) > _LONGEST_CHUNK:
                self._known.pop(chunk)
        (ends,) = np.nonzero(ids == _END_ID)
        return ids[ids != _END_ID], np.diff(ends, prepend=-1) - 1

    def _add(self, chunks: set[str]) -> None:
        words = {chunk: _WORDS.findall(chunk) for chunk in chunks if self._has_words(chunk)}
        if len(self._words) > _MOST_WORDS:
            self._words.clear()
        new = [*set(chain.from_iterable(words.values())).difference(self._words)]
        whole = [*chunks.difference(words)]
        ids = [*map(tuple, self._encode(new + whole))]
        self._words.update(zip(new, ids, strict=False))
        self._known.update(zip(whole, ids[len(new) :], strict=True))
        of_word = self._words.__getitem__
        for chunk, parts in words.items():
            self._known[chunk] = tuple(chain.from_iterable(map(of_word, parts)))

    def _has_words(self, chunk: str) -> bool:
        """Returns whether the ids of a chunk are those of its words."""
        return (
            self._is_cut
            and chunk.isascii()
            and chunk.isprintable()
            and not any(token in chunk.lower() for token in self._tokens)
        )


def flat(ids: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the ids of all sentences, one after the other, and how many each has: int64."""
    lengths = np.fromiter(map(len, ids), np.int64, len(ids))
    return np.fromiter(chain.from_iterable(ids), np.int64, int(lengths.sum())), lengths
