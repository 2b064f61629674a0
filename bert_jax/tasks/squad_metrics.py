"""SQuAD's exact match and F1, as the official scripts compute them (evaluate-v1.1.py, -v2.0.py).

The two scripts differ for empty answers: 1.1 gives an F1 of 0 to answers without common words, even
if both are empty; 2.0 treats two empty answers as equal, ignores gold answers that normalization
empties, and expects the empty answer for a question without gold answers.
"""

import collections
import re
import string
from collections.abc import Mapping, Sequence

from bert_jax.data.tasks.squad import Question

_PUNCTUATION = set(string.punctuation)


def normalise(text: str) -> str:
    """Returns a text in lower case, without punctuation, articles and extra white space."""
    text = "".join(character for character in text.lower() if character not in _PUNCTUATION)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def exact(predicted: str, gold: str) -> float:
    return float(normalise(predicted) == normalise(gold))


def overlap(predicted: str, gold: str, *, empty_may_match: bool) -> float:
    """Returns F1 of the common words, counted with multiplicity."""
    ours, theirs = normalise(predicted).split(), normalise(gold).split()
    if empty_may_match and not (ours and theirs):
        return float(ours == theirs)
    same = sum((collections.Counter(ours) & collections.Counter(theirs)).values())
    if same == 0:
        return 0.0
    precision, recall = same / len(ours), same / len(theirs)
    return 2 * precision * recall / (precision + recall)


def score(
    questions: Sequence[Question], predicted: Mapping[str, str], *, with_unanswerable: bool
) -> dict[str, float]:
    """Returns `exact_match` and `f1` in percent over all questions; an unanswered question scores
    0.

    `with_unanswerable` follows the 2.0 script, and adds both scores separately for questions with
    and without an answer.
    """
    rows = [
        (bool(question.answers), *_best(question, predicted.get(question.id), with_unanswerable))
        for question in questions
    ]
    result = _means("", rows)
    if with_unanswerable:
        result |= _means("answerable_", [row for row in rows if row[0]])
        result |= _means("unanswerable_", [row for row in rows if not row[0]])
    return result


def best_threshold(
    questions: Sequence[Question], answers: Mapping[str, tuple[str, float]]
) -> dict[str, float]:
    """Returns the F1 over all questions with the best threshold for "no answer", and that
    threshold.

    `answers` has the best answer of each question and the margin by which "no answer" scores
    higher: an answer is given if the margin is at most the threshold. As in the 2.0 script
    (`find_best_thresh`) and Devlin et al. 2019, section 4.3, it is tuned on the development set
    itself.
    """
    # With no answers at all, exactly the unanswerable questions are correct.
    right = total = float(sum(_best(question, "", True)[1] for question in questions))
    threshold = min((margin for _, margin in answers.values()), default=0.0) - 1.0
    asked = [question for question in questions if question.id in answers]
    asked.sort(key=lambda question: answers[question.id][1])
    for place, question in enumerate(asked):
        text, margin = answers[question.id]
        right += _best(question, text, True)[1] - _best(question, "", True)[1]
        is_last = place + 1 == len(asked) or answers[asked[place + 1].id][1] > margin
        if is_last and right > total:
            total, threshold = right, margin
    return {"best_f1": 100.0 * total / len(questions), "best_f1_threshold": threshold}


def _best(
    question: Question, predicted: str | None, with_unanswerable: bool
) -> tuple[float, float]:
    """Returns the scores against the best matching gold answer."""
    golds: Sequence[str] = question.answers
    if with_unanswerable:
        golds = [gold for gold in golds if normalise(gold)] or [""]
    if predicted is None or not golds:
        return 0.0, 0.0
    return (
        max(exact(predicted, gold) for gold in golds),
        max(overlap(predicted, gold, empty_may_match=with_unanswerable) for gold in golds),
    )


def _means(prefix: str, rows: Sequence[tuple[bool, float, float]]) -> dict[str, float]:
    if not rows:
        return {}
    return {
        f"{prefix}exact_match": 100.0 * sum(row[1] for row in rows) / len(rows),
        f"{prefix}f1": 100.0 * sum(row[2] for row in rows) / len(rows),
    }
