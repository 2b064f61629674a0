"""One or two texts with a class or a number: GLUE's tasks and all that are like them."""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bert_jax.config import HeadConfig
from bert_jax.data.features import encode_texts
from bert_jax.data.task_files import TextRow
from bert_jax.data.tokenizer import Tokenizer
from bert_jax.errors import UsageError
from bert_jax.tasks import metrics
from bert_jax.tasks.task import Encoded, TaskSpec

_SCORES = {
    "accuracy": metrics.accuracy,
    "f1": metrics.f1,
    "macro_f1": metrics.macro_f1,
    "matthews": metrics.matthews,
    "pearson": metrics.pearson,
    "spearman": metrics.spearman,
}


@dataclass(frozen=True)
class TextTask:
    """Classification, or regression with the mean squared error."""

    spec: TaskSpec

    def head(self) -> HeadConfig:
        return HeadConfig(parts=("pooler", "sequence_classifier"), labels=self.spec.labels)

    def encode(
        self, rows: Sequence[TextRow], tokenizer: Tokenizer, *, length: int, labelled: bool
    ) -> Encoded:
        found = encode_texts(rows, tokenizer, length=length, truncation=self.spec.truncation)
        if labelled:
            weights = np.ones(len(rows), np.float32)
            found = dataclasses.replace(found, labels=self._gold(rows), weights=weights)
        return Encoded(found)

    def _gold(self, rows: Sequence[TextRow]) -> np.ndarray:
        """float32 numbers or int32 classes."""
        if self.spec.kind == "regression":
            return np.array([_number(row) for row in rows], np.float32)
        numbers = {label: i for i, label in enumerate(self.spec.labels)}
        for row in rows:
            if row.label not in numbers:
                raise UsageError(
                    f"{row.place}: label {row.label!r} is not one of {', '.join(numbers)}; correct "
                    "it, or name the right label column"
                )
        return np.array([numbers[str(row.label)] for row in rows], np.int32)

    def _predicted(self, outputs: np.ndarray) -> np.ndarray:
        return outputs[:, 0] if self.spec.kind == "regression" else np.argmax(outputs, axis=-1)

    def score(
        self, rows: Sequence[TextRow], encoded: Encoded, outputs: np.ndarray
    ) -> dict[str, float]:
        del encoded
        gold, predicted = self._gold(rows), self._predicted(outputs)
        return {name: _SCORES[name](gold, predicted) for name in self.spec.metrics}

    def chance(self, rows: Sequence[TextRow]) -> float:
        gold = self._gold(rows)
        if len(np.unique(gold)) == 1:
            return -math.inf
        if self.spec.kind == "regression":
            return 0.0
        # Not the most frequent class alone: F1 is highest for saying yes everywhere.
        score = _SCORES[self.spec.metrics[0]]
        return max(score(gold, np.full_like(gold, n)) for n in range(len(self.spec.labels)))

    def predictions(
        self, rows: Sequence[TextRow], encoded: Encoded, outputs: np.ndarray
    ) -> list[dict[str, Any]]:
        del encoded
        if self.spec.kind == "regression":
            return [
                {"id": row.id, "score": float(value)}
                for row, value in zip(rows, outputs[:, 0], strict=True)
            ]
        logits = outputs.astype(np.float64)
        probabilities = np.exp(logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True))
        return [
            {
                "id": row.id,
                "label": self.spec.labels[best],
                "probabilities": dict(zip(self.spec.labels, shares.tolist(), strict=True)),
            }
            for row, best, shares in zip(rows, self._predicted(outputs), probabilities, strict=True)
        ]


def _number(row: TextRow) -> float:
    try:
        value = float(str(row.label))
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UsageError(f"{row.place}: score {row.label!r} is not a finite number; correct it")
    return value
