"""Ids of text by what stands between spaces, each of which is encoded once: BERT's WordPiece only.

Its normaliser looks at a character, or at a letter and its marks, and a space ends a word whatever
stands beside it. So the ids of a sentence are those of its chunks one after the other, and most
chunks of a text were there before.
"""

import re
import threading
from array import array
from collections.abc import Callable, Iterable
from itertools import chain, islice

import numpy as np

# When so many are known, a new generation begins, which takes what it needs of the one before:
# characters, and what an entry costs beside its own. About 50 MB of a process, both together.
_MOST_CHARACTERS, _ENTRY = 4 << 20, 24
# In a script without spaces a chunk is a sentence, which does not come again.
_LONGEST_CHUNK = 32  # characters, on average
_END = "\n"  # stands where a sentence ends, in the place of a chunk
_END_ID = -1
# A worker of an engine may encode several units at once. One lock for all of a process, since locks
# cannot be pickled.
_one_thread = threading.Lock()
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
        self._known, self._before = _Generation(), _Generation()

    def encode(self, sentences: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Returns the ids of all sentences, one after the other, and how many each has: int64."""
        text = f" {_END} ".join(sentences)
        chunks = [*text.split(" "), _END] if sentences else []
        has_line_end = text.count(_END) >= max(len(sentences), 1)  # one of them itself
        if has_line_end or len(text) > _LONGEST_CHUNK * (
            len(chunks) - len(sentences)
        ):  # or nothing will come again
            return flat(self._encode(sentences))
        with _one_thread:
            ids = self._ids_of(chunks)
        (ends,) = np.nonzero(ids == _END_ID)
        return ids[ids != _END_ID], np.diff(ends, prepend=-1) - 1

    def _ids_of(self, chunks: list[str]) -> np.ndarray:
        try:
            numbers = self._known.numbers_of(chunks)
            self._learn()
        except BaseException:  # some have a number, and no ids
            self._known = _Generation()
            raise
        ids, _ = self._known.ids_of(numbers)
        if self._known.is_full:
            self._known, self._before = _Generation(), self._known
        return ids

    def _learn(self) -> None:
        """Finds the ids of what has a number and none yet."""
        known, before = self._known, self._before
        signs = [*filter(_has_signs, known.new())] if self._is_cut else []
        if self._has_token(" ".join(signs)):
            signs = [chunk for chunk in signs if not self._has_token(chunk)]
        words = [*map(_WORDS.findall, signs)]
        numbers = known.numbers_of(chain.from_iterable(words))
        new = set(known.new()).difference(signs)
        again = [*filter(before.numbers.__contains__, new)]
        whole = [*new.difference(again)]
        known.add(again, *before.ids_of(before.numbers_of(again)))
        known.add(whole, *flat(self._encode(whole)))
        if signs:
            ids, lengths = known.ids_of(numbers)
            first = np.cumsum([0, *map(len, words)])[:-1]
            known.add(signs, ids, np.add.reduceat(lengths, first))

    def _has_token(self, text: str) -> bool:
        text = text.lower()
        return any(token in text for token in self._tokens)


class _Generation:
    """Chunks that are known, and their ids in one array of all."""

    def __init__(self) -> None:
        self.numbers = _Numbers()
        self._ids, self._starts, self._lengths = array("i"), array("q"), array("q")
        self._characters = 0
        self.add([_END], np.array([_END_ID]), np.array([1]))

    @property
    def is_full(self) -> bool:
        return self._characters > _MOST_CHARACTERS

    def numbers_of(self, chunks: Iterable[str]) -> np.ndarray:
        """Returns the numbers of chunks, int64. One that is not known gets the next one."""
        return np.fromiter(map(self.numbers.__getitem__, chunks), np.int64)

    def new(self) -> list[str]:
        """Returns the chunks that have a number and no ids."""
        return [*islice(reversed(self.numbers), len(self.numbers) - len(self._starts))]

    def add(self, chunks: list[str], ids: np.ndarray, lengths: np.ndarray) -> None:
        """Takes the ids of new chunks, which stand one after the other."""
        numbers = self.numbers_of(chunks)
        missing = bytes(8 * (len(self.numbers) - len(self._starts)))
        self._starts.frombytes(missing)
        self._lengths.frombytes(missing)
        np.frombuffer(self._starts, np.int64)[numbers] = (
            len(self._ids) + np.cumsum(lengths) - lengths
        )
        np.frombuffer(self._lengths, np.int64)[numbers] = lengths
        self._ids.frombytes(ids.astype(np.int32).tobytes())
        self._characters += sum(map(len, chunks)) + _ENTRY * len(chunks)

    def ids_of(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the ids of chunks, one after the other, and how many each has: int64."""
        starts = np.frombuffer(self._starts, np.int64)[numbers]
        lengths = np.frombuffer(self._lengths, np.int64)[numbers]
        # An id's place is its chunk's start, and how far it is from the first of that chunk.
        starts -= np.cumsum(lengths) - lengths
        places = np.repeat(starts, lengths) + np.arange(lengths.sum())
        return np.frombuffer(self._ids, np.int32)[places].astype(np.int64), lengths


class _Numbers(dict[str, int]):
    """Gives what is not in it the next number."""

    def __missing__(self, chunk: str) -> int:
        return self.setdefault(chunk, len(self))


def _has_signs(chunk: str) -> bool:
    """Returns whether a chunk has several words, and their ids, if it has no token."""
    return len(chunk) > 1 and chunk.isascii() and not chunk.isalnum() and chunk.isprintable()


def flat(ids: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the ids of all sentences, one after the other, and how many each has: int64."""
    lengths = np.fromiter(map(len, ids), np.int64, len(ids))
    return np.fromiter(chain.from_iterable(ids), np.int64, int(lengths.sum())), lengths
