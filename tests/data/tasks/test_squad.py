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
def test_errors_in_questions_are_reported(tmp_path, case):
    changes, message, place = _BAD_QUESTIONS[case]
    path = squad_file(tmp_path / "a.json", **changes)
    with pytest.raises(UsageError) as error:
        squad.read_questions(path)
    assert all(part in str(error.value) for part in (str(path), message, place))


def test_answers_that_are_not_at_their_offsets_are_counted(tmp_path, capsys):
    answers = [{"text": "cat", "answer_start": 5}, {"text": "sat", "answer_start": 8}]
    path = squad_file(tmp_path / "a.json", answers=answers)
    with pytest.raises(UsageError, match=r"question q1: answer_start 5 .*`on_bad_record`"):
        squad.read_questions(path)
    leaving_out = SourceOptions(skips_records=True)
    (found,) = squad.read_questions(path, reading=leaving_out)
    assert (found.answers, found.starts) == (("sat",), (8,))
    assert "1 answers that are not at their answer_start" in capsys.readouterr().err
    with pytest.raises(UsageError, match="has no questions"):
        squad.read_questions(squad_file(path, answers=answers[:1]), reading=leaving_out)


def test_half_an_emoji_does_not_move_answers(tmp_path):
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
        # A file in the format that the error names can be read.
        form = form.replace("NUMBER", "0").replace("NAME", '"n"').replace("TEXT", '"t"')
        (question,) = squad.read_questions(write(tmp_path / "b.json", form))
        assert (question.id, question.context, question.answers) == ("n", "t", ("t",))
