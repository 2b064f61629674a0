"""A tag for each word: named entities in CoNLL columns."""

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from bert_jax.config import HeadConfig
from bert_jax.data.sources.document import whole_characters
from bert_jax.data.tasks.conll import OUTSIDE, Sentence, read_sentences
from bert_jax.data.tasks.encode_rows import NO_WORD, WordRows, encode_words
from bert_jax.data.tasks.tag_schemes import (
    PLAIN,
    SCHEMES,
    entity_kinds,
    find_scheme,
    require_scheme,
)
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UsageError, brief, some
from bert_jax.tasks import scores
from bert_jax.tasks.task import Encoded, NamedTask, Task, TaskSpec, in_order


def labels_of(sentences: Sequence[Sentence], scheme: str) -> tuple[str, ...]:
    """Returns O, then all tags of the scheme for each kind of entity that occurs, sorted by kind;
    without prefixes, the tags themselves.
    """
    tags = {tag for sentence in sentences for tag in sentence.tags or ()}
    entities = tags - {OUTSIDE}
    if scheme == PLAIN:
        return (OUTSIDE,) * (OUTSIDE in tags) + in_order(entities)
    # Prefixes end with - or _.
    ends = {tag[2:]: tag[1] for tag in entities}
    prefixes = SCHEMES[scheme].prefixes
    return (OUTSIDE, *(f"{p}{ends[kind]}{kind}" for kind in in_order(ends) for p in prefixes))


class WordTask(Task):
    """Classifies the first token of each word; scores whole entities."""

    def known_metrics(self) -> Sequence[str]:
        return ("f1", "precision", "recall")

    def read(
        self, source: str, *, labelled: bool = True, id_column: str | None = None
    ) -> list[Sentence]:
        for name in ("delimiter", "quoting"):
            if getattr(self.reading, name) is not None:
                raise UsageError(
                    f"`{name}`: files of `task` {self.spec.name} have columns separated by tabs or "
                    "spaces, without quotes; remove the option, or convert the file"
                )
        return read_sentences(
            source,
            reading=self.reading,
            columns=self.reading.columns or self.spec.line_columns,
            word="".join(self.spec.text_columns),
            tag=self.spec.label_column,
            labelled=labelled,
            known=self.spec.labels,
        )

    def row(self, given: Any, *, number: int) -> Sentence:
        """Returns the words of a text, split at white space, or of a list of words."""
        words = given.split() if isinstance(given, str) else given
        is_whole = isinstance(words, Sequence) and all(isinstance(word, str) for word in words)
        if not is_whole or not words:
            raise UsageError(f"row {number}: expected a text or its words, got {brief(given)}")
        return Sentence(f"row {number}", tuple(map(whole_characters, words)), None)

    def with_labels(self, train: Sequence[Sentence]) -> TaskSpec:
        scheme = self.spec.tag_scheme or find_scheme(train)
        labels = self.spec.labels or labels_of(train, scheme)
        if len(labels) < 2:
            raise UsageError(
                f"the training file has only the tag {', '.join(labels)}; check the tag column"
            )
        columns = self.reading.columns or self.spec.line_columns
        return dataclasses.replace(
            self.spec, labels=labels, tag_scheme=scheme, line_columns=columns
        )

    def describe(self, encoded: Encoded, *, length: int) -> str:
        rows = encoded.rows
        scheme = self.spec.tag_scheme
        kinds = Counter(kind for s in rows for kind in entity_kinds(s.tags or (), scheme))
        named = [f"{kind} {kinds[kind]:,}" for kind in in_order(kinds)]
        return (
            f"{len(rows):,} training sentences, tags in the scheme {scheme} "
            f"({SCHEMES[scheme].meaning}), entities by kind: {some(named, 20)}"
        )

    def head(self) -> HeadConfig:
        return HeadConfig(parts=("token_classifier",), labels=self.spec.labels)

    def encode(
        self, rows: Sequence[Sentence], tokenizer: Tokenizer, *, length: int, labelled: bool
    ) -> Encoded:
        if labelled:
            require_scheme(rows, self.spec.tag_scheme)
        labels = self.spec.labels if labelled else None
        found = encode_words(rows, tokenizer, length=length, labels=labels)
        return Encoded(rows, found.features, found)

    def _tags(self, encoded: Encoded, outputs: np.ndarray) -> list[list[str]]:
        alignment: WordRows = encoded.alignment
        best = np.argmax(outputs, axis=-1)
        tags = [[OUTSIDE] * len(sentence.words) for sentence in encoded.rows]
        for row, token in zip(*np.nonzero(alignment.words != NO_WORD), strict=True):
            sentence, word = alignment.sentences[row], alignment.words[row, token]
            tags[sentence][word] = self.spec.labels[best[row, token]]
        return tags

    def score(self, encoded: Encoded, outputs: np.ndarray) -> dict[str, float]:
        gold = [sentence.tags or () for sentence in encoded.rows]
        found = scores.entities(gold, self._tags(encoded, outputs), self.spec.tag_scheme)
        return {name: found[name] for name in self.spec.metrics}

    def majority_baseline(self, rows: Sequence[Sentence]) -> float:
        has_entity = any(tag != OUTSIDE for sentence in rows for tag in sentence.tags or ())
        return 0.0 if has_entity else -math.inf

    def predictions(self, encoded: Encoded, outputs: np.ndarray) -> list[dict[str, Any]]:
        return [
            {"id": str(number), "words": list(sentence.words), "tags": tags}
            for number, (sentence, tags) in enumerate(
                zip(encoded.rows, self._tags(encoded, outputs), strict=True)
            )
        ]


NER = NamedTask(
    spec=TaskSpec(name="ner", kind="tokens", metrics=("f1", "precision", "recall")),
    text_columns=(0, 1),
)
