"""Questions about paragraphs."""

import json
from pathlib import Path

import pytest

from bert_jax.data.sources.stream import SourceOptions
from bert_jax.data.tasks import squad
from bert_jax.errors import UsageError
from tests.data.tasks.test_tables import write


def squad_file(path: Path, *, context: str = "The cat sat.", **changes) -> Path:
    entry = {
        "id": "q1",
        "question": "Who sat?",
        "answers": [{"text": "cat", "answer_start": 4}],
    } | changes
    paragraph = {"context": context, "qas": [entry]}
    return write(path, json.dumps({"data": [{"title": "T", "paragraphs": [paragraph]}]}))


def test_squad_of_both_versions(tmp_path):
    (found,) = squad.read_questions(squad_file(tmp_path / "a.json"))
    assert (found.answers, found.starts) == (("cat",), (4,))
    (found,) = squad.read_questions(squad_file(tmp_path / "a.json", is_impossible=True, answers=[]))
    assert found.answers == ()
    empty = [{"text": "", "answer_start": 3}]
    (found,) = squad.read_questions(squad_file(tmp_path / "a.json", answers=empty))
    assert found.answers == ()


_BAD_QUESTIONS = {
    "offset": ({"answers": [{"text": "cat", "answer_start": 50}]}, "answer_start 50", "q1"),
    "negative": ({"answers": [{"text": "cat", "answer_start": -3}]}, "answer_start -3", "q1"),
    "beyond": ({"answers": [{"text": "sat. No", "answer_start": 8}]}, "answer_start 8", "q1"),
    "no start": ({"answers": [{"text": "cat"}]}, "needs 'answer_start'", "q1"),
    "no text": ({"question": None}, "needs 'question'", "q1"),
    "no id": ({"id": None}, "needs 'id'", "paragraph 0"),
}


@pytest.mark.parametrize("case", _BAD_QUESTIONS)
def test_what_is_wrong_with_a_question_is_said(tmp_path, case):
    changes, message, place = _BAD_QUESTIONS[case]
    path = squad_file(tmp_path / "a.json", **changes)
    with pytest.raises(UsageError) as error:
        squad.read_questions(path)
    assert all(part in str(error.value) for part in (str(path), message, place))


def many_questions(path: Path, starts: dict[int, int]) -> Path:
    """Questions about one paragraph, whose answers are said to begin where `starts` has it."""
    context = "The cat sat. " + "x" * 60 + " A dog ran, and a dog slept."
    entries = [
        {"id": str(i), "question": "?", "answers": [{"text": text, "answer_start": start}]}
        for i, (text, start) in enumerate([("cat", 4), ("ran", 80), ("dog", 76), ("sat", 8)])
    ]
    for number, start in starts.items():
        entries[number]["answers"][0]["answer_start"] = start
    paragraph = {"context": context, "qas": entries}
    return write(path, json.dumps({"data": [{"title": "T", "paragraphs": [paragraph]}]}))


def test_answers_beside_their_offsets_are_moved_and_others_counted(tmp_path, capsys):
    path = many_questions(tmp_path / "a.json", {0: 13, 1: 77})
    found = squad.read_questions(path)
    assert [question.starts for question in found] == [(4,), (80,), (76,), (8,)]
    said = capsys.readouterr().err
    assert "2 answers are not at their answer_start, but once near it" in said
    assert "they are moved there, by 3 to 9 characters" in said
    # Too far away; and near two places, of which nobody knows which one is meant.
    path = many_questions(tmp_path / "a.json", {0: 60, 2: 80, 3: 9})
    with pytest.raises(
        UsageError, match=r"question 0: answer_start 60 .* and 1 more like it.*skip"
    ):
        squad.read_questions(path)
    found = squad.read_questions(path, reading=SourceOptions(skips_records=True))
    assert [question.id for question in found] == ["1", "3"] and found[1].starts == (8,)
    said = capsys.readouterr().err
    assert "2 answers that are not at their answer_start are left out, and 2 questions" in said


def test_half_an_emoji_moves_no_answer(tmp_path):
    context = "A \ud83d cat sat."
    answer = {"text": "cat", "answer_start": 4}
    path = squad_file(tmp_path / "a.json", context=context, answers=[answer])
    (question,) = squad.read_questions(path)
    assert question.context == "A \ufffd cat sat." and question.starts == (4,)


def test_a_file_that_is_not_squad(tmp_path):
    number = '{"data": ' + "9" * 5000 + "}"
    for text, message in (
        (number, "is not JSON"),
        ("{", "is not JSON"),
        ("{}", "needs 'data'"),
        ("[]", "needs 'data'"),
        ('{"question": "a", "context": "b"}\n' * 2, "is not JSON"),
        ("question\tcontext\na\tb\n", "is not JSON"),
    ):
        with pytest.raises(UsageError, match=message) as refused:
            squad.read_questions(write(tmp_path / "a.json", text))
        form = str(refused.value).partition("SQuAD's JSON is ")[2].partition("; to predict")[0]
        # Of the form that is named, a file is read.
        form = form.replace("NUMBER", "0").replace("NAME", '"n"').replace("TEXT", '"t"')
        (question,) = squad.read_questions(write(tmp_path / "b.json", form))
        assert (question.id, question.context, question.answers) == ("n", "t", ("t",))
