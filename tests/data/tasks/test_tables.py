"""Files of rows: supported files, rejected files, and the error messages."""

import dataclasses
import gzip
import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet
import pytest

from bert_jax.data.sources.read import STDIN
from bert_jax.data.sources.stream import TESTS, SourceOptions
from bert_jax.data.tasks import tables
from bert_jax.data.tasks.squad import Question
from bert_jax.data.tasks.tables import TextRow
from bert_jax.errors import UsageError
from bert_jax.tasks.sequence_classification import TEXT
from bert_jax.tasks.task import Sources, hold_out, read_files, task_of
from bert_jax.tasks.task_data import load_task
from tests.data.formats.layouts import pa


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_csv_and_json_lines_give_the_same_rows(tmp_path):
    csv = write(tmp_path / "a.csv", 'id,one,two,y\n7,"a, b","c\nd",x\n')
    record = {"id": 7, "one": "a, b", "two": "c\nd", "y": "x"}
    lines = write(tmp_path / "a.jsonl", json.dumps(record) + "\n")
    found = [
        tables.read_rows(path, text_columns=["one", "two"], label_column="y", id_column="id")[0]
        for path in (csv, lines)
    ]
    assert found[0].texts == found[1].texts == ("a, b", "c\nd")
    assert found[0].label == found[1].label == "x" and found[0].id == found[1].id == "7"


# Damage that is common to all corpora is tested in tests/data/formats/test_formats.py.
_BAD_ROWS = {
    "no object": ("a.jsonl", "[1]\n", "line 1: needs a JSON object"),
    "no rows": ("a.csv", "sentence,label\n", "has no rows"),
    "no label": ("a.csv", "sentence,label\nhi,-\nho,\n", "no rows: none of its 2 has a label"),
    "label of nothing": ("a.jsonl", '{"sentence": "a", "label": NaN}\n', "column 'label' is nan"),
    "null": ("a.jsonl", '{"sentence": null, "label": 1}\n', "column 'sentence' is null"),
    "list of texts": (
        "a.jsonl",
        '{"sentence": ["a", "b"], "label": 1}\n',
        "line 1: column 'sentence' is ['a', 'b']; write text",
    ),
    "another format": ("a.txt", "", "must end in .tsv, .csv, .jsonl, .parquet, .arrow"),
}


@pytest.mark.parametrize("case", _BAD_ROWS)
def test_errors_in_files_of_rows_are_reported(tmp_path, case):
    name, text, message = _BAD_ROWS[case]
    path = write(tmp_path / name, text)
    with pytest.raises(UsageError) as error:
        tables.read_rows(path, text_columns=["sentence"], label_column="label")
    assert str(path) in str(error.value) and message in str(error.value)


def test_numbers_and_truth_values_of_json_are_text(tmp_path):
    lines = ('{"sentence": 7, "label": true}', '{"sentence": 2.5, "label": 0}',
             '{"sentence": "half \\ud83d an emoji", "label": "a"}')  # fmt: skip
    path = write(tmp_path / "a.jsonl", "\n".join(lines))
    rows = tables.read_rows(path, text_columns=["sentence"], label_column="label")
    assert [(row.texts, row.label) for row in rows] == [
        (("7",), "true"),
        (("2.5",), "0"),
        (("half \ufffd an emoji",), "a"),
    ]


def test_bad_rows_can_be_skipped_and_are_counted(tmp_path, capsys):
    path = write(tmp_path / "a.tsv", "sentence\tlabel\nhi\nyou\t1\n")
    reading = SourceOptions(skips_records=True)
    rows = tables.read_rows(path, text_columns=["sentence"], label_column="label", reading=reading)
    assert [row.texts for row in rows] == [("you",)]
    assert "skipped 1 rows that cannot be read; the first: " in capsys.readouterr().err


@pytest.mark.parametrize("layout", ["parquet", "csv.gz", "tfds"])
def test_rows_come_from_the_formats_and_places_of_a_corpus(tmp_path, monkeypatch, layout):
    """A folder of one format, with a split to read by default."""
    texts, labels = ["It was good.", "Größe"], [1, 0]
    source, path = str(tmp_path), tmp_path / f"train-0.{layout}"
    if layout == "parquet":
        table = pa.table({"text": texts, "label": labels, "other": [[1], [2]]})
        pyarrow.parquet.write_table(table, path)
    elif layout == "csv.gz":
        lines = ["text;label", *(f"{t};{n}" for t, n in zip(texts, labels, strict=True))]
        path.write_bytes(gzip.compress("\n".join(lines).encode()))
    else:
        rows = [{"text": texts[n].encode(), "label": np.int64(labels[n])} for n in (0, 1)]
        data = SimpleNamespace(as_numpy_iterator=lambda: iter(rows))
        monkeypatch.setattr("bert_jax.data.sources.tfds.load_tfds", lambda *_: data)
        source = "tfds:reviews"
    (tmp_path / "test-0.jsonl").write_text('{"text": "held out", "label": 0}\n')
    found = rows_of(source, "text")
    assert [row.texts[0] for row in found] == texts and [row.label for row in found] == ["1", "0"]
    with pytest.raises(UsageError, match="no column 'body', only"):
        rows_of(source, "body")
    if layout != "tfds":
        (held_out,) = rows_of(source, "text", splits=TESTS)
        assert held_out.texts == ("held out",)


# --- tables as people have them -------------------------------------------------------------------


def rows_of(path: object, *columns: str, label: str | None = "label", **how):
    reading = SourceOptions(**how)
    return tables.read_rows(path, text_columns=columns, label_column=label, reading=reading)


def test_a_separator_and_columns_that_are_named(tmp_path):
    path = write(tmp_path / "a.csv", "a, b#x\nc#y\n")
    rows = rows_of(path, "text", delimiter="#", columns=("text", "label"))
    assert [(row.texts, row.label) for row in rows] == [(("a, b",), "x"), (("c",), "y")]
    with pytest.raises(UsageError, match=r"no column 'text', only a, b#x\. .* `columns` a,b,c"):
        rows_of(path, "text")


def test_quotes_that_are_letters_and_further_cells(tmp_path):
    """STSbenchmark: 7 to 9 cells, and unclosed quotes."""
    text = 'a\t"Lone\tx\n' + "a\tA plane\ty\thttp://a.org\tlicense\n" * 2 + 'a\t"B\tx\t\t\n'
    path = write(tmp_path / "a.csv", text)
    how = {"delimiter": "\t", "columns": ("genre", "text", "label")}
    with pytest.raises(UsageError, match="in this file, read it with `quoting` none"):
        rows_of(path, "text", **how)
    with pytest.raises(UsageError, match=r"line 2: 5 cells .* `columns` genre,text,label,\.\.\."):
        rows_of(path, "text", **how, quoting="none")
    how["columns"] = ("genre", "text", "label", "...")
    rows = rows_of(path, "text", **how, quoting="none")
    assert [row.texts[0] for row in rows] == ['"Lone', "A plane", "A plane", '"B']
    # A header line, and a tab-separated table with quoted cells.
    path = write(tmp_path / "a.tsv", 'text\tlabel\n"a\nb"\tx\tmore\n')
    with pytest.raises(UsageError, match=r"line 3: 3 cells .* with `columns` \.\.\."):
        rows_of(path, "text", quoting="double")
    (row,) = rows_of(path, "text", quoting="double", columns=("...",))
    assert row.texts == ("a\nb",) and row.location.endswith("line 3")
    for wrong in ({"columns": ("a", "...", "b")}, {"quoting": "single"}):
        with pytest.raises(UsageError, match=r"only the last may be|choose one of double, none"):
            SourceOptions(**wrong)


@pytest.mark.parametrize(
    "labels, ordered",
    [
        (map(str, range(12)), " ".join(map(str, range(12)))),
        (["10.0", "9.0", "0.0"], "0.0 9.0 10.0"),
        (["10", "-2", "+3", "-10"], "-10 -2 +3 10"),
        (["10", "02", "1", "01"], "01 1 02 10"),
        (["10", "9", "x"], "10 9 x"),
        (["2.5", "10.0", "1"], "1 10.0 2.5"),
        (["true", "false"], "false true"),
        (["²", "10", "9"], "10 9 ²"),
    ],
)
def test_labels_are_ordered_as_numbers_where_all_are_integers(labels, ordered):
    rows = [TextRow("here", ("a",), label, "0") for label in labels]
    assert " ".join(task_of(TEXT.spec).with_labels(rows).labels) == ordered


def test_rows_without_a_label_are_skipped_and_counted(tmp_path, capsys):
    lines = ["text,label", "a,yes", "b,-", "c,", "d,no"]
    rows = rows_of(write(tmp_path / "a.csv", "\n".join(lines)), "text")
    assert [row.texts[0] for row in rows] == ["a", "d"]
    said = capsys.readouterr().err
    assert "skipped 2 rows without a label (empty or '-'); the first: " in said
    records = [{"text": "a", "label": None}, {"text": "b", "label": 1}]
    path = write(tmp_path / "a.jsonl", "\n".join(map(json.dumps, records)))
    assert [row.label for row in rows_of(path, "text")] == ["1"]


def test_the_first_line_decides_the_kind_of_standard_input(monkeypatch):
    def piped(text, *columns):
        stream = io.TextIOWrapper(io.BytesIO(text.encode()), "utf-8")
        monkeypatch.setattr(sys, "stdin", stream)
        return [row.texts for row in rows_of(STDIN, *columns, label=None)]

    assert piped("id;text\n1;a, b\n", "text") == [("a, b",)]
    assert piped('{"text": "a"}\n', "text") == [("a",)]
    assert piped("A good film.\n\nA bad one, too.\n", "text") == [
        ("A good film.",),
        ("A bad one, too.",),
    ]
    assert piped("a\tb\n", "one", "two") == [("a", "b")]
    with pytest.raises(UsageError, match=r"line 2: 1 cells .* write text 1 and text 2"):
        piped("a\tb\nc\n", "one", "two")


def test_plain_lines_are_numbered_as_in_the_file(tmp_path, monkeypatch):
    text = "A good film.\n\nA bad one.\n"
    stream = io.TextIOWrapper(io.BytesIO(text.encode()), "utf-8")
    monkeypatch.setattr(sys, "stdin", stream)
    for path in (STDIN, write(tmp_path / "a.txt", text)):
        rows = rows_of(path, "text", label=None)
        assert [(row.id, *row.texts) for row in rows] == [
            ("0", "A good film."),
            ("2", "A bad one."),
        ]
    with pytest.raises(UsageError, match=r"the name must end in \.tsv, \.csv, \.jsonl"):
        rows_of(tmp_path / "a.txt", "text")


def test_rows_without_text_are_skipped(tmp_path, capsys):
    path = write(tmp_path / "a.csv", 'text,label\na,yes\n"",no\n" ",no\nb,no\n')
    assert [row.texts[0] for row in rows_of(path, "text")] == ["a", "b"]
    said = capsys.readouterr().err
    assert "2 rows have no text, the first: " in said and "line 3; they are skipped" in said
    # Predictions have as many rows as the file.
    assert len(rows_of(path, "text", label=None)) == 4
    assert "ignore their predictions" in capsys.readouterr().err
    # One text of a pair may be empty.
    path = write(tmp_path / "b.csv", 'one,two,label\na,"",yes\n"","",no\n')
    assert [row.texts for row in rows_of(path, "one", "two")] == [("a", "")]


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
    train, dev = hold_out(questions, seed=0, group=lambda question: question.context)
    assert len(dev) == 10 and not {q.context for q in train} & {q.context for q in dev}
    with pytest.raises(UsageError, match="9 rows are too few to hold out a tenth"):
        hold_out(list(range(9)), seed=0, group=lambda row: None)


def test_labels_are_those_of_the_whole_file(tmp_path, tokenizer):
    """For any held-out or skipped rows: a label may have one row."""
    lines = [f"text {n},c{n % 20}" for n in range(40)] + ["text 40,rare"]
    path = write(tmp_path / "a.csv", "\n".join(["text,label", *lines]))
    spec = dataclasses.replace(TEXT.spec, text_columns=("text",))
    for seed in range(6):
        found = load_task(spec, Sources(train=path, seed=seed), tokenizer, length=16)
        assert len(found.task.spec.labels) == 21
    few = load_task(spec, Sources(train=path, train_rows=12), tokenizer, length=16)
    assert len(few.train.rows) == 12 and len(few.task.spec.labels) == 21
