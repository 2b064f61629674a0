"""Retrieval sets in the form of BEIR, and the errors that name file and line."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from bert_jax.data.tasks.retrieval_sets import read_candidates, read_retrieval_set
from bert_jax.errors import UsageError

_DOCUMENTS = [
    {"_id": "d1", "title": "Owls", "text": "They sleep."},
    {"_id": "d2", "title": "", "text": "Horses eat hay."},
    {"_id": 3, "text": "No title."},
    {"_id": "d4", "title": "", "text": ""},
]
_QUERIES = [{"_id": "q1", "text": "owl"}, {"_id": "q2", "text": "hay"}, {"_id": "q3", "text": "x"}]
_JUDGMENTS = [("q1", "d1", "2"), ("q1", "3", "0"), ("q2", "d2", "1"), ("q3", "d1", "0")]


def lines(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def write(folder: Path, **changes: Any) -> Path:
    """Writes a set with the given `documents`, `queries` or `judgments`."""
    documents, queries = changes.get("documents", _DOCUMENTS), changes.get("queries", _QUERIES)
    (folder / "corpus.jsonl.gz").write_bytes(gzip.compress(lines(documents).encode()))
    (folder / "queries.jsonl").write_text(lines(queries))
    (folder / "qrels").mkdir()
    rows = [("query-id", "corpus-id", "score"), *changes.get("judgments", _JUDGMENTS)]
    (folder / "qrels/test.tsv").write_text("".join("\t".join(row) + "\n" for row in rows))
    (folder / "qrels/train.tsv").write_text("not read")
    return folder


def test_a_set_is_read(tmp_path, our_messages):
    found = read_retrieval_set(write(tmp_path))
    assert found.documents == {
        "d1": "Owls They sleep.",
        "d2": "Horses eat hay.",
        "3": "No title.",
        "d4": "",
    }
    assert found.queries == {"q1": "owl", "q2": "hay"}, "q3 has no positive"
    assert found.grades == {"q1": {"d1": 2, "3": 0}, "q2": {"d2": 1}}
    (tmp_path / "qrels/test.tsv").rename(tmp_path / "qrels.tsv")
    (tmp_path / "qrels/train.tsv").unlink()
    (tmp_path / "qrels").rmdir()
    assert read_retrieval_set(tmp_path) == found
    assert not our_messages()
    texts = [*read_candidates(str(tmp_path / "corpus.jsonl.gz"))]
    assert texts == ["Owls They sleep.", "Horses eat hay.", "No title."]


def test_positives_that_the_corpus_lacks_are_counted(tmp_path, our_messages):
    found = read_retrieval_set(write(tmp_path, judgments=[*_JUDGMENTS, ("q2", "d9", "1")]))
    assert found.grades["q2"] == {"d2": 1, "d9": 1}
    assert "1 positives are not in the corpus" in our_messages()[0]


_BAD = {
    "an id twice": ({"documents": [*_DOCUMENTS, _DOCUMENTS[0]]}, r"corpus.*line 5.*'d1'"),
    "text that is null": ({"documents": [{"_id": "d", "text": None}]}, r"corpus.*line 1.*'text'"),
    "no text": ({"documents": [{"_id": "d"}]}, r"corpus.*line 1.*'text'"),
    "a blank query": ({"queries": [{"_id": "q1", "text": " "}]}, r"queries.*line 1.*no text"),
    "an unknown query": ({"judgments": [("q9", "d1", "1")]}, r"test\.tsv, line 2.*'q9'"),
    "a grade": ({"judgments": [("q1", "d1", "nan")]}, r"test\.tsv, line 2.*'nan'"),
    "half a grade": ({"judgments": [("q1", "d1", "0.5")]}, r"test\.tsv, line 2.*'0.5'"),
    "two grades": ({"judgments": [("q1", "d1", "1"), ("q1", "d1", "2")]}, r"line 3.*'d1'"),
    "no positive": ({"judgments": [("q1", "d1", "0")]}, r"test\..*grade above 0"),
    "other documents": ({"judgments": [("q1", "d9", "1")]}, r"test\..*grade above 0"),
}


@pytest.mark.parametrize("case", _BAD)
def test_an_error_names_file_and_line(case, tmp_path):
    changes, expected = _BAD[case]
    with pytest.raises(UsageError, match=expected):
        read_retrieval_set(write(tmp_path, **changes))


def test_a_missing_table_is_named(tmp_path):
    write(tmp_path)
    (tmp_path / "queries.jsonl").unlink()
    with pytest.raises(UsageError, match=r"queries\.\*: no file"):
        read_retrieval_set(tmp_path)
