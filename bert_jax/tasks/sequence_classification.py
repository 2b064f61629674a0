"""Classification of, or regression on, one or two texts: GLUE's tasks and custom tables."""

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from bert_jax.config import HeadConfig
from bert_jax.data.tasks.encode_rows import LONGER, LONGER_TRAINED, encode_texts
from bert_jax.data.tasks.tables import TextRow, read_rows, text_row
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UsageError
from bert_jax.registry import TASKS
from bert_jax.tasks import scores
from bert_jax.tasks.task import Encoded, NamedTask, Task, TaskSpec, in_order

# Number of labels that are listed with their counts.
_SHOWN = 20
_SCORES = {
    "accuracy": scores.accuracy,
    "f1": scores.f1,
    "macro_f1": scores.macro_f1,
    "matthews": scores.matthews,
    "pearson": scores.pearson,
    "spearman": scores.spearman,
}
_OF_NUMBERS = ("pearson", "spearman")


class TextTask(Task):
    """Classification, or regression with the mean squared error."""

    has_columns = True

    def known_metrics(self) -> Sequence[str]:
        if self.spec.kind == "regression":
            return _OF_NUMBERS
        # F1 is defined for the second of two classes.
        is_binary = len(self.spec.labels) in (0, 2)
        return [name for name in _SCORES if is_binary or name != "f1"]

    def read(
        self, source: str, *, labelled: bool = True, id_column: str | None = None
    ) -> list[TextRow]:
        if not self.spec.text_columns:
            raise UsageError(f"`task` {self.spec.name} needs one or two `text` COLUMN")
        return read_rows(
            source,
            text_columns=self.spec.text_columns,
            label_column=self.spec.label_column if labelled else None,
            header=TASKS[self.spec.name].header(source) if self.spec.name in TASKS else None,
            id_column=id_column,
            reading=self.reading,
        )

    def row(self, given: Any, *, number: int) -> TextRow:
        return text_row(given, number=number, columns=self.spec.text_columns)

    def with_labels(self, train: Sequence[TextRow]) -> TaskSpec:
        if self.spec.labels or self.spec.kind == "regression":
            return self.spec
        labels = in_order(str(row.label) for row in train)
        if len(labels) == 1:
            file = train[0].location.rpartition(", ")[0]
            raise UsageError(
                f"{file}: column {self.spec.label_column!r} has only one label, {labels[0]!r}; "
                "name another label column, or set `regression`"
            )
        return dataclasses.replace(self.spec, labels=labels)

    def describe(self, encoded: Encoded, *, length: int) -> str:
        rows = encoded.rows
        if self.spec.kind == "regression":
            found = self._gold(rows)
            return (
                f"{len(rows):,} training rows with numbers from {found.min():g} to "
                f"{found.max():g}, {found.mean():.4g} on average"
            )
        counts = Counter(str(row.label) for row in rows)
        named = [f"{label} {counts[label]:,}" for label in self.spec.labels]
        more = f" and {len(named) - _SHOWN} more" if len(named) > _SHOWN else ""
        return f"{len(rows):,} training rows, by label: {', '.join(named[:_SHOWN])}{more}"

    def head(self) -> HeadConfig:
        return HeadConfig(parts=("pooler", "sequence_classifier"), labels=self.spec.labels)

    def encode(
        self, rows: Sequence[TextRow], tokenizer: Tokenizer, *, length: int, labelled: bool
    ) -> Encoded:
        found = encode_texts(
            rows,
            tokenizer,
            length=length,
            truncation=self.spec.truncation,
            remedy=LONGER if labelled else LONGER_TRAINED,
            # Training rows have the full width, so that PackedBatches can pack them.
            width=length if labelled else 0,
        )
        if labelled:
            weights = np.ones(len(rows), np.float32)
            found = dataclasses.replace(found, labels=self._gold(rows), weights=weights)
        return Encoded(rows, found)

    def _gold(self, rows: Sequence[TextRow]) -> np.ndarray:
        """Returns float32 numbers or int32 classes."""
        if self.spec.kind == "regression":
            return np.array([number_of(row) for row in rows], np.float32)
        numbers = {label: i for i, label in enumerate(self.spec.labels)}
        for row in rows:
            if row.label not in numbers:
                raise UsageError(
                    f"{row.location}: label {row.label!r} is not one of {', '.join(numbers)}; "
                    "correct it, or name the right label column"
                )
        return np.array([numbers[str(row.label)] for row in rows], np.int32)

    def _predicted(self, outputs: np.ndarray) -> np.ndarray:
        return outputs[:, 0] if self.spec.kind == "regression" else np.argmax(outputs, axis=-1)

    def score(self, encoded: Encoded, outputs: np.ndarray) -> dict[str, float]:
        gold, predicted = self._gold(encoded.rows), self._predicted(outputs)
        return {name: _SCORES[name](gold, predicted) for name in self.spec.metrics}

    def majority_baseline(self, rows: Sequence[TextRow]) -> float:
        gold = self._gold(rows)
        if len(np.unique(gold)) == 1:
            return -math.inf
        if self.spec.kind == "regression":
            return 0.0
        # Also every constant class: F1 may be highest for always predicting the positive class.
        score = _SCORES[self.spec.metrics[0]]
        return max(score(gold, np.full_like(gold, n)) for n in range(len(self.spec.labels)))

    def predictions(self, encoded: Encoded, outputs: np.ndarray) -> list[dict[str, Any]]:
        if self.spec.kind == "regression":
            return [
                {"id": row.id, "score": float(value)}
                for row, value in zip(encoded.rows, outputs[:, 0], strict=True)
            ]
        logits = outputs.astype(np.float64)
        probabilities = np.exp(logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True))
        return [
            {
                "id": row.id,
                "label": self.spec.labels[best],
                "probabilities": dict(zip(self.spec.labels, shares.tolist(), strict=True)),
            }
            for row, best, shares in zip(
                encoded.rows, self._predicted(outputs), probabilities, strict=True
            )
        ]


def number_of(row: TextRow) -> float:
    """Returns the label of a row as a number. Raises UsageError if it is not one."""
    try:
        value = float(str(row.label))
    except ValueError:
        value = math.nan
    # The number is stored in float32. The comparison is also false for NaN.
    if not abs(value) <= float(np.finfo(np.float32).max):
        raise UsageError(f"{row.location}: score {row.label!r} is not a finite number; correct it")
    return value


# A custom table.
TEXT = NamedTask(
    spec=TaskSpec(name="text", kind="classification", metrics=("accuracy", "macro_f1")),
    text_columns=(1, 2),
)
