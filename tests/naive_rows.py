"""The rows of registry.SEQUENCE_FORMATS that have no next sentences, restated sentence by sentence.

`ExampleBuilder` has the control flow of google-research/electra (build_pretraining_dataset.py);
`full_sentences` and `doc_sentences` have that of the modes "complete" and "complete_doc" of fairseq
(token_block_utils_fast.pyx), but that a sentence longer than a row is cut, and that documents are
separated where they meet inside of a row. A row is a list of segments, a segment a list of parts
with a separator after each, a part a list of tokens.
"""

import random
from collections.abc import Iterator

from bert_jax.data import counter_rng

Document = list[list[int]]
Row = list[list[list[int]]]


def _pieces(tokens: list[int], room: int) -> Iterator[list[int]]:
    for begin in range(0, len(tokens), room):
        yield tokens[begin : begin + room]


def full_sentences(documents: list[Document], room: int) -> Iterator[Row]:
    parts: list[list[int]] = []
    length = 0
    for document in documents:
        is_new = True
        for sentence in document:
            for piece in _pieces(sentence, room):
                separator = 1 if is_new and parts else 0
                if parts and length + separator + len(piece) > room:
                    yield [parts]
                    parts, length, separator = [], 0, 0
                if is_new or not parts:
                    parts.append([])
                parts[-1] += piece
                length += separator + len(piece)
                is_new = False
    yield [parts]


def doc_sentences(documents: list[Document], room: int) -> Iterator[Row]:
    for document in documents:
        yield from full_sentences([document], room)


def whole_documents(documents: list[Document], room: int) -> Iterator[Row]:
    for document in documents:
        for piece in _pieces([token for sentence in document for token in sentence], room):
            yield [[piece]]


class SequentialDraws:
    """As the original draws: from one generator, when something is to be decided."""

    def __init__(self, seed: int):
        self._random = random.Random(seed)

    def begin_row(self, sentence: int) -> None:
        pass

    def target(self, most: int) -> int:
        return self._random.randint(5, most) if self._random.random() < 0.05 else most

    def is_one_segment(self) -> bool:
        return self._random.random() < 0.1

    def goes_over(self) -> bool:
        return self._random.random() < 0.5


class KeyedDraws:
    """The draws of `electra_segments`, under the key of the epoch and a row's first sentence."""

    def __init__(self, key: int):
        self._key = key

    def begin_row(self, sentence: int) -> None:
        self._row = counter_rng.derive(self._key, sentence)

    def _uniform(self, draw: int) -> float:
        return counter_rng.uniform(counter_rng.bits(self._row, draw))[0]

    def target(self, most: int) -> int:
        if self._uniform(0) < 0.05:
            return 5 + int(counter_rng.randint(counter_rng.bits(self._row, 1), most - 4)[0])
        return most

    def is_one_segment(self) -> bool:
        return self._uniform(2) < 0.1

    def goes_over(self) -> bool:
        return self._uniform(3) < 0.5


class ExampleBuilder:
    def __init__(self, most: int, draws: SequentialDraws | KeyedDraws):
        self._most, self._draws = most, draws
        self._sentences: list[list[int]] = []
        self._read = 0
        self._begin_row()

    def _begin_row(self) -> None:
        self._sentences = []
        self._draws.begin_row(self._read)
        self._target = self._draws.target(self._most)

    def add(self, sentence: list[int]) -> Row | None:
        """Takes a sentence, or none where a document ends; returns the row that is complete."""
        if not sentence and self._sentences:
            return self._create()
        if sentence:
            self._read += 1
            self._sentences.append(sentence)
            if sum(map(len, self._sentences)) >= self._target:
                return self._create()
        return None

    def _create(self) -> Row:
        goal = 100_000 if self._draws.is_one_segment() else (self._target - 3) // 2
        first: list[int] = []
        second: list[int] = []
        for sentence in self._sentences:
            if (
                not first
                or len(first) + len(sentence) < goal
                or (not second and len(first) < goal and self._draws.goes_over())
            ):
                first += sentence
            else:
                second += sentence
        first = first[: self._most - 2]
        second = second[: max(0, self._most - len(first) - 3)]
        self._begin_row()
        return [[first], [second]] if second else [[first]]


def electra_segments(
    documents: list[Document], most: int, draws: SequentialDraws | KeyedDraws
) -> Iterator[Row]:
    builder = ExampleBuilder(most, draws)
    for document in documents:
        for sentence in [*document, []]:
            if (row := builder.add(sentence)) is not None:
                yield row
