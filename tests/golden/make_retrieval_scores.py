"""Writes retrieval_scores.json beside this file: what pytrec_eval computes for made-up rankings.

    pip install pytrec-eval-terrier==0.5.11
    python -m tests.golden.make_retrieval_scores

Scores have few distinct values, so that most documents of a query are tied. Grades are from -1 to
3; some judged documents are not in the ranking, and some queries have no positive.
"""

import json
import math
from pathlib import Path
from typing import NamedTuple

import numpy as np

HERE = Path(__file__).parent
CASES = 12
_DOCUMENTS, _QUERIES = 150, 6


class Case(NamedTuple):
    """`scores` float32 `[queries, documents]`, and the grades of the judged documents."""

    documents: list[str]
    queries: list[str]
    scores: np.ndarray
    grades: dict[str, dict[str, int]]


def case(seed: int) -> Case:
    draw = np.random.default_rng(seed)
    # As text, "d10" comes before "d9".
    documents = [f"{'dé'[number % 2]}{number}" for number in range(_DOCUMENTS)]
    queries = [f"q{number}" for number in range(_QUERIES)]
    scores = draw.integers(-8, 9, (_QUERIES, _DOCUMENTS)).astype(np.float32) / 8
    grades = {}
    for query in queries:
        lowest, highest = (-1, 1) if draw.random() < 0.2 else (-1, 4)
        judged = draw.choice([*documents, "absent 1", "absent 2"], int(draw.integers(1, 30)), False)
        grades[query] = {str(name): int(draw.integers(lowest, highest)) for name in judged}
    return Case(documents, queries, scores, grades)


def official(made: Case) -> dict[str, float]:
    import pytrec_eval

    run = {
        query: dict(zip(made.documents, map(float, scores), strict=True))
        for query, scores in zip(made.queries, made.scores, strict=True)
    }
    measures = {"ndcg_cut.10", "recip_rank", "recall.10,100"}
    evaluated = pytrec_eval.RelevanceEvaluator(made.grades, measures).evaluate(run)
    kept = [evaluated[q] for q, found in made.grades.items() if max(found.values()) > 0]
    return {
        "nDCG@10": math.fsum(each["ndcg_cut_10"] for each in kept) / len(kept),
        # A first positive beyond rank 10 counts as none.
        "MRR@10": math.fsum(x for each in kept if (x := each["recip_rank"]) >= 0.1) / len(kept),
        "recall@10": math.fsum(each["recall_10"] for each in kept) / len(kept),
        "recall@100": math.fsum(each["recall_100"] for each in kept) / len(kept),
    }


if __name__ == "__main__":
    found = [official(case(seed)) for seed in range(CASES)]
    path = HERE / "retrieval_scores.json"
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
