"""Sentences with a tag for each word."""

import pytest

from bert_jax.data.tasks import conll, tag_schemes
from bert_jax.errors import UsageError
from bert_jax.tasks.token_classification import labels_of
from tests.data.tasks.test_tables import write


def test_conll_columns(tmp_path):
    text = "-DOCSTART- -X- O\n\nJo\tX\tB-per\nSmith\t\tY\tI-per\n\n\nin X O\nRome Y B-loc\n"
    found = conll.read_sentences(write(tmp_path / "a.conll", text))
    assert [s.words for s in found] == [("Jo", "Smith"), ("in", "Rome")]
    assert [s.tags for s in found] == [("B-per", "I-per"), ("O", "B-loc")]
    assert found[1].location.endswith("line 7") and found[1].location_of(1).endswith("line 8")
    unlabelled = conll.read_sentences(tmp_path / "a.conll", labelled=False)
    assert [s.tags for s in unlabelled] == [None, None]


def test_a_word_may_be_any_other_space(tmp_path):
    path = write(tmp_path / "a.conll", "the\tO\n\u00a0\tO\n\u2003x\tO\n")
    (found,) = conll.read_sentences(path)
    assert found.words == ("the", "\u00a0", "\u2003x")
    (found,) = conll.read_sentences(write(path, "the\n\u00a0\ncat\n"), labelled=False)
    assert found.words == ("the", "\u00a0", "cat")


# Lines of each sentence, the scheme, the entity types, and the labels.
_SCHEMES = {
    "IOB2": ("Jo B-per|Rome B-loc|York B-loc|City I-loc", ["per", "loc", "loc"], "B- I-"),
    "IOB1": ("Jo I-per|Rome I-loc|York B-loc|City I-loc", ["per", "loc", "loc"], "B- I-"),
    "IOBES": ("Jo S-per|New B-loc|York I-loc|City E-loc|Ulm S-loc", ["per", "loc", "loc"],
              "B- I- E- S-"),
    "BILOU": ("Jo U-per|New B-loc|City L-loc", ["per", "loc"], "B- I- L- U-"),
    "BMES": ("Jo S-per|New B-loc|York M-loc|City E-loc", ["per", "loc"], "B- M- E- S-"),
    "plain": ("Jo per|New loc|York loc", ["per", "loc"], ""),
    "IOB2 with _": ("Jo B_per|New B_loc|York I_loc", ["per", "loc"], "B_ I_"),
    "plain and numeric": ("Jo 10|New 2|York 2", ["10", "2"], ""),
}  # fmt: skip


@pytest.mark.parametrize("case", _SCHEMES)
def test_the_scheme_is_found_and_the_labels_are_those_of_the_file(tmp_path, case):
    lines, kinds, prefixes = _SCHEMES[case]
    name = case.split()[0]
    text = "in O|" + lines + "||the O|" + lines
    path = write(tmp_path / "a.conll", text.replace("|", "\n"))
    found = conll.read_sentences(path)
    assert tag_schemes.find_scheme(found) == name
    tag_schemes.require_scheme(found, name)
    assert [tag_schemes.entity_kinds(s.tags, name) for s in found] == [kinds, kinds]
    expected = [f"{p}{kind}" for kind in sorted(set(kinds)) for p in prefixes.split() or [""]]
    if "numeric" in case:
        expected = ["2", "10"]
    assert labels_of(found, name) == ("O", *expected)
    assert {tag for s in found for tag in s.tags} <= set(labels_of(found, name))


_GERMEVAL = "#\thttp://a.org [2009]\n1\tJo\tB-per\tO\n2\tUlm\tI-per\tB-loc\n"
_CONLLU = "# text = du\n1-2\tdu\t_\t_\n1\tde\tADP\t\n2\tle\tDET\t_\n2.1\tx\tX\t_\n"
# The text, the columns, the word and the tag; the words and tags of the first sentence.
_NAMED = {
    "GermEval 2014": (_GERMEVAL, "id,word,tag,inner", "tag", "Jo B-per Ulm I-per"),
    "the inner tags": (_GERMEVAL, "id,word,outer,tag", "tag", "Jo O Ulm B-loc"),
    "further columns": (_GERMEVAL, "id,word,tag,...", "tag", "Jo B-per Ulm I-per"),
    "CoNLL-U": (_CONLLU, "id,word,upos,xpos", "upos", "de ADP le DET"),
    "the tag first": ("O what\nB-x Jo\n", "tag,word", "tag", "what O Jo B-x"),
}


@pytest.mark.parametrize("case", _NAMED)
def test_named_columns(tmp_path, case, capsys):
    text, columns, tag, expected = _NAMED[case]
    path, columns = write(tmp_path / "a.tsv", text), tuple(columns.split(","))
    (found,) = conll.read_sentences(path, columns=columns, word="word", tag=tag)
    pairs = [*zip(found.words, found.tags, strict=True)]
    assert " ".join(map(" ".join, pairs)) == expected
    assert ("skipped 1 comments (lines that begin with #)" in capsys.readouterr().err) == (
        "#" in text
    )
    (words,) = conll.read_sentences(path, columns=columns, word="word", labelled=False)
    assert words.words == found.words and words.tags is None


# The text, and whether it is labelled.
_AMBIGUOUS = {
    "GermEval 2014": (_GERMEVAL, True),
    "to predict": (_GERMEVAL, False),
    "CoNLL-2003 without documents": ("EU NNP B-NP B-ORG\nsays VBZ B-VP O\n", True),
    "the tag first": ("O\twhat\nB-x\tJo\n", True),
    "an index": ("1\tJo\n2\tUlm\n", False),
    "documents and an index": ("-DOCSTART-\n\n1 Jo B-per\n2 Ulm I-per\n", True),
}


@pytest.mark.parametrize("case", _AMBIGUOUS)
def test_ambiguous_columns_are_refused(tmp_path, case):
    text, labelled = _AMBIGUOUS[case]
    path = write(tmp_path / "a.tsv", text)
    with pytest.raises(UsageError, match=r"columns \(.*`columns` a,b,c, the word with `text`"):
        conll.read_sentences(path, labelled=labelled)


_LINES = ("Jo saw Rome .", "", "# 1 of 2", "We saw\u00a0it .", "Jo")


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_text_to_predict_has_one_sentence_per_line(tmp_path, capsys, end):
    path = write(tmp_path / "a.txt", end.join([*_LINES, ""]))
    found = conll.read_sentences(path, labelled=False)
    assert [s.words for s in found] == [tuple(line.split()) for line in _LINES if line]
    assert [s.location.rpartition(" ")[2] for s in found] == ["1", "3", "4", "5"]
    assert f"{path} is read as text, one sentence per line" in capsys.readouterr().err


_COLUMNS = "# id {1}\n# O\nJo B-per\n# O\n\n# text = of Rome\nof{0}\nRome{0}\n# B-loc\n"


@pytest.mark.parametrize("labelled", [True, False])
def test_comments_are_skipped_but_words_are_not(tmp_path, capsys, labelled):
    path = write(tmp_path / "a.conll", _COLUMNS.format(" O" * labelled, 1))
    found = conll.read_sentences(path, labelled=labelled)
    assert [s.words for s in found] == [("#", "Jo", "#"), ("of", "Rome", "#")]
    assert "skipped 2 comments (lines that begin with #), the first on line 1" in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize("labelled", [True, False])
@pytest.mark.parametrize("text", ['{"tokens": ["Jo"]}\n', '\n[\n  {\n    "tokens": ["Jo"]}]'])
def test_json_is_refused(tmp_path, text, labelled):
    with pytest.raises(UsageError, match=r"a\.jsonl is JSON; write one word per line"):
        conll.read_sentences(write(tmp_path / "a.jsonl", text), labelled=labelled)


_BAD_LINES = {
    "no tag": ("Jo B-per\nSmith\n", "line 2: the word 'Smith' has no tag"),
    "a space in a word": ("in O\nNew York B-loc\nis O\n", "line 2: 3 columns ('New', 'York', 'B-"),
    "no kind": ("Jo B-\nUlm B-loc\n", "line 1: the tag 'B-' has no prefix such as B- or I-, but"),
    "some prefixes": ("the O\nJo B-per\nUlm LOC\n", "line 3: the tag 'LOC' has no prefix"),
    "begins inside": (
        "Ulm B-loc\nthe O\nJo I-per\n",
        "line 3: 'I-per' after 'O' breaks IOB2 (B- b",
    ),
    "continues another": ("Jo B-per\nRome I-loc\n", "line 2: 'I-loc' after 'B-per' breaks IOB2"),
    "begins after O": ("Jo I-per\nthe O\nUlm B-loc\n", "line 3: 'B-loc' after 'O' breaks IOB1"),
    "of two schemes": ("A B-x\nB E-x\n\nC B-x\nD L-x\n", "line 5: 'L-x' after 'B-x' breaks IOBES"),
    "never ends": ("A S-x\nB B-x\n\nC S-x\n", "line 2: the end of the sentence after 'B-x' breaks"),
    "nothing": ("\n\n", "has no sentences"),
    "comments": ("# a\n# b\n", "has no sentences"),
}


@pytest.mark.parametrize("case", _BAD_LINES)
def test_errors_name_the_line(tmp_path, case):
    text, message = _BAD_LINES[case]
    path = write(tmp_path / "a.conll", text)
    with pytest.raises(UsageError) as error:
        tag_schemes.find_scheme(conll.read_sentences(path))
    assert str(path) in str(error.value) and message in str(error.value)


@pytest.mark.parametrize(
    ("columns", "word", "tag", "message"),
    [
        ("id,word,tag", "word", "tag", "line 2: 4 columns .'1', 'Jo', 'B-per', 'O'. instead of 3"),
        ("id,word,tag,x", "wrd", "tag", "`text` wrd is not .* Did you mean 'word'"),
        ("id,word,tag,x", "word", "label", "`label` label is not the name of exactly one"),
        ("id,word,tag,tag", "word", "tag", "`label` tag is not the name of exactly one"),
        ("id,word,tag,x", "", "tag", "`columns` NAMES and `text` NAME, the column of words"),
        ("", "word", "tag", "`columns` NAMES and `text` NAME, the column of words, need each"),
    ],
)
def test_wrong_names_of_columns(tmp_path, columns, word, tag, message):
    path = write(tmp_path / "a.tsv", _GERMEVAL)
    names = tuple(columns.split(",")) if columns else ()
    with pytest.raises(UsageError, match=message):
        conll.read_sentences(path, columns=names, word=word, tag=tag)


def test_a_file_of_another_scheme_than_the_training_file(tmp_path):
    found = conll.read_sentences(write(tmp_path / "a.conll", "the O\nJo I-per\n"))
    with pytest.raises(UsageError, match=r"line 2: 'I-per' after 'O' breaks IOB2 .* training file"):
        tag_schemes.require_scheme(found, "IOB2")
    tag_schemes.require_scheme(found, "IOB1")
