"""Scores of rankings by the definitions of trec_eval (pytrec_eval 0.5): nDCG, MRR and recall.

With documents ranked by their score, and documents of equal score by their id in descending order:

- nDCG@k is the sum of grade / log2(1 + rank) over the first k documents, divided by the largest sum
  that any ranking of the judged documents has. The gain is linear (the grade itself); grades below
  1 gain nothing.
- MRR@k is 1 / rank of the first positive among the first k documents, else 0.
- recall@k is the share of the positives among the first k documents.

Each is the mean over the queries that have a positive (a document with a grade above 0).
"""

from collections.abc import Mapping, Sequence

import numpy as np

# The number of documents of a ranking that the scores need.
DEEPEST = 100
FIGURES = ("nDCG@10", "MRR@10", "recall@10", "recall@100")


def retrieval_scores(
    rankings: Mapping[str, Sequence[str]], grades: Mapping[str, Mapping[str, int]]
) -> dict[str, float]:
    """Returns nDCG@10, MRR@10, recall@10 and recall@100 by name.

    `rankings` has the ids of the first `DEEPEST` documents of each query, best first; `grades` the
    grades of the judged documents of each query, at least one of which has a positive.
    """
    found = [
        _of_query([judged.get(document, 0) for document in rankings[query]], [*judged.values()])
        for query, judged in grades.items()
        if max(judged.values(), default=0) > 0
    ]
    return {name: float(np.mean([scores[name] for scores in found])) for name in found[0]}


def _of_query(ranked: Sequence[int], judged: Sequence[int]) -> dict[str, float]:
    """Returns the scores of a query by the grades of its ranked and of its judged documents."""
    is_positive = np.array(ranked) > 0
    positives = sum(grade > 0 for grade in judged)
    first = int(np.argmax(is_positive)) if is_positive[:10].any() else None
    return {
        "nDCG@10": _dcg(ranked[:10]) / _dcg(sorted(judged, reverse=True)[:10]),
        "MRR@10": 0.0 if first is None else 1 / (first + 1),
        "recall@10": is_positive[:10].sum() / positives,
        "recall@100": is_positive[:100].sum() / positives,
    }


def _dcg(grades: Sequence[int]) -> float:
    return float(np.sum(np.maximum(grades, 0) / np.log2(np.arange(2, len(grades) + 2))))
