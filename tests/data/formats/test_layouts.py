"""How text lies on disk: ten layouts of one text, wrapped books, folders of hubs, bad records."""

import contextlib
import csv
import functools
import gzip
import io
import json
import random
import struct
import textwrap
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bert_jax.__main__ import main
from bert_jax.data.corpus.prepare import prepare
from bert_jax.data.corpus.store import open_corpus
from bert_jax.data.formats import delimited, parquet
from bert_jax.data.sources import document
from bert_jax.data.sources.files import find_files
from bert_jax.data.sources.read import left_out, read_documents
from bert_jax.data.sources.stream import HELD_OUT, Findings, SourceOptions
from bert_jax.errors import StorageFailed, UsageError
from tests.data.surveyed import survey

pa = pytest.importorskip("pyarrow")
pytest.importorskip("fastwarc")
pytest.importorskip("resiliparse")

WORDS = ["the", "old", "red", "cat", "sees", "a", "dog", "and", "hears", "birds", "near", "river"]
WORDS += ["house", "müde", "wörter"]
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *"0123456789"]
VOCABULARY += [*(f"##{digit}" for digit in "0123456789"), *dict.fromkeys(WORDS)]


@functools.cache
def texts(count: int, paragraphs: int = 3) -> list[str]:
    draw = random.Random(count)
    return [
        "\n".join(
            f"{' '.join(draw.choices(WORDS, k=9)).capitalize()} {n} {p}. "
            f"{' '.join(draw.choices(WORDS, k=30)).capitalize()}."
            for p in range(paragraphs)
        )
        for n in range(count)
    ]


def warc(kind: str, body: bytes, content: str = "text/plain") -> bytes:
    head = f"WARC/1.0\r\nWARC-Type: {kind}\r\nWARC-Target-URI: http://a.example/\r\n"
    head += "WARC-Date: 2024-01-01T00:00:00Z\r\nWARC-Record-ID: <urn:uuid:1>\r\n"
    head += f"Content-Type: {content}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body + b"\r\n\r\n"


def write_parquet(path: Path, column: object, name: str = "text") -> None:
    from pyarrow import parquet

    table = pa.table({"id": pa.array(range(len(column))), name: column})  # type: ignore[arg-type]
    parquet.write_table(table, path)


def write_arrow(path: Path, found: object, *, is_file: bool, rows: int = 7) -> None:
    table = pa.table({"text": found})
    new = pa.ipc.new_file if is_file else pa.ipc.new_stream
    with new(str(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=rows)


def write_csv(path: Path, found: list[str]) -> None:
    with path.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerows([["id", "text"], *([i, text] for i, text in enumerate(found))])


def write_files(path: Path, found: list[str]) -> None:
    path.mkdir()
    for number, text in enumerate(found):
        (path / f"{number:05}.txt").write_text(text.replace("\n", "\n\n"))


def write_wet(path: Path, found: list[str]) -> None:
    records = [warc("warcinfo", b"a: b\r\n", "application/warc-fields")]
    records += [warc("conversion", text.encode()) for text in found]
    path.write_bytes(b"".join(gzip.compress(record) for record in records))


def jsonl(found: list[str], wrap: Callable[[str], object]) -> str:
    return "".join(json.dumps(wrap(text)) + "\n" for text in found)


LAYOUTS: dict[str, tuple[str, dict[str, str], Callable[[Path, list[str]], object]]] = {
    "text": ("a.txt", {}, lambda p, t: p.write_text("\n\n".join(t))),
    "windows": (
        "a.txt",
        {"encoding": "cp1252"},
        lambda p, t: p.write_bytes("\n\n".join(t).replace("\n", "\r\n").encode("cp1252")),
    ),
    "jsonl": ("a.jsonl", {}, lambda p, t: p.write_text(jsonl(t, lambda text: {"text": text}))),
    "nested": (
        "a.jsonl",
        {"text_field": "content,doc.text"},
        lambda p, t: p.write_text(jsonl(t, lambda text: {"doc": {"text": text}, "id": 1})),
    ),
    "parquet": ("a.parquet", {}, lambda p, t: write_parquet(p, pa.array(t))),
    "view": ("a.parquet", {}, lambda p, t: write_parquet(p, pa.array(t, pa.string_view()))),
    "binary": (
        "a.parquet",
        {},
        lambda p, t: write_parquet(p, pa.array([x.encode() for x in t], pa.binary())),
    ),
    "dictionary": (
        "a.parquet",
        {},
        lambda p, t: write_parquet(p, pa.array(t).dictionary_encode()),
    ),
    "struct": (
        "a.parquet",
        {"text_field": "doc.text"},
        lambda p, t: write_parquet(p, pa.array([{"text": x, "n": 1} for x in t]), "doc"),
    ),
    "arrow": ("a.arrow", {}, lambda p, t: write_arrow(p, t, is_file=False)),
    "arrow file": ("a.arrow", {}, lambda p, t: write_arrow(p, t, is_file=True)),
    "csv": ("a.csv", {}, write_csv),
    "files": ("books", {"document": "file"}, write_files),
    "wet": ("a.warc.wet.gz", {}, write_wet),
    "wrapped": (
        "books",
        {"document": "file", "paragraph": "blank"},
        lambda p, t: write_wrapped(p, t),
    ),
}


def write_wrapped(path: Path, found: list[str]) -> None:
    path.mkdir()
    for number, text in enumerate(found):
        blocks = ["\n".join(textwrap.wrap(part, 70)) for part in text.split("\n")]
        (path / f"{number:05}.txt").write_text("\n\n".join(blocks) + "\n")


def read(*paths: Path, findings: Findings | None = None, **reading: object) -> list[str]:
    found = SourceOptions(**reading)  # type: ignore[arg-type]
    documents = read_documents([str(path) for path in paths], found, findings=findings)
    return ["\n".join(document) for document in documents]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_one_text_has_one_hash(tmp_path, layout):
    """The hash of all documents decides the fingerprint, with the tokenizer and the options."""
    name, options, write = LAYOUTS[layout]
    write(tmp_path / name, texts(30))
    decided, kept = survey(
        [str(tmp_path / name)], validation_fraction=0.3, seed=0, reading=SourceOptions(**options)
    )
    assert [text for text, _ in kept] == texts(30)
    (tmp_path / "plain.txt").write_text("\n\n".join(texts(30)))
    plain, expected = survey([str(tmp_path / "plain.txt")], validation_fraction=0.3, seed=0)
    assert (decided.source_hash, kept) == (plain.source_hash, expected)


@pytest.fixture
def vocabulary(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(VOCABULARY) + "\n")
    return str(path)


def test_one_text_has_one_fingerprint(tmp_path, vocabulary):
    found = set()
    for layout in ("text", "nested", "struct", "wet", "wrapped"):
        (tmp_path / layout).mkdir()
        name, options, write = LAYOUTS[layout]
        write(tmp_path / layout / name, texts(30))
        options = {key: value for key, value in options.items() if key != "encoding"}
        corpus = prepare(
            [str(tmp_path / layout / name)],
            tmp_path / layout / "corpus",
            tokenizer=vocabulary,
            validation_fraction=0.3,
            workers=1,
            **options,  # type: ignore[arg-type]
        )
        found.add(corpus.fingerprint)
        assert options.items() <= corpus.manifest["options"].items()
    assert len(found) == 1


def test_a_document_a_line(tmp_path):
    lines = [line for text in texts(10) for line in text.split("\n")]
    (tmp_path / "a.txt").write_text("\n".join(lines) + "\n\n")
    assert read(tmp_path / "a.txt", document="line") == lines
    with pytest.raises(UsageError, match="`document` line has a paragraph a line"):
        prepare([str(tmp_path / "a.txt")], tmp_path / "c", document="line", paragraph="blank")
    with pytest.raises(UsageError, match="`document` 'page': choose one of blank, line, file"):
        prepare([str(tmp_path / "a.txt")], tmp_path / "c", document="page")


def test_scripts_without_spaces_are_joined_without_them(tmp_path):
    for lines, joined in (
        ("これは\n本です。\n\nThe end\nof it\nと本\n", "これは本です。\nThe end of it と本"),
        ("他说：“\n天气很好。”\n“我们去……\n公园——\n去。", "他说：“天气很好。”“我们去……公园——去。"),
        ("He said:\n“Yes.”\n“No…\n—\n“Why?”", "He said: “Yes.” “No… — “Why?”"),
        ("อากาศ\nดี “ไป”\nสวน", "อากาศดี “ไป” สวน"),
    ):
        (tmp_path / "a.txt").write_text(lines, encoding="utf-8")
        assert read(tmp_path / "a.txt", document="file", paragraph="blank") == [joined]


def test_wrapped_text_is_noticed_and_other_text_is_not(tmp_path, vocabulary, caplog):
    write_wrapped(tmp_path / "books", texts(30))
    found = Findings()
    read(tmp_path / "books", findings=found)  # each is too short to tell
    assert not found.wrapped
    joined = "\n\n".join(p.read_text() for p in sorted((tmp_path / "books").iterdir()))
    (tmp_path / "book.txt").write_text(joined)
    (tmp_path / "plain.txt").write_text("\n\n".join(texts(90)))
    verse = ["a rose is a rose", "is a rose", "and so the song goes on and on", "la"] * 90
    (tmp_path / "list.txt").write_text("\n".join(f"{line}." for line in verse))
    with caplog.at_level("INFO", "bert_jax"):
        source = [str(tmp_path / f"{name}.txt") for name in ("book", "plain", "list")]
        prepare(
            source,
            tmp_path / "corpus",
            tokenizer=vocabulary,
            seed=1,
            workers=1,
            validation_fraction=0.1,
        )
    (said,) = [r.getMessage() for r in caplog.records if "mid-sentence" in r.getMessage()]
    assert said.startswith(f"{tmp_path}/book.txt: ") and "`paragraph` blank joins" in said


def test_several_data_sets_in_one_folder_are_said(tmp_path):
    """As the configurations of one of the hub, of which one is meant, most often."""
    for name in ("a/train-0.txt", "a/train-1.txt", "a/test-0.txt", "b/train-0.txt", "c/more.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("A text.")
    skipped, several = left_out([str(tmp_path)])
    assert "a/test-0.txt (of another split than train)" in skipped
    assert several == (
        f"{tmp_path}: splits of 2 folders are read together; to read one, name it: "
        f"{tmp_path}/a, {tmp_path}/b"
    )
    assert left_out([f"{tmp_path}/*/train*.txt"]) == left_out([f"{tmp_path}/b"]) == []


@pytest.mark.parametrize("layout", ["names", "folders"])
def test_folders_of_hubs(tmp_path, layout, vocabulary):
    """Only the training split is read; the others are named; one is the held-out side if asked."""
    parts = {"train": texts(40), "validation": texts(9), "test": texts(8)}
    folder = tmp_path / "hub"
    for split, found in parts.items():
        named = folder / f"{split}-00000-of-00001.jsonl"
        path = named if layout == "names" else folder / split / "data.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(jsonl(found, lambda text: {"text": text}))
    (folder / "README.md").write_text("x")
    assert read(folder) == parts["train"]
    (said,) = left_out([str(folder)])
    assert "of another split than train" in said and "test" in said and "validation" in said
    beside, own = left_out([str(folder)], [str(folder)])
    assert "test" in beside and "train" in beside and "validation-" not in own
    (held_out,) = find_files(str(folder), splits=HELD_OUT)[0]
    assert "validation" in str(held_out.relative_to(folder))
    corpus = prepare(
        [str(folder)],
        tmp_path / "corpus",
        tokenizer=vocabulary,
        workers=1,
        validation_sources=[str(folder)],
    )
    counts = corpus.manifest["counts"]
    assert counts["validation"]["documents"] == 9 and counts["train"]["documents"] == 40
    assert corpus.manifest["options"]["validation_fraction"] is None
    assert open_corpus(tmp_path / "corpus").manifest["validation_sources"] == [str(folder)]


def test_held_out_text_is_dropped_from_the_training_text(tmp_path, vocabulary):
    train, held_out = texts(40), texts(40)[:7]
    (tmp_path / "train.txt").write_text("\n\n".join(train))
    (tmp_path / "own.txt").write_text("\n\n".join(text.upper() for text in held_out))
    corpus = prepare(
        [str(tmp_path / "train.txt")],
        tmp_path / "corpus",
        tokenizer=vocabulary,
        workers=1,
        validation_sources=[str(tmp_path / "own.txt")],
    )
    counts = corpus.manifest["counts"]
    assert counts["validation"]["documents"] == 7
    assert counts["train"]["documents"] == 33 and counts["train"]["duplicate_documents"] == 7


def test_few_long_documents(tmp_path, vocabulary):
    (tmp_path / "a.txt").write_text("\n\n".join(texts(3, 40)))
    with pytest.raises(UsageError, match=r"`validation_source`, or .*`document` line"):
        prepare([str(tmp_path / "a.txt")], tmp_path / "c", tokenizer=vocabulary, workers=1)


# --- bad records ----------------------------------------------------------------------------------

FORMATS = ("a.txt", "a.jsonl", "a.csv", "a.tsv", "a.parquet", "a.arrow", "b.arrow", "a.wet")
BAD = {
    "a.jsonl": [b'{"text": "x', b'{"text": "\xff"}', b'{"text": 3}', b'{"body": "x"}', b"[]"],
    "a.csv": [b'7,"never closed', b"7,a,b", b"7,\xff", b'7,"a "b" c"'],
    "a.tsv": [b"7\ta\tb", b"7", b"7\t\xe9t\xe9"],
    "a.txt": [b"\xff", b"one \xc3"],
    "a.wet": [
        warc("conversion", b"caf\xe9"),
        warc("conversion", b"one two").replace(b"Length: 7", b"Length: 3"),
        warc("conversion", b"one\n\ntwo").replace(b"Length: 8", b"Length: x"),
        warc("conversion", b"one").replace(b"Length: 3", b"Length: " + b"9" * 5000),
        warc("conversion", b"one").replace(b"WARC-Type: conversion\r\n", b""),
        b"X" + warc("conversion", b"one"),
        b"one\r\n",
    ],
}
_NO_TEXT = [b"\xff\xfe"]  # in the other formats


def write_with(path: Path, found: list[str], bad: dict[int, bytes]) -> None:
    """Writes one record for each text, a bad one in place of those at `bad`."""
    if path.suffix in (".parquet", ".arrow"):
        values = [bad.get(i, text.encode()) for i, text in enumerate(found)]
        if path.suffix == ".parquet":
            write_parquet(path, pa.array(values, pa.binary()))
            return
        # As `datasets` has it: a column of strings, of which nobody checked the bytes.
        column = pa.Array.from_buffers(pa.string(), 1000, pa.array(values, pa.binary()).buffers())
        write_arrow(path, column, is_file=path.stem == "b")
        return
    if path.suffix == ".wet":
        records = [warc("conversion", text.encode()) for text in found]
        records = [bad.get(i, record) for i, record in enumerate(records)]
        path.write_bytes(b"".join([warc("warcinfo", b"a: b\r\n"), *records]))
        return
    rows = []
    for number, text in enumerate(found):
        if number in bad:
            rows.append(bad[number])
        elif path.suffix == ".jsonl":
            rows.append(json.dumps({"text": text}).encode())
        elif path.suffix == ".csv":
            row = io.StringIO()
            csv.writer(row, quoting=csv.QUOTE_ALL).writerow([number, text])
            rows.append(row.getvalue().rstrip("\r\n").encode())
        else:
            rows.append((f"{number}\t{text}" if path.suffix == ".tsv" else text).encode())
    head = {".csv": b"id,text\n", ".tsv": b"id\ttext\n"}.get(path.suffix, b"")
    path.write_bytes(head + (b"\n\n" if path.suffix == ".txt" else b"\n").join(rows))


@pytest.mark.parametrize("place", [0, 500, 999])
@pytest.mark.parametrize(
    ("name", "kind"),
    [(name, kind) for name in FORMATS for kind in range(len(BAD.get(name, _NO_TEXT)))],
)
def test_exactly_the_bad_record_is_lost(tmp_path, name, kind, place):
    """One in a thousand, wherever it is, the last one (which a cut leaves half) included."""
    found = texts(1000, 1 if name in ("a.tsv", "a.csv") else 2)
    write_with(tmp_path / name, found, {place: BAD.get(name, _NO_TEXT)[kind]})
    findings = Findings()
    got = read(tmp_path / name, findings=findings, skips_records=True)
    assert got == found[:place] + found[place + 1 :]
    assert not findings.files and findings.records == {str(tmp_path / name): 1}
    # Without the option they are refused, with the file.
    findings = Findings()
    read(tmp_path / name, findings=findings)
    assert list(findings.files) == [str(tmp_path / name)]


def test_a_bad_end_of_a_line_that_is_cut_is_no_text_either(tmp_path, monkeypatch):
    monkeypatch.setattr(document, "LONGEST_LINE_BYTES", 64)
    (tmp_path / "a.txt").write_bytes(b"The cat.\n\n" + b"a " * 30 + b"caf\xe9")
    findings = Findings()
    assert read(tmp_path / "a.txt", findings=findings, skips_records=True) == ["The cat."]
    assert findings.records.total() == 1


def test_bad_records_are_counted_and_limited(tmp_path, vocabulary):
    write_with(tmp_path / "a.jsonl", texts(1000), {5: b"x", 900: b'{"text": "\xff"}'})
    (tmp_path / "b.txt").write_text("\n\n".join(texts(70)))
    source = [str(tmp_path / "a.jsonl"), str(tmp_path / "b.txt")]
    out = tmp_path.parent / f"{tmp_path.name}-corpus"
    common = {"tokenizer": vocabulary, "workers": 1, "skip_bad": "record"}
    with pytest.raises(UsageError, match=r"2 of 1,070 records .* `skip_bad_limit` 0.001:"):
        prepare(source, out, skip_bad_limit=0.001, **common)  # type: ignore[arg-type]
    corpus = prepare(source, out, **common)  # type: ignore[arg-type]
    assert corpus.manifest["skipped_records"] == {source[0]: 2}
    assert corpus.manifest["counts"]["total"]["documents"] == 1068


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.tsv", "a.parquet", "a.arrow"])
def test_records_without_text_are_passed_over_alike(tmp_path, name):
    path = tmp_path / name
    if name == "a.jsonl":
        path.write_text('{"text": "a"}\n{"text": null}\n{"text": " "}\n{"text": "b"}\n')
    elif name in ("a.csv", "a.tsv"):
        sign = "," if name == "a.csv" else "\t"
        path.write_text(f"id{sign}text\n1{sign}a\n2{sign}\n3{sign} \n4{sign}b\n")
    else:
        column = ["a", None, " ", "b"]
        if name == "a.parquet":
            write_parquet(path, pa.array(column))
        else:
            write_arrow(path, column, is_file=False)  # type: ignore[arg-type]
    findings = Findings()
    assert read(path, findings=findings) == ["a", "b"]
    assert findings.without_text == 2 and not findings.files


# --- fields, crawls, messages ---------------------------------------------------------------------


def test_the_first_field_that_a_record_has(tmp_path):
    lines = [
        {"text": "a"},
        {"content": "b", "text": None},
        {"doc": {"text": "c"}},
        {"doc.text": "d", "doc": {"text": "inner"}},
    ]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert read(tmp_path / "a.jsonl", text_field="text,content,doc.text") == ["a", "b", "c", "d"]
    write_parquet(tmp_path / "a.parquet", pa.array(["x"]), "doc.text")
    assert read(tmp_path / "a.parquet", text_field="doc.text") == ["x"]
    write_parquet(tmp_path / "b.parquet", pa.array([{"a": {"b": "y"}}, None]), "doc")
    assert read(tmp_path / "b.parquet", text_field="content,doc.a.b") == ["y"]
    for field, said in (("doc.a", "column 'doc.a' is struct"), ("doc.c", "no column 'doc.c', on")):
        with pytest.raises(UsageError, match=said):
            read(tmp_path / "b.parquet", text_field=field)


@pytest.mark.parametrize("forms", [("NFC", "NFD"), ("NFD", "NFC")])
@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.tsv", "a.parquet", "a.arrow"])
def test_a_field_is_found_composed_or_decomposed(tmp_path, name, forms):
    theirs, typed = (unicodedata.normalize(form, "Äußerung") for form in forms)
    path = tmp_path / name
    if name == "a.parquet":
        write_parquet(path, pa.array(["Schön."]), theirs)
    elif name == "a.arrow":
        with pa.ipc.new_stream(path, pa.schema([(theirs, pa.string())])) as writer:
            writer.write_batch(pa.record_batch([["Schön."]], names=[theirs]))
    else:
        text = json.dumps({theirs: "Schön."}) if name == "a.jsonl" else f"{theirs}\nSchön."
        path.write_text(text + "\n", encoding="utf-8")
    assert read(path, text_field=typed) == ["Schön."]
    with pytest.raises(UsageError, match=r"'Größe'[^ö]*$"):  # once
        read(path, text_field=unicodedata.normalize(forms[1], "Größe"))


def test_pages_of_a_crawl(tmp_path):
    text = "This is the text of a page, which says something about cats and dogs."
    page = f"<html><body><nav>Home</nav><p>{text}</p><script>x()</script></body></html>"
    head = "HTTP/1.1 200 OK\r\nContent-Type: {}\r\n\r\n"
    http = "application/http; msgtype=response"
    records = [
        warc("response", (head.format("text/html; charset=utf-8") + page).encode(), http),
        warc("response", (head.format("image/png") + "png").encode(), http),
        warc("request", b"GET / HTTP/1.1\r\n\r\n", "application/http; msgtype=request"),
    ]
    (tmp_path / "a.warc").write_bytes(b"".join(records))
    assert read(tmp_path / "a.warc") == [text]
    (tmp_path / "a.txt").write_bytes(b"".join(records))
    with pytest.raises(UsageError, match=r"a.txt: is a WARC file: let its name end in .warc or"):
        read(tmp_path / "a.txt")
    (tmp_path / "b.wet").write_text("The cat.\n")
    with pytest.raises(UsageError, match=r"b.wet: is no WARC file"):
        read(tmp_path / "b.wet")


def test_no_main_text_is_looked_for_where_tags_are_nested_too_deep(tmp_path):
    """It takes time that grows with the square of the depth; all text of the page does not."""
    text = "This is the text of a page, which says something about cats and dogs."
    for depth, found in ((480, [text]), (510, ["Home", text])):
        page = f"<html><body><nav>Home</nav>{'<div>' * depth}<p>{text}</p></body></html>"
        (tmp_path / "a.warc").write_bytes(response("", page.encode()))
        assert "\n".join(read(tmp_path / "a.warc")).split("\n") == found


_PAGE = "<html><body><p>The text of a page of the web, with größe and dogs.</p></body></html>"


def response(head: str, page: bytes) -> bytes:
    http = f"HTTP/1.1 200 OK\r\nContent-Type: text/html{head}\r\n\r\n".encode()
    return warc("response", http + page, "application/http; msgtype=response")


@pytest.mark.parametrize(
    ("head", "page"),
    [
        ("; charset=utf-8", _PAGE.encode()),
        ("", _PAGE.encode()),
        ("; charset=klingon", _PAGE.encode()),
        ("; charset=cp1252", _PAGE.encode("cp1252")),
        ("; charset=utf-8", _PAGE.encode("cp1252")),
        ("\r\nContent-Encoding: gzip", gzip.compress(_PAGE.encode(), mtime=0)),
    ],
)
def test_a_page_is_in_the_character_set_that_its_bytes_are_in(tmp_path, head, page):
    (tmp_path / "a.warc").write_bytes(response(head, page))
    assert read(tmp_path / "a.warc") == ["The text of a page of the web, with größe and dogs."]


def test_one_byte_does_not_garble_a_page(tmp_path):
    page = (_PAGE * 3).encode().replace(b"dogs", b"d\xffgs", 1)
    (tmp_path / "a.warc").write_bytes(response("; charset=utf-8", page))
    (text,) = read(tmp_path / "a.warc")
    assert text.count("größe") == 3 and text.count("\ufffd") == 1


@pytest.mark.parametrize(
    ("head", "page", "said"),
    [
        ("\r\nContent-Encoding: gzip", b"plain", "cannot be unpacked (Gzip"),
        ("\r\nContent-Encoding: zzz", b"plain", "cannot be unpacked (Unsupported"),
        ("\r\nTransfer-Encoding: chunked", b"plain", "cannot be unpacked (Invalid chunk"),
    ],
)
def test_a_page_that_cannot_be_unpacked_is_one_bad_record(tmp_path, head, page, said):
    good = response("", _PAGE.encode())
    (tmp_path / "a.warc").write_bytes(good + response(head, page) + good)
    findings = Findings()
    assert len(read(tmp_path / "a.warc", findings=findings, skips_records=True)) == 2
    (reason,) = findings.first_bad.values()
    assert "a.warc, record 2: its HTTP response " + said in reason and not findings.files


def test_a_record_that_reaches_into_others_is_an_error_of_the_file(tmp_path):
    """They would be lost, and nobody knows how many they are."""
    good = warc("conversion", b"the old cat")
    bad = good.replace(b"Length: 11", b"Length: 400")
    (tmp_path / "a.wet").write_bytes(good + bad + good * 3)
    findings = Findings()
    assert read(tmp_path / "a.wet", findings=findings, skips_records=True) == ["the old cat"]
    (error,) = findings.files.values()
    assert "record 2: goes on where its content should end, and it holds others" in str(error)


@pytest.mark.parametrize("kind", ["string", "string_view", "dictionary", "struct"])
def test_lengths_that_lead_out_of_an_arrow_file_are_damage(tmp_path, kind):
    """To follow them would end the process."""
    found = ["the old red cat sees a dog", None, "and hears the birds"]
    column = pa.array(found, pa.string_view() if kind == "string_view" else pa.string())
    if kind == "dictionary":
        column = column.dictionary_encode()
    if kind == "struct":
        column = pa.StructArray.from_arrays([column], ["text"])
    path = tmp_path / "a.arrow"
    write_arrow(path, column, is_file=False)
    data = path.read_bytes()
    length = struct.pack("<i", 26) + (b"the " if kind == "string_view" else b"")
    assert length in data
    path.write_bytes(data.replace(length, struct.pack("<i", 2**30) + length[4:]))
    with pytest.raises(UsageError, match=r"a.arrow: damaged Arrow file \("):
        read(path, text_field="text.text" if kind == "struct" else "text")


@pytest.mark.parametrize("kind", ["words", "typed words", "differences", "arrow"])
def test_a_small_file_of_many_long_texts_does_not_fill_the_memory(tmp_path, monkeypatch, kind):
    """A row may be any word of a dictionary, or begin as the row before."""
    from pyarrow import parquet as writer

    monkeypatch.setattr(parquet, "_BYTES", 4 << 20, raising=False)
    text = "word " * (1 << 17)
    column = pa.array([text] * 300)
    table = pa.table({"text": column if "typed" not in kind else column.dictionary_encode()})
    path = tmp_path / ("a.arrow" if kind == "arrow" else "a.parquet")
    if kind == "arrow":
        write_arrow(path, column.dictionary_encode(), is_file=True, rows=300)
    elif kind == "differences":
        options = {"use_dictionary": False, "column_encoding": "DELTA_BYTE_ARRAY"}
        writer.write_table(table, path, **options)
    else:
        writer.write_table(table, path)
    assert path.stat().st_size < 1 << 20
    with arrow_memory() as watched:
        rows = sum(1 for _ in read_documents([str(path)]))
    assert rows == 300 and (watched.max_memory() or 0) < 32 << 20


@contextlib.contextmanager
def arrow_memory() -> Iterator["pa.MemoryPool"]:
    """Yields a pool of memory that counts what is taken by readers that begin in the block."""
    usual = pa.default_memory_pool()
    watched = pa.proxy_memory_pool(usual)
    pa.set_memory_pool(watched)
    try:
        yield watched
    finally:
        pa.set_memory_pool(usual)


def test_a_column_of_parquet_that_was_a_dictionary_is_read_as_text(tmp_path):
    """Made a dictionary again, all words of a row group would be held several times."""
    words = [f"{n} " + "word " * 1000 for n in range(1000)]
    write_parquet(tmp_path / "a.parquet", pa.array(words).dictionary_encode())
    with arrow_memory() as watched:
        assert read(tmp_path / "a.parquet") == [word.strip() for word in words]
    # One page has them all.
    assert 0 < (watched.max_memory() or 0) < 1.5 * sum(map(len, words))


@pytest.mark.parametrize("column", [pa.array, lambda t: pa.array(t).dictionary_encode()])
def test_a_row_that_is_too_long_is_refused(tmp_path, monkeypatch, column):
    monkeypatch.setattr(delimited, "LONGEST_RECORD_BYTES", 40)
    found = ["the old cat", "", "the cat " * 9, "a dog"]
    write_parquet(tmp_path / "a.parquet", column(found))
    write_arrow(tmp_path / "a.arrow", column(found), is_file=False)
    for name in ("a.parquet", "a.arrow"):
        with pytest.raises(UsageError, match=rf"{name}, row 3: longer than .* split this one"):
            read(tmp_path / name)
        assert read(tmp_path / name, skips_records=True) == ["the old cat", "a dog"]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()])
def test_strings_are_utf8_whatever_texts_beside_them_are_written_in(tmp_path, kind):
    """An encoding is that of bytes: of a column of them, too, and of none that is of strings."""
    found = ["Größe, Übermaß und Öl", "zwölf süße Äpfel"]
    write_parquet(tmp_path / "a.parquet", pa.array(found, kind))
    write_arrow(tmp_path / "b.arrow", pa.array(found, kind), is_file=False)
    words = pa.array(found, pa.string()).dictionary_encode()
    write_arrow(tmp_path / "c.arrow", words, is_file=True)
    write_parquet(tmp_path / "d.parquet", pa.array([t.encode("cp1252") for t in found]))
    (tmp_path / "e.txt").write_bytes("\n\n".join(found).encode("cp1252"))
    assert read(tmp_path, encoding="cp1252") == found * 5


def test_a_file_that_ends_in_the_middle_of_a_character(tmp_path):
    (tmp_path / "a.txt").write_bytes("日本\n日本".encode()[:-1])
    with pytest.raises(UsageError, match="line 2: the file ends in the middle of a character"):
        read(tmp_path / "a.txt")
    (tmp_path / "b.txt").write_bytes(b"caf\xe9")
    with pytest.raises(UsageError, match="`encoding` cp1252"):
        read(tmp_path / "b.txt")


def test_a_text_is_no_corpus(tmp_path):
    (tmp_path / "wiki.txt").write_text("x")
    with pytest.raises(UsageError, match=r"wiki.txt is a file, .* a text is the `source`"):
        open_corpus(tmp_path / "wiki.txt")


def test_a_full_disk_is_called_so(tmp_path, vocabulary, monkeypatch):
    def full(*_):
        raise OSError("739857 requested and 157632 written")

    (tmp_path / "a.txt").write_text("\n\n".join(texts(90)))
    monkeypatch.setattr("bert_jax.data.corpus.join.np.save", full)
    with pytest.raises(StorageFailed, match="No space left on device"):
        prepare(
            [str(tmp_path / "a.txt")],
            tmp_path / "corpus",
            tokenizer=vocabulary,
            workers=1,
            validation_fraction=0.2,
        )


def test_the_closing_lines(tmp_path, vocabulary, capsys):
    found = [*texts(40), *(text.upper() for text in texts(40)[:10])]
    path = tmp_path / "a.jsonl"
    path.write_text(jsonl(found, lambda text: {"text": text}) + '{"text": null}\n')
    command = ["prepare", "--source", str(path), "--output", str(tmp_path / "corpus")]
    command += ["--tokenizer", vocabulary, "--validation-fraction", "0.3", "--workers", "1"]
    assert main(command) == 0
    said = capsys.readouterr().out
    assert "dropped: 10 of 50 documents (20%): duplicates" in said
    assert "skipped: 1 record(s) without text" in said
