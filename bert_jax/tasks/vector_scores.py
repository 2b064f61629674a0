"""How well the vectors of a model find documents, and agree with people about similar texts."""

from collections.abc import Sequence

import numpy as np

from bert_jax.data.tasks.retrieval_sets import RetrievalSet
from bert_jax.data.tasks.tables import TextRow
from bert_jax.inference.retrieval_scores import DEEPEST, retrieval_scores
from bert_jax.inference.retrieve import (
    DOCUMENT_PROMPTS,
    QUERY_PROMPTS,
    bm25_search,
    search,
    text_vectors,
)
from bert_jax.pretrained.load import LoadedCheckpoint
from bert_jax.tasks.scores import spearman
from bert_jax.tasks.sequence_classification import number_of


def score_retrieval(
    checkpoint: LoadedCheckpoint | None, given: RetrievalSet, *, length: int | None = None
) -> dict[str, float]:
    """Returns `retrieval_scores` of the rankings by similarity, or without a checkpoint by BM25.

    A document that is the query itself (the same id, and the query's text at its end) is left out
    of the ranking, as beir does for ArguAna and Quora.
    """
    ids = sorted(given.documents, reverse=True)  # the order of equal scores
    documents, queries = [given.documents[id_] for id_ in ids], [*given.queries.values()]
    k = DEEPEST + 1  # the query itself may be one
    if checkpoint is None:
        rows_QK = bm25_search(queries, documents, k)
    else:
        vectors_NW = text_vectors(checkpoint, documents, prompts=DOCUMENT_PROMPTS, length=length)
        vectors_QW = text_vectors(checkpoint, queries, prompts=QUERY_PROMPTS, length=length)
        rows_QK, _ = search(vectors_QW, vectors_NW, k, mesh=checkpoint.mesh)
    rankings = {}
    for (query, text), rows in zip(given.queries.items(), rows_QK, strict=True):
        itself = query if given.documents.get(query, "").endswith(text) else None
        rankings[query] = [ids[row] for row in rows if ids[row] != itself][:DEEPEST]
    return retrieval_scores(rankings, given.grades)


def score_similarity(
    checkpoint: LoadedCheckpoint, rows: Sequence[TextRow], *, length: int | None = None
) -> dict[str, float]:
    """Returns Spearman's correlation of the similarity of two texts with their score.

    Raises UsageError that names the row for a score that is not a finite number.
    """
    gold = np.array([number_of(row) for row in rows])
    texts = [text for row in rows for text in row.texts]
    vectors_NW = text_vectors(checkpoint, texts, length=length)
    found = np.sum(vectors_NW[0::2] * vectors_NW[1::2], axis=1)
    return {"Spearman": spearman(gold, found)}
