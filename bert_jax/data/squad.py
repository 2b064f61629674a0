"""Questions about paragraphs, from SQuAD's JSON (1.1 and 2.0) or TFDS."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_jax.data.corpus import whole_characters
from bert_jax.data.task_files import read_text, read_tfds
from bert_jax.errors import UsageError


@dataclass(frozen=True)
class Question:
    """A question, its paragraph, and every answer that people gave; none if it has no answer."""

    place: str
    id: str
    question: str
    context: str
    # What the answers say, and the character of the context where each begins.
    answers: tuple[str, ...]
    starts: tuple[int, ...]


def read_questions(
    source: Path | str, *, split: str = "train", labelled: bool = True
) -> list[Question]:
    """Every question of a SQuAD JSON file (`.gz` as well), or of `tfds:squad/...`.

    Without `labelled`, answers in a JSON file are not read.

    Raises UsageError that names the file, the question and the field where one is missing, an id
    comes twice, or the context does not have the answer where it is said to begin.
    """
    if str(source).startswith("tfds:"):
        found = [_from_tfds(place, record) for place, record in read_tfds(str(source), split)]
    else:
        found = list(_from_json(Path(source), labelled=labelled))
    seen: set[str] = set()
    for question in found:
        if question.id in seen:
            raise UsageError(f"{question.place}: the id comes twice; ids name the predictions")
        seen.add(question.id)
        for answer, start in zip(question.answers, question.starts, strict=True):
            there = question.context[max(start, 0) : max(start, 0) + len(answer)]
            if start < 0 or there != answer:
                raise UsageError(
                    f"{question.place}: answer_start {start} is not where the answer "
                    f"{_short(answer)} stands; the context has {_short(there)} there: correct "
                    "answer_start (it counts characters from 0)"
                )
    if not found:
        raise UsageError(f"{source} has no questions")
    return found


def _from_json(path: Path, *, labelled: bool) -> Iterator[Question]:
    try:
        values = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not JSON: {error}") from error
    for a, article in enumerate(_field(values, "data", list, str(path))):
        title = article.get("title", f"article {a}") if isinstance(article, dict) else ""
        for p, paragraph in enumerate(_field(article, "paragraphs", list, f"{path}, {title}")):
            where = f"{path}, {title}, paragraph {p}"
            context = _field(paragraph, "context", str, where)
            for q, entry in enumerate(_field(paragraph, "qas", list, where)):
                name = str(_field(entry, "id", (str, int), f"{where}, question {q}"))
                place = f"{path}, question {name}"
                yield Question(
                    place,
                    name,
                    _field(entry, "question", str, place),
                    context,
                    *(_answers(entry, place) if labelled else ((), ())),
                )


def _answers(entry: dict[str, Any], place: str) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Texts and starts; empty for SQuAD 2.0's `is_impossible`, and where there are none.

    An answer without text is none: it marks no span.
    """
    if entry.get("is_impossible"):
        return (), ()
    answers = entry.get("answers", [])
    if not isinstance(answers, list):
        raise UsageError(f"{place}: `answers` must be a list")
    found = [
        (_field(answer, "text", str, place), _field(answer, "answer_start", int, place))
        for answer in answers
    ]
    spans = [(text, start) for text, start in found if text]
    return tuple(text for text, _ in spans), tuple(start for _, start in spans)


def _from_tfds(place: str, record: dict[str, Any]) -> Question:
    missing = [name for name in ("id", "question", "context", "answers") if name not in record]
    if missing:
        raise UsageError(f"{place}: no {missing[0]!r}; use tfds:squad/v1.1 or tfds:squad/v2.0")
    answers = record["answers"]
    if record.get("is_impossible"):
        answers = {"text": [], "answer_start": []}
    return Question(
        place,
        record["id"],
        record["question"],
        record["context"],
        tuple(answers["text"]),
        tuple(answers["answer_start"]),
    )


def _field(value: Any, name: str, kind: Any, place: str) -> Any:
    found = value.get(name) if isinstance(value, dict) else None
    if not isinstance(found, kind) or isinstance(found, bool):
        raise UsageError(f"{place}: needs `{name}`; is this SQuAD's JSON?")
    return whole_characters(found) if isinstance(found, str) else found


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:37] + "...")
