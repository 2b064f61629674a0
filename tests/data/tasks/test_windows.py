"""Windows of paragraphs that are longer than a row."""

import random

import pytest

from bert_jax.data.tasks import windows
from bert_jax.data.tasks.squad import Question
from bert_jax.errors import UsageError


def test_windows_cover_every_token():
    for total in range(30):
        for room in range(1, 9):
            for stride in range(1, 12):
                spans = windows.window_spans(total, room=room, stride=stride)
                covered = {t for start, count in spans for t in range(start, start + count)}
                assert covered == set(range(total))
                assert all(count <= room for _, count in spans)


def test_every_answer_that_fits_the_overlap_is_in_a_window(tokenizer):
    """Windows that begin every 3 tokens and hold 9 hold every span of up to 9 - 3 + 1 tokens."""
    draw = random.Random(1)
    words = [draw.choice(("the", "cats", "played", "red", "hat", ",")) for _ in range(50)]
    context = " ".join(words)
    asked = []
    for first in range(50):
        for last in range(first, min(first + 4, 50)):
            text = " ".join(words[first : last + 1])
            start = len(" ".join(words[:first])) + (first > 0)
            asked.append(Question("here", f"{first}-{last}", "who", context, (text,), (start,)))
    found = windows.encode_questions(
        asked, tokenizer, length=13, stride=3, max_question=4, labelled=True
    )
    sizes = [len(tokenizer.encode(q.answers[0])) - 2 for q in asked]
    assert all(found.answered[i] for i, size in enumerate(sizes) if size <= 7)
    for row, (first, last) in enumerate(found.features.labels.tolist()):
        if last == 0:
            continue
        question = asked[found.questions[row]]
        begin, end = found.characters[row, first, 0], found.characters[row, last, 1]
        assert question.context[begin:end] == question.answers[0]
    # Among all windows of a question, exactly one is the best for each token.
    tokens = len(tokenizer.encode(context)) - 2
    assert found.is_best[found.questions == 0].sum() == tokens


def test_characters_and_padding_of_a_window(tokenizer):
    context = "The  cats PLAYED."
    asked = [Question("here", "q", "who sat on the mat?", context, ("cats PLAYED",), (5,))]
    found = windows.encode_questions(
        asked, tokenizer, length=16, stride=4, max_question=3, labelled=True
    )
    tokens = tokenizer.tokens(found.features.input_ids[0].tolist())
    assert tokens[:11] == (
        ["[CLS]", "who", "sat", "on", "[SEP]", "the", "cats", "play", "##ed", ".", "[SEP]"]
    )
    assert found.features.labels.tolist() == [[6, 8]]
    texts = [context[a:b] for a, b in found.characters[0, 5:10].tolist()]
    assert texts == ["The", "cats", "PLAY", "ED", "."]
    assert (found.characters[0, :5] == -1).all() and (found.characters[0, 10:] == -1).all()
    with pytest.raises(UsageError, match="leave no space in 6"):
        windows.encode_questions(
            asked, tokenizer, length=6, stride=4, max_question=3, labelled=True
        )
