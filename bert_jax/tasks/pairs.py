"""Texts that belong together: a query with its documents, or two texts with a score.

The head has no parameters: a text's vector is the pooled output of the encoder.

Dims: N examples, T texts of an example, D width.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from bert_jax.config import EmbeddingConfig, HeadConfig, InfoNCE, PairLoss
from bert_jax.data.tasks.encode_rows import LONGER, LONGER_TRAINED
from bert_jax.data.tasks.examples import encode_examples
from bert_jax.data.tasks.tables import TextRow, read_rows, text_row
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UsageError
from bert_jax.progress import note
from bert_jax.tasks import scores
from bert_jax.tasks.sequence_classification import number_of
from bert_jax.tasks.task import Encoded, NamedTask, Task, TaskSpec

# Documents among which a query looks for its own.
_AMONG = 10
_SCORES = {"spearman": scores.spearman, "pearson": scores.pearson}


class PairTask(Task):
    """Each row is a query, its own document and any number of hard negatives (kind `pairs`), or two
    texts and the score of their similarity (kind `similarity`).
    """

    has_columns = True

    @property
    def has_scores(self) -> bool:
        return self.spec.kind == "similarity"

    def known_metrics(self) -> Sequence[str]:
        return tuple(_SCORES) if self.has_scores else ("mrr@10", "accuracy")

    def read(
        self, source: str, *, labelled: bool = True, id_column: str | None = None
    ) -> list[TextRow]:
        return read_rows(
            source,
            text_columns=self.spec.text_columns,
            label_column=self.spec.label_column if labelled and self.has_scores else None,
            id_column=id_column,
            reading=self.reading,
        )

    def row(self, given: Any, *, number: int) -> TextRow:
        return text_row(given, number=number, columns=self.spec.text_columns)

    def usable(self, train: list[TextRow]) -> list[TextRow]:
        """Raises UsageError for a negative that is the query or the own document of its row."""
        if self.has_scores:
            return train
        for row in train:
            query, own, *negatives = (" ".join(text.split()) for text in row.texts)
            if {query, own} & {*negatives}:
                raise UsageError(
                    f"{row.location}: a negative is the query or its own document; remove the row, "
                    "or mine its negatives again"
                )
        same = sum(len({*row.texts[:2]}) == 1 for row in train)
        if same == len(train):
            raise UsageError(f"{train[0].location}: the two texts of every row are the same")
        if same:
            note(f"{same:,} of {len(train):,} training rows have the same text twice")
        return train

    def head(self) -> HeadConfig:
        return HeadConfig(parts=("embedding",))

    def embedding(self) -> EmbeddingConfig:
        loss = PairLoss.of_kind("cosent")() if self.has_scores else InfoNCE()
        return EmbeddingConfig(
            loss=loss,
            query_prompt=self.spec.query_prompt,
            document_prompt=self.spec.document_prompt,
        )

    def encode(
        self, rows: Sequence[TextRow], tokenizer: Tokenizer, *, length: int, labelled: bool
    ) -> Encoded:
        documents = len(rows[0].texts) - 1
        prompts = (self.spec.query_prompt, *[self.spec.document_prompt] * documents)
        found = encode_examples(
            rows,
            tokenizer,
            length=length,
            prompts=prompts,
            remedy=LONGER if labelled else LONGER_TRAINED,
        )
        if labelled:
            labels = np.zeros((len(rows), documents), np.float32)
            if self.has_scores:
                labels[:] = self._gold(rows)[:, None]
            weights = np.ones(len(rows), np.float32)
            found = dataclasses.replace(found, labels=labels, weights=weights)
        return Encoded(found)

    def _gold(self, rows: Sequence[TextRow]) -> np.ndarray:
        return np.array([number_of(row) for row in rows], np.float32)

    def score(
        self, rows: Sequence[TextRow], encoded: Encoded, outputs: np.ndarray
    ) -> dict[str, float]:
        """For `pairs`, each query looks for its own document among the own documents of all rows:
        the mean reciprocal rank within 10, and the share of queries that find it first.
        """
        vectors_NTD = _normalized(outputs)
        if self.has_scores:
            gold, found = self._gold(rows), self._cosines(vectors_NTD)[:, 0]
            return {name: _SCORES[name](gold, found) for name in self.spec.metrics}
        cosines_NN = vectors_NTD[:, 0] @ vectors_NTD[:, 1].T
        # Another row with the same document is no mistake.
        texts = np.unique([row.texts[1] for row in rows], return_inverse=True)[1]
        is_better = cosines_NN > np.diagonal(cosines_NN)[:, None]
        rank_N = 1 + np.sum(is_better & (texts[:, None] != texts), axis=1)
        found = {
            "mrr@10": float(np.mean(np.where(rank_N <= _AMONG, 1 / rank_N, 0.0))),
            "accuracy": float(np.mean(rank_N == 1)),
        }
        return {name: found[name] for name in self.spec.metrics}

    def majority_baseline(self, rows: Sequence[TextRow]) -> float:
        return 0.0

    def predictions(
        self, rows: Sequence[TextRow], encoded: Encoded, outputs: np.ndarray
    ) -> list[dict[str, Any]]:
        """Returns the similarity of the first text of a row and each other one."""
        cosines_NC = self._cosines(_normalized(outputs)).tolist()
        return [
            {"id": row.id, "score": each[0] if len(each) == 1 else each}
            for row, each in zip(rows, cosines_NC, strict=True)
        ]

    @staticmethod
    def _cosines(vectors_NTD: np.ndarray) -> np.ndarray:
        return np.einsum("nd,ncd->nc", vectors_NTD[:, 0], vectors_NTD[:, 1:])


def _normalized(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)


PAIRS = NamedTask(
    spec=TaskSpec(name="pairs", kind="pairs", metrics=("mrr@10", "accuracy")),
    text_columns=(2, 33),
)
SIMILARITY = NamedTask(
    spec=TaskSpec(name="similarity", kind="similarity", metrics=("spearman", "pearson")),
    text_columns=(2, 2),
)
