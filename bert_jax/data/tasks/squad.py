"""Questions about paragraphs, from SQuAD's JSON (1.1 and 2.0) or TFDS."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bert_jax import strict_json
from bert_jax.data.sources.document import whole_characters
from bert_jax.data.sources.read import read_text
from bert_jax.data.sources.stream import SourceOptions
from bert_jax.data.sources.tfds import tfds_records
from bert_jax.errors import UsageError
from bert_jax.progress import note


@dataclass(frozen=True)
class Question:
    """A question, its paragraph, and every annotated answer; none if it is unanswerable."""

    location: str
    id: str
    question: str
    context: str
    # The texts of the answers, and the index of the first character of each in the context.
    answers: tuple[str, ...]
    starts: tuple[int, ...]


# The expected format, for error messages.
_FORM = (
    """SQuAD's JSON is {"data": [{"paragraphs": [{"context": TEXT, "qas": [{"id": NAME, """
    """"question": TEXT, "answers": [{"text": TEXT, "answer_start": NUMBER}]}]}]}]}; to predict """
    """omit the answers"""
)


def read_questions(
    source: Path | str,
    *,
    labelled: bool = True,
    reading: SourceOptions | None = None,
) -> list[Question]:
    """Returns every question of a SQuAD JSON file, compressed or not, local or at an address, or of
    `tfds:squad/...` with the split `reading.splits`.

    Without `labelled`, answers in a JSON file are not read. An answer that is not at its
    `answer_start` is an error or, with `reading.skips_records`, skipped and counted; a question
    without other answers is also skipped.

    Raises UsageError that names the file, the question and the field if a field is missing, an id
    occurs twice, or answers are not at their `answer_start`.
    """
    reading = reading or SourceOptions()
    if str(source).startswith("tfds:"):
        records = tfds_records(str(source), reading.splits)
        found = [_from_tfds(location, record) for location, record in records]
    else:
        found = list(_from_json(source, reading, labelled=labelled))
    seen: set[str] = set()
    for question in found:
        if question.id in seen:
            raise UsageError(f"{question.location}: the id occurs twice; ids name the predictions")
        seen.add(question.id)
    found = _aligned(found, str(source), skip_bad=reading.skips_records)
    if not found:
        raise UsageError(f"{source} has no questions")
    return found


def _aligned(questions: list[Question], source: str, *, skip_bad: bool) -> list[Question]:
    """Returns the questions without misaligned answers."""
    kept: list[Question] = []
    bad: list[str] = []
    for question in questions:
        spans = []
        for answer, start in zip(question.answers, question.starts, strict=True):
            if start >= 0 and question.context.startswith(answer, start):
                spans.append((answer, start))
                continue
            there = question.context[max(start, 0) : max(start, 0) + len(answer)]
            bad.append(
                f"{question.location}: answer_start {start} is not where the answer "
                f"{_short(answer)} is; the context has {_short(there)} there"
            )
        if spans or not question.answers:
            texts, starts = tuple(text for text, _ in spans), tuple(start for _, start in spans)
            kept.append(replace(question, answers=texts, starts=starts))
    if bad and not skip_bad:
        more = f", and {len(bad) - 1:,} similar errors" if len(bad) > 1 else ""
        raise UsageError(
            f"{bad[0]}{more}: correct answer_start (it counts characters from 0), or skip such "
            "answers with `on_bad_record` skip"
        )
    if bad:
        note(
            f"{source}: skipped {len(bad):,} answers that are not at their answer_start, and "
            f"{len(questions) - len(kept):,} questions without other answers; the first: {bad[0]}"
        )
    return kept


def _from_json(path: Path | str, reading: SourceOptions, *, labelled: bool) -> Iterator[Question]:
    text = read_text(path, reading)
    try:
        values = strict_json.parse_file(path, text)
    except UsageError as error:
        raise UsageError(f"{error}; {_FORM}") from error
    for a, article in enumerate(_field(values, "data", list, str(path))):
        title = article.get("title", f"article {a}") if isinstance(article, dict) else ""
        for p, paragraph in enumerate(_field(article, "paragraphs", list, f"{path}, {title}")):
            where = f"{path}, {title}, paragraph {p}"
            context = _field(paragraph, "context", str, where)
            for q, entry in enumerate(_field(paragraph, "qas", list, where)):
                name = str(_field(entry, "id", (str, int), f"{where}, question {q}"))
                location = f"{path}, question {name}"
                yield Question(
                    location,
                    name,
                    _field(entry, "question", str, location),
                    context,
                    *(_answers(entry, location) if labelled else ((), ())),
                )


def _answers(entry: dict[str, Any], location: str) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Returns texts and starts; empty for SQuAD 2.0's `is_impossible` and for missing answers.

    An answer without text marks no span and is skipped.
    """
    if entry.get("is_impossible"):
        return (), ()
    answers = entry.get("answers", [])
    if not isinstance(answers, list):
        raise UsageError(f"{location}: 'answers' must be a list; {_FORM}")
    found = [
        (_field(answer, "text", str, location), _field(answer, "answer_start", int, location))
        for answer in answers
    ]
    spans = [(text, start) for text, start in found if text]
    return tuple(text for text, _ in spans), tuple(start for _, start in spans)


def _from_tfds(location: str, record: dict[str, Any]) -> Question:
    missing = [n for n in ("id", "question", "context") if not isinstance(record.get(n), str)]
    missing += ["answers"] * ("answers" not in record)
    if missing:
        raise UsageError(f"{location}: no {missing[0]!r}; use tfds:squad/v1.1 or tfds:squad/v2.0")
    answers = record["answers"]
    if record.get("is_impossible"):
        answers = {"text": [], "answer_start": []}
    return Question(
        location,
        record["id"],
        record["question"],
        record["context"],
        tuple(answers["text"]),
        tuple(answers["answer_start"]),
    )


def _field(value: Any, name: str, kind: Any, location: str) -> Any:
    found = value.get(name) if isinstance(value, dict) else None
    if not isinstance(found, kind) or isinstance(found, bool):
        raise UsageError(f"{location}: needs {name!r}; {_FORM}")
    return whole_characters(found) if isinstance(found, str) else found


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:37] + "...")
