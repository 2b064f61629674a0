"""Sentences with a tag for each word."""

import pytest

from bert_jax.data.tasks import conll
from bert_jax.errors import UsageError
from tests.data.tasks.test_tables import write


def test_conll_columns(tmp_path):
    text = "-DOCSTART- O\n\nJo\tB-per\nSmith\tI-per\n\n\nin X O\nRome Y B-loc\n"
    found = conll.read_sentences(write(tmp_path / "a.conll", text))
    assert [s.words for s in found] == [("Jo", "Smith"), ("in", "Rome")]
    assert [s.tags for s in found] == [("B-per", "I-per"), ("O", "B-loc")]
    assert found[1].location.endswith("line 7")
    unlabelled = conll.read_sentences(tmp_path / "a.conll", labelled=False)
    assert [s.tags for s in unlabelled] == [None, None]


def test_a_word_may_be_any_other_space(tmp_path):
    path = write(tmp_path / "a.conll", "the\tO\n\u00a0\tO\n\u2003x\tO\n")
    (found,) = conll.read_sentences(path)
    assert found.words == ("the", "\u00a0", "\u2003x")
    (found,) = conll.read_sentences(write(path, "the\n\u00a0\ncat\n"), labelled=False)
    assert found.words == ("the", "\u00a0", "cat")


def test_iob1_becomes_iob2(tmp_path):
    path = write(tmp_path / "a.conll", "Jo I-per\nRome I-loc\nYork B-loc\nCity I-loc\n")
    (found,) = conll.read_sentences(path, scheme="IOB1")
    assert found.tags == ("B-per", "B-loc", "B-loc", "I-loc")


_LINES = ("Jo saw Rome .", "", "# 1 of 2", "We saw\u00a0it .", "Jo")


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_text_to_predict_is_a_sentence_a_line(tmp_path, capsys, end):
    path = write(tmp_path / "a.txt", end.join([*_LINES, ""]))
    found = conll.read_sentences(path, labelled=False)
    assert [s.words for s in found] == [tuple(line.split()) for line in _LINES if line]
    assert [s.location.rpartition(" ")[2] for s in found] == ["1", "3", "4", "5"]
    assert f"{path} is read as text, a sentence a line" in capsys.readouterr().err


_COLUMNS = "# id {1}\n# O\nJo B-per\n# O\n\n# text = of Rome\nof{0}\nRome{0}\n# B-loc\n"


@pytest.mark.parametrize("labelled", [True, False])
def test_comments_are_left_out_and_the_word_is_not(tmp_path, capsys, labelled):
    path = write(tmp_path / "a.conll", _COLUMNS.format(" O" * labelled, 1))
    found = conll.read_sentences(path, labelled=labelled)
    assert [s.words for s in found] == [("#", "Jo", "#"), ("of", "Rome", "#")]
    assert "2 comments, which begin with #, are left out, the first of them line 1" in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize("labelled", [True, False])
@pytest.mark.parametrize("text", ['{"tokens": ["Jo"]}\n', '\n[\n  {\n    "tokens": ["Jo"]}]'])
def test_json_is_refused(tmp_path, text, labelled):
    with pytest.raises(UsageError, match=r"a\.jsonl is JSON; write a word a line"):
        conll.read_sentences(write(tmp_path / "a.jsonl", text), labelled=labelled)


_BAD_TAGS = {
    "no tag": ("Jo B-per\nSmith\n", "line 2: the word 'Smith' has no tag"),
    "no scheme": ("Jo PERSON\n", "line 1: 'PERSON' is no tag of IOB2"),
    "no kind": ("Jo B-\n", "line 1: 'B-' is no tag"),
    "begins inside": ("the O\nJo I-per\n", "line 2: 'I-per' goes on with an entity"),
    "goes on with another": ("Jo B-per\nRome I-loc\n", "line 2: 'I-loc' goes on"),
    "nothing": ("\n\n", "has no sentences"),
}


@pytest.mark.parametrize("case", _BAD_TAGS)
def test_broken_tags_are_said(tmp_path, case):
    text, message = _BAD_TAGS[case]
    path = write(tmp_path / "a.conll", text)
    with pytest.raises(UsageError) as error:
        conll.read_sentences(path)
    assert str(path) in str(error.value) and message in str(error.value)
