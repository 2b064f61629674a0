"""A tag for each word: named entities in CoNLL columns."""

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.config import HeadConfig
from bert_jax.data.sources.document import whole_characters
from bert_jax.data.tasks.conll import Sentence, read_sentences
from bert_jax.data.tasks.encode_rows import NO_WORD, WordRows, encode_words
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UsageError, brief
from bert_jax.tasks import scores
from bert_jax.tasks.task import Encoded, NamedTask, Task, TaskSpec


def labels_of(sentences: Sequence[Sentence]) -> tuple[str, ...]:
    """Returns O, then B- and I- of every kind of entity that occurs, in alphabetical order."""
    tags = {tag for sentence in sentences for tag in sentence.tags or ()}
    kinds = sorted({tag.partition("-")[2] for tag in tags if tag != "O"})
    return ("O", *(f"{prefix}-{kind}" for kind in kinds for prefix in "BI"))


class WordTask(Task):
    """Each word's first sub-word is classified; entities are scored whole."""

    def known_metrics(self) -> Sequence[str]:
        return ("f1", "precision", "recall")

    def read(
        self, path: Path, *, labelled: bool = True, id_column: str | None = None
    ) -> list[Sentence]:
        return list(read_sentences(path, scheme=self.spec.tag_scheme, labelled=labelled))

    def row(self, given: Any, *, number: int) -> Sentence:
        """Returns the words of a text, which white space separates, or of a list of words."""
        words = given.split() if isinstance(given, str) else given
        is_whole = isinstance(words, Sequence) and all(isinstance(word, str) for word in words)
        if not is_whole or not words:
            raise UsageError(f"row {number}: expected a text or its words, got {brief(given)}")
        return Sentence(f"row {number}", tuple(map(whole_characters, words)), None)

    def with_labels(self, train: Sequence[Sentence]) -> TaskSpec:
        if self.spec.labels:
            return self.spec
        labels = labels_of(train)
        if len(labels) == 1:
            raise UsageError("the training file has no tag but O; there is nothing to learn")
        return dataclasses.replace(self.spec, labels=labels)

    def describe(self, rows: Sequence[Sentence], encoded: Encoded, *, length: int) -> str:
        tags = Counter(tag.partition("-")[2] for s in rows for tag in s.tags or () if tag[0] == "B")
        named = ", ".join(f"{kind} {count:,}" for kind, count in sorted(tags.items()))
        return f"{len(rows):,} training sentences, entities by kind: {named}"

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
        alignment: WordRows = encoded.alignment
        best = np.argmax(outputs, axis=-1)
        tags = [["O"] * len(sentence.words) for sentence in rows]
        for row, token in zip(*np.nonzero(alignment.words != NO_WORD), strict=True):
            sentence, word = alignment.sentences[row], alignment.words[row, token]
            tags[sentence][word] = self.spec.labels[best[row, token]]
        return tags

    def score(
        self, rows: Sequence[Sentence], encoded: Encoded, outputs: np.ndarray
    ) -> dict[str, float]:
        found = scores.entities(
            [sentence.tags or () for sentence in rows], self._tags(rows, encoded, outputs)
        )
        return {name: found[name] for name in self.spec.metrics}

    def majority_baseline(self, rows: Sequence[Sentence]) -> float:
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


NER = NamedTask(
    spec=TaskSpec(name="ner", kind="tokens", metrics=("f1", "precision", "recall")),
)
