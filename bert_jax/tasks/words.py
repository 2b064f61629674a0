"""A tag for each word: named entities in CoNLL columns."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bert_jax.config import HeadConfig
from bert_jax.data.conll import Sentence
from bert_jax.data.features import NO_WORD, WordRows, encode_words
from bert_jax.data.tokenizer import Tokenizer
from bert_jax.tasks import metrics
from bert_jax.tasks.task import Encoded, TaskSpec


def labels_of(sentences: Sequence[Sentence]) -> tuple[str, ...]:
    """O, then B- and I- of every kind of entity that occurs, in alphabetical order."""
    tags = {tag for sentence in sentences for tag in sentence.tags or ()}
    kinds = sorted({tag.partition("-")[2] for tag in tags if tag != "O"})
    return ("O", *(f"{prefix}-{kind}" for kind in kinds for prefix in "BI"))


@dataclass(frozen=True)
class WordTask:
    """Each word's first sub-word is classified; entities are scored whole."""

    spec: TaskSpec

    def head(self) -> HeadConfig:
        return HeadConfig(parts=("token_classifier",), labels=self.spec.labels)

    def encode(
        self, rows: Sequence[Sentence], tokenizer: Tokenizer, *, length: int, labelled: bool
    ) -> Encoded:
        labels = self.spec.labels if labelled else None
        found = encode_words(rows, tokenizer, length=length, labels=labels)
        return Encoded(found.features, found)

    def _tags(
        self, rows: Sequence[Sentence], encoded: Encoded, outputs: np.ndarray
    ) -> list[list[str]]:
        places: WordRows = encoded.places
        best = np.argmax(outputs, axis=-1)
        tags = [["O"] * len(sentence.words) for sentence in rows]
        for row, token in zip(*np.nonzero(places.words != NO_WORD), strict=True):
            sentence, word = places.sentences[row], places.words[row, token]
            tags[sentence][word] = self.spec.labels[best[row, token]]
        return tags

    def score(
        self, rows: Sequence[Sentence], encoded: Encoded, outputs: np.ndarray
    ) -> dict[str, float]:
        found = metrics.entities(
            [sentence.tags or () for sentence in rows], self._tags(rows, encoded, outputs)
        )
        return {name: found[name] for name in self.spec.metrics}

    def chance(self, rows: Sequence[Sentence]) -> float:
        has_entity = any(tag != "O" for sentence in rows for tag in sentence.tags or ())
        return 0.0 if has_entity else -math.inf

    def predictions(
        self, rows: Sequence[Sentence], encoded: Encoded, outputs: np.ndarray
    ) -> list[dict[str, Any]]:
        return [
            {"id": str(number), "words": list(sentence.words), "tags": tags}
            for number, (sentence, tags) in enumerate(
                zip(rows, self._tags(rows, encoded, outputs), strict=True)
            )
        ]
