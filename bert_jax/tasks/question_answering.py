"""Extractive question answering: SQuAD 1.1 and 2.0.

Answers are chosen from start and end scores as in google-research/bert run_squad.py: the best spans
of all windows of a question compete; an answer is within one window, has a limited length, and
starts in the window with the most context for its first token. Its text is cut from the paragraph.
"""

import dataclasses
import math
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bert_jax.config import HeadConfig
from bert_jax.data.sources.document import whole_characters
from bert_jax.data.sources.stream import HELD_OUT
from bert_jax.data.tasks.squad import Question, read_questions
from bert_jax.data.tasks.windows import Windows, encode_questions
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UsageError, brief
from bert_jax.progress import note
from bert_jax.tasks import squad_metrics
from bert_jax.tasks.task import Encoded, NamedTask, Sources, Splits, Task, TaskSpec


@dataclass(frozen=True)
class Answer:
    """A candidate answer; lists of them are sorted, best first. The empty text is "no answer"."""

    text: str
    score: float
    start: int


class SpanTask(Task):
    """Classifies the tokens of a window as start and end of the answer."""

    default_length = 384  # google-research/bert run_squad.py
    has_percent_scores = True

    def known_metrics(self) -> Sequence[str]:
        return ("f1", "exact_match")

    def figures(self) -> Sequence[str]:
        known = self.known_metrics()
        if self.spec.with_unanswerable:
            parts = ("answerable", "unanswerable")
            known = (*known, *(f"{part}_{name}" for part in parts for name in known), "best_f1")
        return tuple(dict.fromkeys((*self.spec.metrics, *known)))

    def read(
        self, source: str, *, labelled: bool = True, id_column: str | None = None
    ) -> list[Question]:
        return read_questions(source, labelled=labelled, reading=self.reading)

    def row(self, given: Any, *, number: int) -> Question:
        """Returns the question of a dict with `question`, `context` and optionally `id`."""
        found = dict(given) if isinstance(given, Mapping) else {}
        question, context = found.get("question"), found.get("context")
        if not isinstance(question, str) or not isinstance(context, str):
            raise UsageError(
                f"row {number}: expected a dict of question and context, got {brief(given)}"
            )
        return Question(
            f"row {number}",
            str(found.get("id", number)),
            whole_characters(question),
            whole_characters(context),
            answers=(),
            starts=(),
        )

    def usable(self, train: list[Question]) -> list[Question]:
        if self.spec.with_unanswerable:
            return train
        answered = [question for question in train if question.answers]
        if len(answered) < len(train):
            note(f"skipping {len(train) - len(answered)} training questions without an answer")
        return answered

    def describe(self, encoded: Encoded, *, length: int) -> str:
        rows = encoded.rows
        found: Windows = encoded.alignment
        lost = int((~found.answered).sum()) - sum(not question.answers for question in rows)
        return (
            f"{len(rows):,} questions in {len(found.questions):,} windows of {length} tokens; "
            f"{lost} answers do not fit in any window"
        )

    def fingerprint(self, rows: Sequence[Question]) -> str:
        # Answers outside of all windows have no label.
        return repr([(question.id, question.answers) for question in rows])

    def head(self) -> HeadConfig:
        return HeadConfig(parts=("span_classifier",))

    def encode(
        self, rows: Sequence[Question], tokenizer: Tokenizer, *, length: int, labelled: bool
    ) -> Encoded:
        found = encode_questions(
            rows,
            tokenizer,
            length=length,
            stride=self.spec.doc_stride,
            max_question=self.spec.max_question_length,
            labelled=labelled,
        )
        return Encoded(rows, found.features, found)

    def score(self, encoded: Encoded, outputs: np.ndarray) -> dict[str, float]:
        rows, records = encoded.rows, self.predictions(encoded, outputs)
        predicted = {record["id"]: record["prediction"] for record in records}
        scores = squad_metrics.score(rows, predicted, with_unanswerable=self.spec.with_unanswerable)
        if self.spec.with_unanswerable:
            answers = {
                record["id"]: (
                    next(answer["text"] for answer in record["n_best"] if answer["text"]),
                    record["no_answer_margin"],
                )
                for record in records
                if record["no_answer_margin"] is not None
            }
            scores |= squad_metrics.best_threshold(rows, answers)
        return scores

    def majority_baseline(self, rows: Sequence[Question]) -> float:
        if not any(question.answers for question in rows):
            return -math.inf
        silent = {question.id: "" for question in rows}
        scores = squad_metrics.score(rows, silent, with_unanswerable=self.spec.with_unanswerable)
        return scores[self.spec.metrics[0]]

    def predictions(self, encoded: Encoded, outputs: np.ndarray) -> list[dict[str, Any]]:
        windows: Windows = encoded.alignment
        of_question: list[list[int]] = [[] for _ in encoded.rows]
        for row, number in enumerate(windows.questions.tolist()):
            of_question[number].append(row)
        return [
            self._record(question, self._answers(question, windows, mine, outputs), outputs[mine])
            for question, mine in zip(encoded.rows, of_question, strict=True)
        ]

    def _answers(
        self, question: Question, windows: Windows, mine: Sequence[int], outputs: np.ndarray
    ) -> list[Answer]:
        """Returns the `n_best` answers with different texts, best first, without "no answer"."""
        spec, found = self.spec, []
        for row in mine:
            in_context = windows.characters[row, :, 0] >= 0
            starts = _best(outputs[row, :, 0], in_context & windows.is_best[row], spec.n_best)
            ends = _best(outputs[row, :, 1], in_context, spec.n_best)
            for first in starts:
                for last in ends:
                    if first <= last < first + spec.max_answer_length:
                        score = float(outputs[row, first, 0]) + float(outputs[row, last, 1])
                        begin, stop = windows.characters[row, [first, last], [0, 1]].tolist()
                        text = question.context[begin : _end_of_letter(question.context, stop)]
                        # In some tokenizers a token includes the space before its word.
                        begin += len(text) - len(text.lstrip())
                        if text := text.strip():
                            found.append(Answer(text, score, begin))
        different: dict[str, Answer] = {}
        for answer in sorted(found, key=lambda a: (-a.score, a.start, len(a.text))):
            different.setdefault(answer.text, answer)
        return [*different.values()][: spec.n_best]

    def _record(
        self, question: Question, answers: list[Answer], outputs_NL2: np.ndarray
    ) -> dict[str, Any]:
        if self.spec.with_unanswerable:
            # [CLS] means "no answer": the lowest score of all windows counts.
            null = float(np.min(outputs_NL2[:, 0, 0] + outputs_NL2[:, 0, 1]))
            answers = sorted([*answers, Answer("", null, -1)], key=lambda answer: -answer.score)
        candidates = answers or [Answer("", 0.0, -1)]
        scores = np.array([answer.score for answer in candidates])
        shares = np.exp(scores - np.logaddexp.reduce(scores))
        record: dict[str, Any] = {
            "id": question.id,
            "prediction": candidates[0].text,
            "n_best": [
                {"text": answer.text, "probability": float(share)}
                for answer, share in zip(candidates, shares, strict=True)
            ],
        }
        if self.spec.with_unanswerable:
            best = next((answer for answer in candidates if answer.text), None)
            margin = null - best.score if best else float("inf")
            has_none = best is None or margin > self.spec.null_threshold
            record["prediction"] = "" if best is None or has_none else best.text
            record["no_answer_margin"] = margin if best else None
        return record


def _end_of_letter(text: str, stop: int) -> int:
    """Returns the end of the letter before `stop`, including combining marks and characters that
    compose with it. A vocabulary without accents has no token for marks, and if text is composed
    before it is split, a token covers only the first part of a letter.
    """
    while stop < len(text) and (
        unicodedata.category(text[stop]).startswith("M")
        or _is_composed(text[max(stop - 2, 0) : stop], text[stop])
    ):
        stop += 1
    return stop


def _is_composed(before: str, character: str) -> bool:
    """Returns whether a character composes with the text before it: the jamo of a Korean syllable
    (at most three), the voicing mark of half-width kana.
    """
    parts = (unicodedata.normalize("NFKC", part) for part in (before, character))
    return unicodedata.normalize("NFKC", before + character) != "".join(parts)


def _best(scores: np.ndarray, allowed: np.ndarray, count: int) -> list[int]:
    """Returns the allowed tokens with the highest scores."""
    (allowed_positions,) = np.nonzero(allowed)
    order = np.argsort(-scores[allowed_positions], kind="stable")[:count]
    return allowed_positions[order].tolist()


class Squad(NamedTask):
    """SQuAD 1.1 or 2.0."""

    def read(self, task: Task, sources: Sources) -> Splits:
        """Reads `tfds:squad/...`, or two files."""
        if sources.data is None:
            return super().read(task, sources)
        if not sources.data.startswith("tfds:"):
            raise UsageError(f"`data` {sources.data}: use `train` and `dev`, or tfds:squad/...")
        if sources.train or sources.dev is not None:
            raise UsageError(f"`data` {sources.data} has all rows; leave out `train` and `dev`")
        dev = dataclasses.replace(sources.reading, splits=HELD_OUT)
        train = read_questions(sources.data, reading=sources.reading)
        return train, {"dev": read_questions(sources.data, reading=dev)}


_SPANS = TaskSpec(name="squad", kind="spans", metrics=("f1", "exact_match"))
SQUAD = Squad(spec=_SPANS)
SQUAD2 = Squad(spec=dataclasses.replace(_SPANS, name="squad2", with_unanswerable=True))
