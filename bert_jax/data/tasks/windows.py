"""Splits paragraphs longer than the model into overlapping windows, and locates answers in them.

As google-research/bert run_squad.py, except that the tokenizer reports the offsets of tokens in the
text.
Dims: N windows, L sequence length.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bert_jax.data.tasks.encode_rows import Features, RowArrays, note_cut
from bert_jax.data.tasks.squad import Question
from bert_jax.data.tokenizer.tokenizer import Tokenizer
from bert_jax.errors import UsageError


@dataclass(frozen=True)
class Windows:
    """Rows `[CLS] question [SEP] window [SEP]`, and the positions of their tokens in the paragraph.

    `questions` int32 `[N]` is the question of each row. `characters` int32 `[N, L, 2]` has the
    first and last + 1 character of each token of the paragraph; -1 elsewhere. `is_best` bool
    `[N, L]`: of all windows with the token, this one has the most context. `answered` bool
    `[questions]`: a window contains the whole first answer.
    """

    features: Features
    questions: np.ndarray
    characters: np.ndarray
    is_best: np.ndarray
    answered: np.ndarray


def encode_questions(
    questions: Sequence[Question],
    tokenizer: Tokenizer,
    *,
    length: int,
    stride: int,
    max_question: int,
    labelled: bool,
) -> Windows:
    """Encodes all windows of all questions; with `labelled`, the position of the first answer.

    A window begins every `stride` tokens of the paragraph and takes as many tokens as fit. The
    label is the first and last token of the answer if the window contains both, else [CLS] (0, 0).
    Raises UsageError that names the question if its tokens leave no space for a paragraph.
    """
    separators = tokenizer.pair_separators
    asked = tokenizer.encode_sentences([question.question for question in questions])
    note_cut(
        sum(len(ids) > max_question for ids in asked),
        len(questions),
        "questions",
        limit=max_question,
        remedy="a larger `max_question_length` reads more"
        if labelled
        else "fine-tuning with a larger `max_question_length` reads more",
    )
    contexts: dict[str, tuple[list[int], list[tuple[int, int]]]] = {}
    spans = []  # (question, first token, number of tokens)
    for number, question in enumerate(questions):
        if question.context not in contexts:
            contexts[question.context] = tokenizer.encode_with_offsets(question.context)
        asked[number] = asked[number][:max_question]
        room = length - len(asked[number]) - 2 - separators
        if room < 1:
            raise UsageError(
                f"{question.location}: {len(asked[number])} tokens of the question leave no space "
                f"in {length}; use a longer `length` or a smaller `max_question_length`"
            )
        total = len(contexts[question.context][0])
        spans += [(number, *span) for span in window_spans(total, room=room, stride=stride)]
    rows = RowArrays(len(spans), length, tokenizer)
    characters = np.full((len(spans), length, 2), -1, np.int32)
    is_best = np.zeros((len(spans), length), bool)
    labels = np.zeros((len(spans), 2), np.int32)
    answered = np.zeros(len(questions), bool)
    cls, sep = tokenizer.special.cls, tokenizer.special.sep
    by_question: dict[int, list[tuple[int, int]]] = {}
    for number, start, count in spans:
        by_question.setdefault(number, []).append((start, count))
    for row, (number, start, count) in enumerate(spans):
        question = questions[number]
        ids, offsets = contexts[question.context]
        prefix = [cls, *asked[number], *[sep] * separators]
        rows.put(row, prefix, [*ids[start : start + count], sep])
        here = slice(len(prefix), len(prefix) + count)
        characters[row, here] = np.array(offsets[start : start + count], np.int32).reshape(-1, 2)
        is_best[row, here] = _is_best(by_question[number], (start, count))
        if labelled and question.answers:
            stop = question.starts[0] + len(question.answers[0])
            first, last = answer_tokens(offsets, question.starts[0], stop)
            if start <= first <= last < start + count:
                labels[row] = len(prefix) + first - start, len(prefix) + last - start
                answered[number] = True
    known = {"labels": labels, "weights": np.ones(len(spans), np.float32)} if labelled else {}
    owners = np.array([number for number, _, _ in spans], np.int32)
    return Windows(rows.features(**known), owners, characters, is_best, answered)


def window_spans(total: int, *, room: int, stride: int) -> list[tuple[int, int]]:
    """Returns (first token, number of tokens) of each window of a paragraph of `total` tokens.

    Each token is in at least one window for any stride: a window begins no later than the previous
    one ends.
    """
    spans, start = [], 0
    while True:
        count = min(total - start, room)
        spans.append((start, count))
        if start + count >= total:
            return spans
        start += min(count, stride)


def answer_tokens(offsets: Sequence[tuple[int, int]], start: int, stop: int) -> tuple[int, int]:
    """Returns first and last token that share a character with `[start, stop)`.

    (0, -1) if there is none, because the tokenizer dropped these characters.
    """
    touched = [i for i, (a, b) in enumerate(offsets) if a < stop and b > start]
    return (touched[0], touched[-1]) if touched else (0, -1)


def _is_best(spans: list[tuple[int, int]], own: tuple[int, int]) -> np.ndarray:
    """Returns for each token of the window `own` whether no other window has more context around
    it, and no earlier window has equal context.

    The score is that of run_squad.py: the smaller of the numbers of tokens before and after it,
    plus a hundredth of the window's length.
    """
    places = np.arange(own[0], own[0] + own[1])

    def score(span: tuple[int, int]) -> np.ndarray:
        start, count = span
        before, after = places - start, start + count - 1 - places
        worth = np.minimum(before, after) + 0.01 * count
        return np.where((before >= 0) & (after >= 0), worth, -np.inf)

    scores = np.stack([score(span) for span in spans])
    return np.argmax(scores, axis=0) == spans.index(own)
