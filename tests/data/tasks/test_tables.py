"""Files of tasks: what is read, what is refused and in which words; and the rows made of them."""

import dataclasses
import gzip
import io
import itertools
import json
import random
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from bert_jax.data.tasks import conll, encode_rows, squad, tables, windows
from bert_jax.data.tasks.conll import Sentence
from bert_jax.data.tasks.squad import Question
from bert_jax.data.tasks.tables import TextRow
from bert_jax.data.tokenizer.tokenizer import Tokenizer, load_tokenizer
from bert_jax.errors import UsageError
from bert_jax.tasks import glue
from bert_jax.tasks.sequence_classification import TEXT
from bert_jax.tasks.task import Encoded, Sources, hold_out, read_files, task_of
from bert_jax.tasks.task_data import load_task

_WORDS = [
    "the",
    "a",
    "cat",
    "cats",
    "sat",
    "on",
    "mat",
    "hat",
    "and",
    "who",
    "where",
    "did",
    "##s",
    "##ed",
    "play",
    "red",
    "blue",
    ",",
    ".",
    "?",
]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> Tokenizer:
    path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    path.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *_WORDS]) + "\n")
    return load_tokenizer(path)


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


# --- rows of texts -------------------------------------------------------------------------------


def test_glue_tsv_quotes_nothing(tmp_path):
    path = tmp_path / "dev.tsv.gz"
    path.write_bytes(gzip.compress('sentence\tlabel\na "quote\t0\nsay “ah”\t1\n'.encode()))
    rows, skipped = tables.read_rows(path, text_columns=["sentence"], label_column="label")
    assert [(row.texts, row.label) for row in rows] == [(('a "quote',), "0"), (("say “ah”",), "1")]
    assert rows[1].location == f"{path}, line 3" and rows[1].id == "1" and skipped == 0


def test_a_tsv_without_a_header(tmp_path):
    path = write(tmp_path / "train.tsv", "gj04\t1\t\tThey sat.\n")
    columns = ["source", "label", "star", "sentence"]
    (row,), _ = tables.read_rows(
        path, text_columns=["sentence"], label_column="label", header=columns
    )
    assert row.texts == ("They sat.",) and row.label == "1"


def test_csv_and_json_lines_give_the_same_rows(tmp_path):
    csv = write(tmp_path / "a.csv", 'id,one,two,y\n7,"a, b","c\nd",x\n')
    record = {"id": 7, "one": "a, b", "two": "c\nd", "y": "x"}
    lines = write(tmp_path / "a.jsonl", json.dumps(record) + "\n")
    found = [
        tables.read_rows(path, text_columns=["one", "two"], label_column="y", id_column="id")[0][0]
        for path in (csv, lines)
    ]
    assert found[0].texts == found[1].texts == ("a, b", "c\nd")
    assert found[0].label == found[1].label == "x" and found[0].id == found[1].id == "7"


_BAD_ROWS = {
    "no column": (
        "a.csv",
        "text,y\nhi,1\n",
        "line 1: no column 'sentence', only 'text', 'y'. Is there a header?",
    ),
    "short line": ("a.tsv", "sentence\tlabel\nhi\n", "line 2: no column 'label', only sentence"),
    "long line": (
        "a.csv",
        "sentence,label\nWell, fine,1\n",
        "line 2: 3 cells for 2 columns (sentence, label); quote the text",
    ),
    "not JSON": ("a.jsonl", "{'sentence': 1}\n", "line 1: not JSON"),
    "no object": ("a.jsonl", "[1]\n", "line 1: needs an object"),
    "no rows": ("a.csv", "sentence,label\n", "has no rows"),
    "open quote": (
        "a.csv",
        'sentence,label\n"hi,1\n' + "a,1\n" * 40_000,
        "line 2: unexpected end of data; is a quote not closed",
    ),
    "no label": ("a.csv", "sentence,label\nhi,-\nho,\n", "no rows: none of its 2 has a label"),
    "label of nothing": (
        "a.jsonl",
        '{"sentence": "hi", "label": NaN}\n',
        "line 1: column 'label' is nan; write text or a number",
    ),
    "list of texts": (
        "a.jsonl",
        '{"sentence": ["a", "b"], "label": 1}\n',
        "line 1: column 'sentence' is ['a', 'b']; write text",
    ),
    "another format": ("a.parquet", "", "must end in .tsv, .csv, .jsonl"),
}


@pytest.mark.parametrize("case", _BAD_ROWS)
def test_what_is_wrong_with_a_file_of_rows_is_said(tmp_path, case):
    name, text, message = _BAD_ROWS[case]
    path = write(tmp_path / name, text)
    with pytest.raises(UsageError) as error:
        tables.read_rows(path, text_columns=["sentence"], label_column="label")
    assert str(path) in str(error.value) and message in str(error.value)


def test_numbers_and_truth_values_of_json_are_text(tmp_path):
    lines = ('{"sentence": 7, "label": true}', '{"sentence": 2.5, "label": 0}',
             '{"sentence": "half \\ud83d an emoji", "label": "a"}')  # fmt: skip
    path = write(tmp_path / "a.jsonl", "\n".join(lines))
    rows, _ = tables.read_rows(path, text_columns=["sentence"], label_column="label")
    assert [(row.texts, row.label) for row in rows] == [
        (("7",), "true"),
        (("2.5",), "0"),
        (("half \ufffd an emoji",), "a"),
    ]


def test_a_file_that_is_not_text(tmp_path):
    (tmp_path / "a.tsv").write_bytes(b"\xff\xfe\x00")
    for name, message in (("a.tsv", "not UTF-8"), ("b.tsv", "No such file")):
        with pytest.raises(UsageError, match=message):
            tables.read_text(tmp_path / name)


@pytest.mark.parametrize("line", ['0,"unclosed quote here', '0,"He said "fine" and left"'])
def test_a_quote_that_does_not_close_costs_no_row(tmp_path, line):
    path = write(tmp_path / "a.csv", f"label,sentence\n1,good film\n{line}\n1,fine\n0,bad\n")
    with pytest.raises(UsageError, match=r"a\.csv, line 3: .*is a quote not closed"):
        tables.read_rows(path, text_columns=("sentence",), label_column="label")


def test_long_cells_and_quotes_between_tabs(tmp_path, monkeypatch):
    long = "word " * 40_000
    path = write(tmp_path / "a.csv", f'label,sentence\n1,"{long}"\n0,short\n')
    rows, _ = tables.read_rows(path, text_columns=("sentence",), label_column="label")
    assert [len(row.texts[0]) for row in rows] == [len(long), 5]
    text = 'sentence\tlabel\n"Well\t1\nfine\t0\n'
    stream = SimpleNamespace(buffer=io.BytesIO(text.encode()))
    monkeypatch.setattr(sys, "stdin", stream)
    for path in (write(tmp_path / "a.tsv", text), tables.STDIN):
        rows, _ = tables.read_rows(path, text_columns=("sentence",), label_column="label")
        assert [row.texts[0] for row in rows] == ['"Well', "fine"]


def test_a_damaged_gzip_file(tmp_path):
    whole = gzip.compress(b"sentence\tlabel\n" + bytes(range(32, 127)) * 40)
    damaged = bytearray(whole)
    damaged[20:30] = b"\xff" * 10
    for name, data in (("short", whole[:-9]), ("damaged", bytes(damaged)), ("none", b"text")):
        (tmp_path / f"{name}.tsv.gz").write_bytes(data)
        with pytest.raises(UsageError, match=f"{name}.tsv.gz: damaged gzip file"):
            tables.read_text(tmp_path / f"{name}.tsv.gz")


def test_short_lines_can_be_left_out_and_are_counted(tmp_path):
    path = write(tmp_path / "a.tsv", "sentence\tlabel\nhi\nyou\t1\n")
    rows, skipped = tables.read_rows(
        path, text_columns=["sentence"], label_column="label", skip_short=True
    )
    assert [row.texts for row in rows] == [("you",)] and skipped == 1


# --- encoding texts ------------------------------------------------------------------------------


def row(*texts: str) -> TextRow:
    return TextRow("file, line 1", texts, None, "0")


def test_a_pair_is_laid_out_as_bert_has_it(tokenizer):
    found = encode_rows.encode_texts(
        [row("the cat", "a hat")], tokenizer, length=10, truncation="never"
    )
    tokens = tokenizer.tokens(found.input_ids[0].tolist())
    assert tokens == ["[CLS]", "the", "cat", "[SEP]", "a", "hat", "[SEP]"] + ["[PAD]"] * 3
    assert found.token_type_ids[0].tolist() == [0, 0, 0, 0, 1, 1, 1, 0, 0, 0]
    assert found.lengths.tolist() == [7]


def test_longest_first_cuts_as_the_original_does():
    def one_by_one(a: int, b: int, room: int) -> list[int]:
        while a + b > room:
            a, b = (a - 1, b) if a > b else (a, b - 1)
        return [a, b]

    for a in range(12):
        for b in range(12):
            for room in range(1, 14):
                ours = encode_rows._kept([a, b], room, "longest_first")
                assert ours == one_by_one(a, b, room)


def test_truncations(tokenizer):
    texts = row("the cat sat on mat", "a hat and")
    lengths = {}
    for truncation in ("longest_first", "only_first", "only_second"):
        found = encode_rows.encode_texts([texts], tokenizer, length=9, truncation=truncation)
        types = found.token_type_ids[0]
        lengths[truncation] = (9 - types.sum() - 2, types.sum() - 1)
    assert lengths == {"longest_first": (3, 3), "only_first": (3, 3), "only_second": (5, 1)}
    with pytest.raises(UsageError, match=r"file, line 1: 5 \+ 3 tokens do not fit in 6"):
        encode_rows.encode_texts([texts], tokenizer, length=9, truncation="never")
    with pytest.raises(UsageError, match="do not fit in 1"):
        encode_rows.encode_texts([texts], tokenizer, length=4, truncation="only_second")


def test_a_batch_is_as_long_as_it_needs_and_filled_with_nothing(tokenizer):
    rows = [row("cat"), row("the cat sat on the mat"), row("cat " * 20)]
    found = encode_rows.encode_texts(rows, tokenizer, length=32, truncation="longest_first")
    found = encode_rows.Features(
        found.input_ids, found.token_type_ids, found.lengths, np.array([5, 6, 7]), np.ones(3)
    )
    batches = encode_rows.Batches(found, size=3)
    assert batches.lengths == (8, 24)
    short = batches(np.array([0, 1]))
    assert short["input_ids"].shape == (3, 8)
    assert short["weights"].tolist() == [1, 1, 0] and short["labels"].tolist() == [5, 6, 5]
    assert short["sequence_ids"].sum(axis=1).tolist() == [3, 8, 3]
    assert batches(np.array([2]))["input_ids"].shape == (3, 24)


@pytest.mark.parametrize("longest", [5, 8, 60, 61])
def test_lengths_of_batches_waste_the_least(longest):
    """Against every choice there is, each tried on many batches."""
    draw = np.random.default_rng(longest)
    lengths = np.minimum(draw.geometric(0.12, 4000) + 2, longest).astype(np.int32)
    ids = np.zeros((len(lengths), 61), np.int32)
    found = encode_rows.batch_lengths(encode_rows.Features(ids, ids, lengths), size=16)
    assert len(found) <= 3 and found[-1] >= lengths.max()
    assert all(n % 8 == 0 or n == 61 for n in found)
    batches = draw.choice(lengths, (20_000, 16)).max(axis=1)

    def tokens(limits):
        return np.asarray(limits)[np.searchsorted(limits, batches)].mean()

    *shorter, last = sorted({min(n, 61) for n in range(8, int(lengths.max()) + 8, 8)})
    others = [(*two, last) for n in (0, 1, 2) for two in itertools.combinations(shorter, n)]
    assert tokens(found) <= min(map(tokens, others)) * 1.01


def test_an_epoch_has_every_row_once_and_its_own_order():
    rows, size = 37, 8
    numbers = np.concatenate(
        [encode_rows.training_rows(step, rows=rows, batch_size=size, seed=1) for step in range(14)]
    )
    first, second = numbers[:rows], numbers[rows : 2 * rows]
    assert sorted(first) == sorted(second) == list(range(rows))
    assert first.tolist() != second.tolist()
    other = encode_rows.training_rows(0, rows=rows, batch_size=size, seed=2)
    assert other.tolist() != numbers[:size].tolist()


# --- words with tags -----------------------------------------------------------------------------


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


def test_the_first_sub_word_carries_the_label(tokenizer):
    sentence = Sentence("here", ("the", "cats", "played", "\u200b"), ("O", "B-x", "I-x", "O"))
    found = encode_rows.encode_words([sentence], tokenizer, length=10, labels=["O", "B-x", "I-x"])
    tokens = tokenizer.tokens(found.features.input_ids[0].tolist())[:7]
    assert tokens == ["[CLS]", "the", "cats", "play", "##ed", "[UNK]", "[SEP]"]
    assert found.words[0, :7].tolist() == [-1, 0, 1, 2, -1, 3, -1]
    assert found.features.labels[0, :7].tolist() == [0, 0, 1, 2, 0, 0, 0]
    assert found.features.weights[0, :7].tolist() == [0, 1, 1, 1, 0, 1, 0]


def test_no_word_of_a_long_sentence_is_lost(tokenizer):
    draw = random.Random(0)
    sentences = [
        Sentence("here", tuple(draw.choice(("the", "played", "cats")) for _ in range(n)), None)
        for n in (1, 6, 7, 40)
    ]
    found = encode_rows.encode_words(sentences, tokenizer, length=8, labels=None)
    for number, sentence in enumerate(sentences):
        words = found.words[found.sentences == number]
        assert words[words >= 0].tolist() == list(range(len(sentence.words)))
    with pytest.raises(UsageError, match="the tag 'B-y' does not occur in the training file"):
        known = [Sentence("here", ("the",), ("B-y",))]
        encode_rows.encode_words(known, tokenizer, length=8, labels=["O"])


# --- tables as people have them -------------------------------------------------------------------


def rows_of(path: Path, *columns: str, label: str | None = "label", **how):
    reading = tables.TableOptions(**how)
    return tables.read_rows(path, text_columns=columns, label_column=label, reading=reading)[0]


@pytest.mark.parametrize("separator", [",", ";", "|", "\t"])
def test_the_separator_is_found(tmp_path, separator, capsys):
    text = separator.join(["text", "label"]) + "\n" + separator.join(['"a, b; c"', "x"]) + "\n"
    (row,) = rows_of(write(tmp_path / "a.csv", text), "text")
    assert (row.texts, row.label) == (("a, b; c",), "x")
    assert ("separated by" in capsys.readouterr().err) == (separator != ",")


def test_a_separator_and_columns_that_are_named(tmp_path):
    path = write(tmp_path / "a.csv", "a, b#x\nc#y\n")
    rows = rows_of(path, "text", delimiter="#", columns=("text", "label"))
    assert [(row.texts, row.label) for row in rows] == [(("a, b",), "x"), (("c",), "y")]
    with pytest.raises(UsageError, match=r"no column 'text', only 'a', 'b#x'. Is there a header\?"):
        rows_of(path, "text")
    long = write(tmp_path / "b.csv", ",".join(["word " * 30] * 9) + "\n")
    with pytest.raises(UsageError) as error:
        rows_of(long, "text")
    assert "and 3 more" in str(error.value) and "`columns` a,b,c" in str(error.value)
    assert len(str(error.value)) < 500


def test_rows_without_a_label_are_left_out_and_counted(tmp_path, capsys):
    lines = ["text,label", "a,yes", "b,-", "c,", "d,no"]
    rows = rows_of(write(tmp_path / "a.csv", "\n".join(lines)), "text")
    assert [row.texts[0] for row in rows] == ["a", "d"]
    said = capsys.readouterr().err
    assert "2 rows without a label (empty or '-') are left out, the first of them line 3" in said
    # A minus beside a plus is a label.
    rows = rows_of(write(tmp_path / "a.csv", "text,label\na,+\nb,-\nc,\n"), "text")
    assert [(row.texts[0], row.label) for row in rows] == [("a", "+"), ("b", "-")]
    records = [{"text": "a", "label": None}, {"text": "b", "label": 1}]
    path = write(tmp_path / "a.jsonl", "\n".join(map(json.dumps, records)))
    assert [row.label for row in rows_of(path, "text")] == ["1"]


def test_standard_input_is_what_its_first_line_says(monkeypatch):
    def piped(text, *columns):
        stream = io.TextIOWrapper(io.BytesIO(text.encode()), "utf-8")
        monkeypatch.setattr(sys, "stdin", stream)
        return [row.texts for row in rows_of(tables.STDIN, *columns, label=None)]

    assert piped("id;text\n1;a, b\n", "text") == [("a, b",)]
    assert piped('{"text": "a"}\n', "text") == [("a",)]
    assert piped("A good film.\n\nA bad one, too.\n", "text") == [
        ("A good film.",),
        ("A bad one, too.",),
    ]
    assert piped("a\tb\n", "one", "two") == [("a", "b")]
    with pytest.raises(UsageError, match="line 2: 1 cells; write one and two, with a tab"):
        piped("a\tb\nc\n", "one", "two")


def test_a_tenth_is_held_out(tmp_path, capsys):
    lines = [f"text {n},{'ab'[n % 2]}" for n in range(100)]
    path = write(tmp_path / "a.csv", "\n".join(["text,label", *lines]))
    spec = dataclasses.replace(TEXT.spec, text_columns=("text",))
    splits = [read_files(task_of(spec), Sources(train=path, seed=seed)) for seed in (0, 0, 1)]
    train, dev = splits[0][0], splits[0][1]["dev"]
    assert len(train) == 90 and len(dev) == 10 and not set(train) & set(dev)
    assert splits[0] == splits[1] != splits[2]
    assert "10 of the 100 rows of" in capsys.readouterr().err
    # Questions about one paragraph stay together.
    questions = [Question("", str(n), "?", f"paragraph {n // 5}", (), ()) for n in range(100)]
    train, dev = hold_out(questions, seed=0)
    assert len(dev) == 10 and not {q.context for q in train} & {q.context for q in dev}
    with pytest.raises(UsageError, match="9 rows are too few to hold out a tenth"):
        hold_out(list(range(9)), seed=0)


def test_labels_are_those_of_the_whole_file(tmp_path, tokenizer):
    """Whichever rows are held out, or left out: a label may have one row."""
    lines = [f"text {n},c{n % 20}" for n in range(40)] + ["text 40,rare"]
    path = write(tmp_path / "a.csv", "\n".join(["text,label", *lines]))
    spec = dataclasses.replace(TEXT.spec, text_columns=("text",))
    for seed in range(6):
        found = load_task(spec, Sources(train=path, seed=seed), tokenizer, length=16)
        assert len(found.task.spec.labels) == 21
    few = load_task(spec, Sources(train=path, train_rows=12), tokenizer, length=16)
    assert len(few.train.rows) == 12 and len(few.task.spec.labels) == 21


def test_labels_are_told_with_their_counts():
    spec = dataclasses.replace(TEXT.spec, labels=("no", "yes"))
    rows = [TextRow("", ("a",), label, "0") for label in ("yes", "no", "yes")]
    said = task_of(spec).describe(rows, Encoded(encode_rows.Features(*[np.zeros(0)] * 3)), length=8)
    assert said == "3 training rows, by label: no 1, yes 2"


def test_published_scores_are_for_the_official_rows(monkeypatch):
    rows = [TextRow("", (f"text {n} ",), "01"[n % 2], str(n)) for n in range(6)]
    splits = {"train": rows[:4], "dev": rows[4:]}
    counts = {"train": 4, "dev": 2}
    known = glue.checksum(splits.values())
    monkeypatch.setitem(glue.OFFICIAL, "sst2", (counts, known))
    assert glue.is_official("sst2", splits, ["SST-2"])
    assert glue.is_official("sst2", {**splits, "train": rows[3::-1]}, ["SST-2"])
    assert not glue.is_official("sst2", {**splits, "train": rows[:3]}, ["SST-2"])
    other = {**splits, "dev": [dataclasses.replace(row, label="1") for row in rows[4:]]}
    assert not glue.is_official("sst2", other, ["SST-2"])
    # Where no checksum is known, only TFDS says what its rows are.
    monkeypatch.setitem(glue.OFFICIAL, "rte", (counts, None))
    assert glue.is_official("rte", splits, ["tfds:glue/rte"])
    assert not glue.is_official("rte", splits, ["RTE"])
    assert not glue.is_official("text", splits, ["mine"])


# --- questions -----------------------------------------------------------------------------------


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
    assert "2 answers do not stand at their answer_start, but once near it" in said
    assert "they are moved there, by 3 to 9 characters" in said
    # Too far away; and near two places, of which nobody knows which one is meant.
    path = many_questions(tmp_path / "a.json", {0: 60, 2: 80, 3: 9})
    with pytest.raises(
        UsageError, match=r"question 0: answer_start 60 .* and 1 more like it.*skip"
    ):
        squad.read_questions(path)
    found = squad.read_questions(path, skip_bad=True)
    assert [question.id for question in found] == ["1", "3"] and found[1].starts == (8,)
    said = capsys.readouterr().err
    assert "2 answers that do not stand at their answer_start are left out, and 2 questions" in said


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
    ):
        with pytest.raises(UsageError, match=message):
            squad.read_questions(write(tmp_path / "a.json", text))


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
    # Of all windows of a question, exactly one is the best for each token.
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
    with pytest.raises(UsageError, match="leave no room in 6"):
        windows.encode_questions(
            asked, tokenizer, length=6, stride=4, max_question=3, labelled=True
        )
