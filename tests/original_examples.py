"""`create_instances_from_document` of google-research/bert, restated in plain Python.

Same control flow, token by token, with the draws taken from an object: `SequentialDraws` draws as
the original does, from one generator; `KeyedDraws` draws what
`bert_jax.data.pretraining.sentence_pairs` draws, so that the two must agree exactly. It makes pairs
only; masks are another function in the original.
"""

import random
from collections.abc import Iterator
from typing import NamedTuple

from bert_jax.data import counter_rng

Sentence = list[int]


class Pair(NamedTuple):
    a: list[int]
    b: list[int]
    is_random: bool
    is_alone: bool  # the chunk had one sentence, which forces a random second segment


class SequentialDraws:
    def __init__(self, seed: int):
        self._random = random.Random(seed)

    def target(self, short_prob: float, max_tokens: int) -> int:
        if self._random.random() < short_prob:
            return self._random.randint(2, max_tokens)
        return max_tokens

    def begin_chunk(self) -> None:
        pass

    def a_end(self, sentences: int) -> int:
        return self._random.randint(1, sentences - 1)

    def is_random(self, probability: float) -> bool:
        return self._random.random() < probability

    def other_document(self, own: int, documents: int) -> int:
        other = own
        for _ in range(10):
            other = self._random.randint(0, documents - 1)
            if other != own:
                break
        return other

    def other_start(self, sentences: int) -> int:
        return self._random.randint(0, sentences - 1)

    def drops_front(self, segment: str) -> bool:
        return self._random.random() < 0.5


class KeyedDraws:
    """The draws of one lane, under the key of the epoch."""

    def __init__(self, key: int, lane: int):
        self._lane = counter_rng.derive(key, lane)
        self._turn = -1

    def target(self, short_prob: float, max_tokens: int) -> int:
        if counter_rng.uniform(counter_rng.bits(self._lane, 0))[0] < short_prob:
            return 2 + self._below(self._lane, 1, max_tokens - 1)
        return max_tokens

    def begin_chunk(self) -> None:
        self._turn += 1
        self._chunk = counter_rng.derive(self._lane, self._turn)
        self._dropped = {"a": 0, "b": 0}

    def a_end(self, sentences: int) -> int:
        return 1 + self._below(self._chunk, 2, sentences - 1)

    def is_random(self, probability: float) -> bool:
        return counter_rng.uniform(counter_rng.bits(self._chunk, 3))[0] < probability

    def other_document(self, own: int, documents: int) -> int:
        other = self._below(self._chunk, 4, documents - 1)
        return other + (other >= own)

    def other_start(self, sentences: int) -> int:
        return self._below(self._chunk, 5, sentences)

    def drops_front(self, segment: str) -> bool:
        coin = self._dropped[segment]
        self._dropped[segment] += 1
        word = counter_rng.derive(self._chunk, {"a": 6, "b": 7}[segment], coin // 64)
        return bool(word >> (coin % 64) & 1)

    @staticmethod
    def _below(key: int, draw: int, bound: int) -> int:
        return int(counter_rng.randint(counter_rng.bits(key, draw), bound)[0])


def make_pairs(
    document: list[Sentence],
    *,
    own: int,
    all_documents: list[list[Sentence]],
    max_tokens: int,
    short_prob: float,
    random_prob: float,
    draws: SequentialDraws | KeyedDraws,
) -> Iterator[Pair]:
    """The pairs of `document`, which is (a piece of) `all_documents[own]`."""
    target = draws.target(short_prob, max_tokens)
    chunk: list[Sentence] = []
    length = 0
    i = 0
    while i < len(document):
        chunk.append(document[i])
        length += len(document[i])
        if i == len(document) - 1 or length >= target:
            draws.begin_chunk()
            a_end = draws.a_end(len(chunk)) if len(chunk) >= 2 else 1
            a = [token for sentence in chunk[:a_end] for token in sentence]
            b: list[int] = []
            is_random = len(chunk) == 1 or draws.is_random(random_prob)
            if is_random:
                other = all_documents[draws.other_document(own, len(all_documents))]
                for sentence in other[draws.other_start(len(other)) :]:
                    b.extend(sentence)
                    if len(b) >= target - len(a):
                        break
                i -= len(chunk) - a_end
            else:
                b = [token for sentence in chunk[a_end:] for token in sentence]
            while len(a) + len(b) > max_tokens:
                name, longer = ("a", a) if len(a) > len(b) else ("b", b)
                longer.pop(0 if draws.drops_front(name) else -1)
            yield Pair(a, b, is_random, len(chunk) == 1)
            chunk, length = [], 0
        i += 1
