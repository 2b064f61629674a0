"""Search by planted vectors and by words, and the scores of its rankings."""

import json
import re

import numpy as np
import pytest

from bert_jax.inference import retrieve
from bert_jax.inference.retrieval_scores import DEEPEST, retrieval_scores
from tests.batches import mesh_of
from tests.golden import make_retrieval_scores
from tests.paths import GOLDEN

_GOLDEN = json.loads((GOLDEN / "retrieval_scores.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("devices", [1, 8])
def test_scores_equal_those_of_pytrec_eval_with_ties_and_grades(devices, monkeypatch):
    monkeypatch.setattr(retrieve, "_DOCUMENTS", 40)  # several tiles, the last one smaller
    dropped = 0
    for seed, expected in enumerate(_GOLDEN):
        case = make_retrieval_scores.case(seed)
        ids = sorted(case.documents, reverse=True)
        vectors = case.scores.T[[case.documents.index(id_) for id_ in ids]]
        queries = np.eye(len(case.queries), dtype=np.float32)
        rows, _ = retrieve.search(queries, vectors, DEEPEST, mesh=mesh_of((devices, 1, 1)))
        rankings = {q: [ids[i] for i in of_q] for q, of_q in zip(case.queries, rows, strict=True)}
        assert retrieval_scores(rankings, case.grades) == pytest.approx(expected, abs=1e-12)
        dropped += sum(max(found.values()) <= 0 for found in case.grades.values())
    assert dropped, "queries without a positive count nowhere"


def test_search_equals_a_stable_sort_of_all_scores(monkeypatch):
    monkeypatch.setattr(retrieve, "_QUERIES", 4)
    monkeypatch.setattr(retrieve, "_DOCUMENTS", 30)
    draw = np.random.default_rng(0)
    queries = draw.integers(-2, 3, (11, 5)).astype(np.float32)
    documents = draw.integers(-2, 3, (100, 5)).astype(np.float32)
    rows, scores = retrieve.search(queries, documents, 40, mesh=mesh_of((8, 1, 1)))
    whole = queries @ documents.T
    expected = np.argsort(-whole, axis=1, kind="stable")[:, :40]
    assert (rows == expected).all()
    assert (scores == np.take_along_axis(whole, expected, axis=1)).all()
    assert retrieve.search(queries, documents[:7], 40, mesh=mesh_of((8, 1, 1)))[0].shape == (11, 7)


def test_bm25_equals_its_formula():
    """Lucene's BM25 (k1 0.9, b 0.4), and the smaller place first for equal scores."""
    pytest.importorskip("bm25s", reason="needs the extra 'retrieval'")
    documents = ["The owl sleeps.", "", "An owl, an OWL!", "A horse eats hay", "The owl sleeps."]
    rows = retrieve.bm25_search(["owl owl hay", "unknown"], documents, 10)
    words = [re.findall(r"\w+", text.lower()) for text in documents]
    mean = np.mean([len(each) for each in words])

    def weight(word: str, document: list[str]) -> float:
        containing = sum(word in each for each in words)
        idf = np.log(1 + (len(words) - containing + 0.5) / (containing + 0.5))
        count = document.count(word)
        return idf * 1.9 * count / (count + 0.9 * (0.6 + 0.4 * len(document) / mean))

    scores = [2 * weight("owl", each) + weight("hay", each) for each in words]
    assert rows[0].tolist() == np.argsort(-np.asarray(scores, np.float32), kind="stable").tolist()
    assert rows[1].tolist() == [0, 1, 2, 3, 4]
