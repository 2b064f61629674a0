"""Retrieval sets in the form of BEIR: documents, queries, and which documents answer a query.

A set is a folder of three tables, each in any format that `rows` reads, packed or not:

    corpus.jsonl                     _id, text, and an optional title
    queries.jsonl                    _id, text
    qrels.tsv, or qrels/test.tsv     query-id, corpus-id, score

The text of a document is its title, a space and its text, as in beir and mteb.
"""

import glob
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bert_jax.data.sources.columns import Columns
from bert_jax.data.tasks.tables import cell_text, rows_of
from bert_jax.errors import UsageError, brief
from bert_jax.progress import note

_ID = ("_id", "id")
# The first alternative that a row has: a document without a title has its text twice.
_TEXT_AND_TITLE = (("text",), ("title", "text"))
_JUDGMENT = (("query-id",), ("corpus-id",), ("score",))
_REMEDY = "these are the columns of a retrieval set in the form of BEIR"


@dataclass(frozen=True)
class RetrievalSet:
    """Documents and queries by their ids, and the grades of the judged documents of each query.

    Every query has at least one positive, that is a document with a grade above 0.
    """

    documents: dict[str, str]
    queries: dict[str, str]
    grades: dict[str, dict[str, int]]


def read_retrieval_set(folder: Path) -> RetrievalSet:
    """Returns the set in a folder, with the queries that have a positive.

    Raises UsageError that names the file and the line for an id that occurs twice, a query without
    text, a judgment of an unknown query, and a grade that is not a whole number; and for a set
    without a positive that is one of its documents.
    """
    base = glob.escape(str(folder))
    documents: dict[str, str] = {}
    for where, (key, text, title) in _table(f"{base}/corpus.*", (_ID, *_TEXT_AND_TITLE)):
        _add(documents, where, key, _document(text, title))
    queries: dict[str, str] = {}
    for where, (key, text) in _table(f"{base}/queries.*", (_ID, ("text",))):
        if not text.strip():
            raise UsageError(f"{where}: the query has no text; remove it and its judgments")
        _add(queries, where, key, text)
    judged = f"{base}/qrels/test.*" if (folder / "qrels").is_dir() else f"{base}/qrels.*"
    grades: dict[str, dict[str, int]] = {}
    for where, (query, document, score) in _table(judged, _JUDGMENT):
        if query not in queries:
            raise UsageError(f"{where}: no query {brief(query)} in the set")
        grade = _grade(where, score)
        if grades.setdefault(query, {}).setdefault(document, grade) != grade:
            raise UsageError(f"{where}: {brief(document)} has two grades; remove one of the lines")
    grades = {query: found for query, found in grades.items() if max(found.values()) > 0}
    positives = [d for found in grades.values() for d, grade in found.items() if grade > 0]
    unknown = [document for document in positives if document not in documents]
    if len(unknown) == len(positives):
        raise UsageError(f"{judged}: no document of the corpus has a grade above 0")
    if unknown:
        note(
            f"{judged}: {len(unknown):,} positives are not in the corpus, the first: "
            f"{brief(unknown[0])}; they count as not found"
        )
    return RetrievalSet(documents, {query: queries[query] for query in grades}, grades)


def read_candidates(source: str) -> Iterator[str]:
    """Yields the texts of the documents of a file, folder or glob, without blank documents."""
    for _, (text, title) in _table(source, _TEXT_AND_TITLE):
        if document := _document(text, title):
            yield document


def _table(source: str, names: Sequence[Sequence[str]]) -> Iterator[tuple[str, list[str]]]:
    """Yields the file and line of each row, and its cells as text; an id may be a number."""
    for (where, cells), _ in rows_of(source, Columns(names, _REMEDY)):
        named = zip(names, cells, strict=True)
        yield where, [cell_text(where, name, cell) for (name, *_), cell in named]


def _add(found: dict[str, str], where: str, key: str, text: str) -> None:
    if key in found:
        raise UsageError(f"{where}: the id {brief(key)} occurs twice; rename one")
    found[key] = text


def _document(text: str, title: str) -> str:
    return text.strip() if title == text else f"{title} {text}".strip()


def _grade(where: str, value: str) -> int:
    try:
        if (grade := float(value)).is_integer():
            return int(grade)
    except ValueError:
        pass
    raise UsageError(f"{where}: the score is {brief(value)}; write a whole number")
