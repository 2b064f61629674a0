"""Texts that belong together: a query with its documents, or two texts with a score.

The head has no parameters: a text's vector is the pooled output of the encoder.

Dims: N examples, T texts of an example, C = T - 1 documents, D width.
"""

import dataclasses
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from bert_jax.config import EmbeddingConfig, HeadConfig, InfoNCE, PairLoss, TrainConfig
from bert_jax.data.tasks.encode_rows import LONGER, LONGER_TRAINED
from bert_jax.data.tasks.examples import encode_examples
from bert_jax.data.tasks.tables import TextRow, read_rows, text_row
from bert_jax.data.tokenizer import hub
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UsageError, brief
from bert_jax.inference.retrieval_scores import DEEPEST, FIGURES, retrieval_scores
from bert_jax.inference.retrieve import search
from bert_jax.interchange.sentence_transformers import normalized
from bert_jax.progress import note
from bert_jax.tasks import scores
from bert_jax.tasks.sequence_classification import number_of
from bert_jax.tasks.task import Encoded, NamedTask, Task, TaskSpec

_SCORES = {"spearman": scores.spearman, "pearson": scores.pearson}
# Rows that a message names.
_NAMED = 3


class PairTask(Task):
    """Each row is a query, its own document and any number of hard negatives, and perhaps a
    teacher's scores of the documents (kind `pairs`); or two texts and the score of their similarity
    (kind `similarity`).
    """

    has_columns = True
    one_source_per_batch = True

    @property
    def is_similarity(self) -> bool:
        return self.spec.kind == "similarity"

    def known_metrics(self) -> Sequence[str]:
        return tuple(_SCORES) if self.is_similarity else FIGURES

    def read(
        self, source: str, *, labelled: bool = True, id_column: str | None = None
    ) -> list[TextRow]:
        found = read_rows(
            source,
            text_columns=self.spec.text_columns,
            label_column=self.spec.label_column or None if labelled else None,
            id_column=id_column,
            reading=self.reading,
        )
        name = hub.source_name(source).rpartition("/")[2].partition(".")[0]
        return [dataclasses.replace(row, source=name) for row in found]

    def row(self, given: Any, *, number: int) -> TextRow:
        return text_row(given, number=number, columns=self.spec.text_columns)

    def usable(self, train: list[TextRow]) -> list[TextRow]:
        """Raises UsageError if a negative is the query or the own document of its row."""
        if self.is_similarity:
            return train
        wrong = [row for row in train if {*_plain(row)[:2]} & {*_plain(row)[2:]}]
        if wrong:
            raise UsageError(
                f"{_places(wrong)}: a negative is the query or its own document in {len(wrong):,} "
                "rows; remove the rows, or mine their negatives again"
            )
        same = [row for row in train if len({*_plain(row)[:2]}) == 1]
        if len(same) == len(train):
            raise UsageError(
                f"{train[0].location}: the two texts of every row are the same; name the columns "
                "of two different texts with `text`"
            )
        if same:
            count = f"{len(same):,} of {len(train):,} training rows"
            note(f"{_places(same)}: {count} have the same text twice")
        return train

    def group(self, row: TextRow) -> Any:
        return None if self.is_similarity else _plain(row)[0]

    def fingerprint(self, rows: Sequence[TextRow]) -> str:
        return " ".join(row.source for row in rows) if len(_sizes(rows)) > 1 else ""

    def check(
        self,
        config: TrainConfig,
        train: Sequence[TextRow],
        dev: Mapping[str, Sequence[TextRow]],
    ) -> None:
        """Raises UsageError for a loss that the rows have no values for, a batch that is larger
        than a source or has no negatives, and held-out rows that are trained on: a query of
        `pairs`, or both texts of `similarity`.
        """
        self.similarity = config.embedding.similarity
        loss, size = config.embedding.loss, config.phases[0].global_batch_size
        kind, documents = f"embedding.loss.kind {loss.kind}", len(train[0].texts) - 1
        if loss.needs_scores and not self.spec.label_column:
            raise UsageError(f"{kind} needs scores; name their column with `label`")
        if documents == 1 and loss.needs_negatives:
            raise UsageError(f"{kind} needs negatives; name their columns, or choose another loss")
        if documents == 1 and size == 1 and not loss.needs_scores:
            raise UsageError(
                "`batch_size` 1: a pair has no negatives in its batch; use at least 2, or name "
                "columns of negatives"
            )
        for name, count in _sizes(train).items():
            if count < size:
                raise UsageError(
                    f"{name}: {count:,} rows are fewer than a batch of {size} (`batch_size`), and "
                    "a batch has rows of one source; use a smaller batch, or one file"
                )
            # Without masks, a repeated text is a negative of itself.
            if documents == 1 and getattr(loss, "mask_duplicates", False):
                _require_negatives([row for row in train if row.source == name])
        compared = 2 if self.is_similarity else 1
        seen = {_plain(row)[:compared] for row in train}
        for name, rows in dev.items():
            leaked = [row for row in rows if _plain(row)[:compared] in seen]
            if leaked:
                raise UsageError(
                    f"{_places(leaked)}: {len(leaked):,} rows of {name} are also in the training "
                    f"rows, by {'both texts' if self.is_similarity else 'their query'}; remove "
                    "them from one of the two"
                )

    def head(self) -> HeadConfig:
        return HeadConfig(parts=("embedding",))

    def embedding(self) -> EmbeddingConfig:
        """Returns the loss that fits the columns. MarginMSE compares dot products, because the
        scores of a teacher are not limited to -1 to 1.
        """
        loss, similarity = InfoNCE(), "cosine"
        if self.is_similarity:
            loss = PairLoss.of_kind("cosent")()
        elif self.spec.label_column:
            loss, similarity = PairLoss.of_kind("margin_mse")(), "dot"
        return EmbeddingConfig(
            loss=loss,
            similarity=similarity,
            query_prompt=self.spec.query_prompt or "",
            document_prompt=self.spec.document_prompt or "",
        )

    def encode(
        self, rows: Sequence[TextRow], tokenizer: Tokenizer, *, length: int, labelled: bool
    ) -> Encoded:
        documents = len(rows[0].texts) - 1
        query, document = self.spec.query_prompt or "", self.spec.document_prompt or ""
        found = encode_examples(
            rows,
            tokenizer,
            length=length,
            prompts=(query, *[document] * documents),
            remedy=LONGER if labelled else LONGER_TRAINED,
        )
        if labelled:
            labels = np.zeros((len(rows), documents), np.float32)
            if self.spec.label_column:
                labels[:] = [_scores_of(row) for row in rows]
            weights = np.ones(len(rows), np.float32)
            found = dataclasses.replace(found, labels=labels, weights=weights)
        return Encoded(rows, found)

    def _gold(self, rows: Sequence[TextRow]) -> np.ndarray:
        return np.array([number_of(row) for row in rows], np.float32)

    def score(self, encoded: Encoded, outputs: np.ndarray) -> dict[str, float]:
        """For `pairs`, each query looks for its own documents among those of all rows."""
        rows, vectors_NTD = encoded.rows, self._compared(outputs)
        if self.is_similarity:
            gold, found = self._gold(rows), _similarities(vectors_NTD)[:, 0]
            return {name: _SCORES[name](gold, found) for name in self.spec.metrics}
        # The first row of each distinct query and own document.
        queries, documents = ({}, {})
        grades: dict[str, dict[str, int]] = {}
        for number, row in enumerate(rows):
            query, document = row.texts[:2]
            queries.setdefault(query, number)
            documents.setdefault(document, number)
            grades.setdefault(query, {})[document] = 1
        vectors_QD, vectors_CD = (
            vectors_NTD[[*each.values()], text] for text, each in enumerate((queries, documents))
        )
        mesh, names = jax.sharding.get_mesh(), [*documents]
        found_QK, _ = search(vectors_QD, vectors_CD, DEEPEST, mesh=mesh, hidden=True)
        rankings = {
            query: [names[place] for place in places]
            for query, places in zip(queries, found_QK, strict=True)
        }
        found = retrieval_scores(rankings, grades)
        return {name: found[name] for name in self.spec.metrics}

    def majority_baseline(self, rows: Sequence[TextRow]) -> float:
        return 0.0

    def predictions(self, encoded: Encoded, outputs: np.ndarray) -> list[dict[str, Any]]:
        """Returns the similarity of the first text of a row and each other one."""
        found_NC = _similarities(self._compared(outputs)).tolist()
        return [
            {"id": row.id, "score": each[0] if len(each) == 1 else each}
            for row, each in zip(encoded.rows, found_NC, strict=True)
        ]

    def _compared(self, outputs: np.ndarray) -> np.ndarray:
        """Returns vectors with dot products that are the similarities of the run."""
        return outputs if self.similarity == "dot" else normalized(outputs)


def _similarities(vectors_NTD: np.ndarray) -> np.ndarray:
    return np.einsum("nd,ncd->nc", vectors_NTD[:, 0], vectors_NTD[:, 1:])


def _plain(row: TextRow) -> tuple[str, ...]:
    """Returns the texts of a row with single spaces."""
    return tuple(" ".join(text.split()) for text in row.texts)


def _require_negatives(rows: Sequence[TextRow]) -> None:
    """Raises UsageError if all rows have one query or one document: no row has a negative then."""
    for side, text in enumerate(("query", "document")):
        if len({_plain(row)[side] for row in rows}) == 1:
            raise UsageError(
                f"{rows[0].location}: all {len(rows):,} rows have this {text}, so that none has "
                "negatives in its batch; add other rows, or name columns of negatives"
            )


def _places(rows: Sequence[TextRow]) -> str:
    more = ", ..." if len(rows) > _NAMED else ""
    return ", ".join(row.location for row in rows[:_NAMED]) + more


def _sizes(rows: Iterable[TextRow]) -> Counter[str]:
    """Returns the number of rows of each source."""
    return Counter(row.source for row in rows)


def _scores_of(row: TextRow) -> list[float]:
    """Returns the score of each document of a row. A number for a document and one negative is the
    difference of their scores. Raises UsageError that names the row with other scores.
    """
    documents = len(row.texts) - 1
    if documents < 3 and not str(row.label).startswith("["):
        return [number_of(row), 0.0][:documents]
    try:
        found = json.loads(str(row.label))
    except ValueError:
        found = None
    scores = found if isinstance(found, list) else []
    are_numbers = all(isinstance(x, int | float) and math.isfinite(x) for x in scores)
    if len(scores) != documents or not are_numbers:
        raise UsageError(
            f"{row.location}: scores are {brief(row.label)}; write {documents} numbers as a list, "
            "one for each document"
        )
    return scores


PAIRS = NamedTask(
    spec=TaskSpec(name="pairs", kind="pairs", metrics=FIGURES, label_column=""),
    text_columns=(2, 33),
)
SIMILARITY = NamedTask(
    spec=TaskSpec(name="similarity", kind="similarity", metrics=("spearman", "pearson")),
    text_columns=(2, 2),
)
