"""Every format: equal text in all formats, only bad records are skipped, and damage is reported."""

import csv
import gzip
import json
import sys
import unicodedata
import zlib
from pathlib import Path

import fsspec
import pytest

from bert_jax.data.sources import columns, document
from bert_jax.data.sources.read import read_documents
from bert_jax.data.sources.stream import Findings, SourceOptions
from bert_jax.errors import UsageError
from bert_jax.registry import FORMATS
from tests.data.formats.layouts import (
    ALL,
    BAD,
    DOCUMENTS,
    PACKERS,
    TEXT,
    jsonl,
    pa,
    texts,
    warc,
    write_arrow,
    write_parquet,
    write_with,
    written,
)

pytest.importorskip("fastwarc")
pytest.importorskip("resiliparse")


def read(*paths: object, findings: Findings | None = None, **reading: object) -> list[str]:
    found = SourceOptions(**reading)  # type: ignore[arg-type]
    documents = read_documents([str(path) for path in paths], found, findings=findings)
    return ["\n".join(document) for document in documents]


def refusal(*paths: object, **reading: object) -> str:
    with pytest.raises(UsageError) as caught:
        read(*paths, **reading)
    assert caught.value.exit_code == 2
    return str(caught.value)


# --- the three properties -------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ALL)
def test_one_text_is_the_same_in_every_format_packing_and_place(tmp_path, memory, bucket, layout):
    found = texts(30)
    if layout == "fasta":
        found = ["".join(text.split()) for text in found]
    name, options = written(tmp_path / "t", layout, found)
    memory.put(str(tmp_path / "t"), "/folder", recursive=True)
    far, place = fsspec.filesystem("gs"), f"bucket/{layout.replace(' ', '')}"
    for file in (tmp_path / "t").rglob("*"):
        if file.is_file():
            far.pipe_file(f"{place}/{file.relative_to(tmp_path / 't')}", file.read_bytes())
    for source in (tmp_path / "t" / name, f"memory://folder/{name}", f"gs://{place}/{name}"):
        assert read(source, **options) == found


@pytest.mark.parametrize(("name", "kind"), [(n, k) for n in BAD for k in range(len(BAD[n]))])
def test_only_bad_records_are_skipped(tmp_path, name, kind):
    place = 2
    found = ["".join(t.split()) if name == "a.fasta" else t for t in texts(5, 1)]
    write_with(tmp_path / name, found, {place: BAD[name][kind]})
    findings = Findings()
    got = read(tmp_path / name, findings=findings, skips_records=True)
    assert got == found[:place] + found[place + 1 :]
    assert not findings.files and findings.records == {str(tmp_path / name): 1}
    # Without the option the record is rejected with its location.
    (lost,) = findings.first_bad.values()
    assert refusal(tmp_path / name) == lost and lost.startswith(f"{tmp_path / name}, ")


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.tsv", "a.parquet", "a.arrow"])
def test_records_without_text_are_counted(tmp_path, name):
    path, column = tmp_path / name, ["a", None, " ", "b"]
    sign = "," if name == "a.csv" else "\t"
    if name == "a.parquet":
        write_parquet(path, pa.array(column))
    elif name == "a.arrow":
        write_arrow(path, column, is_file=False)
    elif name == "a.jsonl":
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in column))
    else:
        path.write_text(f"id{sign}text\n1{sign}a\n2{sign}\n3{sign} \n\n4{sign}b\n")
    findings = Findings()
    assert read(path, findings=findings) == ["a", "b"]
    assert findings.without_text == 2 and not findings.files


@pytest.mark.parametrize("packing", PACKERS)
def test_damage_of_a_packed_file_is_named(tmp_path, packing):
    tool = {".gz": "gzip", ".bz2": "bzip2", ".xz": "xz", ".zst": "zstd"}[packing]
    path, whole = tmp_path / f"a.txt{packing}", PACKERS[packing](TEXT.encode() * 50)
    frames = [PACKERS[packing](f"Document {number}.\n\n".encode()) for number in range(3)]
    path.write_bytes(b"".join(frames))
    assert read(path) == [f"Document {number}." for number in range(3)]
    half = len(whole) // 2
    for damaged in (
        whole[:-15],
        whole[:half] + bytes(byte ^ 0xFF for byte in whole[half:]),
        TEXT.encode(),
        b"",
        # A frame with a damaged header is not the end of the file.
        frames[0] + b"?" + frames[1][1:] + frames[2],
        b"".join(frames) + b"<html>",
    ):
        path.write_bytes(damaged)
        message = refusal(path)
        assert f"a.txt{packing}: damaged {tool} file (" in message and "()" not in message
    if packing != ".zst":  # zstd has no padding
        path.write_bytes(bytes(8).join(frames) + bytes(8))
        assert len(read(path)) == 3


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.csv", b"id,body\n1,x\n", "line 1: no column 'text', only id, body"),
        ("a.tsv", b"id\tbody\n1\tx\n", "line 1: no column 'text', only id, body"),
        ("a.csv", b"a;texts\n1;x\n", "only a, texts. Did you mean 'texts'?"),
        ("a.csv", b"text,text\n1,x\n", "line 1: column 'text' occurs twice"),
        ("a.csv", b"", "empty: it has no line with the names"),
        ("a.csv", b"n,text\n1,x\n2,y,z\n", "line 3: 3 cells for 2 columns (n, text)"),
        ("a.csv", b"n,text\n1,x\n\n2\n", "line 4: 1 cells for 2 columns"),
        ("a.csv", b'n,text\n1,a\n2,"open\n3,y\n', "line 3: unexpected end of data; is a quote"),
        ("a.csv", b'n,text\n1,"a "b" c"\n', "line 2: ',' expected after '\"'; is a quote not"),
        ("a.csv", b'n,text\n1,a\n2,"open\n3,"y"\n', "line 3: ',' expected after '\"'"),
        ("a.jsonl", b'{"content": "x"}\n', "line 1: no column 'text', only content"),
        ("a.jsonl", b"{}\n", "line 1: no column 'text', only empty objects"),
        ("a.parquet", b"PAR1", "a.parquet: damaged parquet file ("),
        ("a.arrow", b"ARROW1", "a.arrow: damaged Arrow file ("),
        ("a.parquet.zst", PACKERS[".zst"](b"PAR1"), "a.parquet.zst: decompress it first"),
        ("a.fa", b"ACGT\n>a\nAC\n", "line 1: a FASTA record begins with a line >NAME"),
        ("a.wet", b"The cat.\n", "a.wet: is not a WARC file"),
        ("a.txt", warc("warcinfo", b"a"), "is a WARC file: rename it to end in .warc or .wet"),
    ],
)
def test_errors_in_files_are_named(tmp_path, name, content, expected):
    (tmp_path / name).write_bytes(content)
    assert name in (message := refusal(tmp_path / name)) and expected in message


def test_a_csv_is_bad_after_an_unclosed_quote(tmp_path):
    """Also if bad records are skipped, since the number of rows inside the quote is unknown."""
    (tmp_path / "a.csv").write_text('n,text\n1,a\n2,"open\n' + "3,y\n" * 9)
    findings = Findings()
    read(tmp_path / "a.csv", findings=findings, skips_records=True)
    assert "line 3" in (findings.files[str(tmp_path / "a.csv")]) and not findings.records


# --- columns --------------------------------------------------------------------------------------


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_the_separator_of_a_csv_is_the_one_that_makes_a_column_of_the_field(
    tmp_path, separator, end
):
    with (tmp_path / "a.csv").open("w", newline="") as stream:
        writer = csv.writer(stream, delimiter=separator, lineterminator=end)
        writer.writerows([["id", "the body"], *([1, "\n".join(each)] for each in DOCUMENTS)])
    expected = ["\n".join(document) for document in DOCUMENTS]
    assert read(tmp_path / "a.csv", text_field="the body") == expected


@pytest.mark.parametrize(
    "name, quoting, text",
    [
        ("a.csv", "none", 'text;x\n"One.;1\nTwo" "more.;2\n'),
        ("a.csv", None, 'text;x\n"""One.";1\n"Two"" ""more.";2\n'),
        ("a.tsv", "double", 'x\ttext\n1\t"""One."\n2\t"Two"" ""more."\n'),
        ("a.tsv", None, 'x\ttext\n1\t"One.\n2\tTwo" "more.\n'),
    ],
)
def test_quotes_are_quotes_or_ordinary_characters(tmp_path, name, quoting, text):
    (tmp_path / name).write_text(text)
    assert read(tmp_path / name, quoting=quoting) == ['"One.', 'Two" "more.']


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
    for field, said in (("doc.a", "is {'b': 'y'}, not text"), ("doc.c", "no column 'doc.c', on")):
        assert said in refusal(tmp_path / "b.parquet", text_field=field)


@pytest.mark.parametrize("forms", [("NFC", "NFD"), ("NFD", "NFC")])
@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.tsv", "a.parquet", "a.arrow"])
def test_a_column_is_found_composed_or_decomposed(tmp_path, name, forms):
    theirs, typed = (unicodedata.normalize(form, "Äußerung") for form in forms)
    path = tmp_path / name
    if name == "a.parquet":
        write_parquet(path, pa.array(["Schön."]), theirs)
    elif name == "a.arrow":
        write_arrow(path, ["Schön."], is_file=False, name=theirs)
    else:
        text = json.dumps({theirs: "Schön."}) if name == "a.jsonl" else f"{theirs}\nSchön."
        path.write_text(text + "\n", encoding="utf-8")
    assert read(path, text_field=typed) == ["Schön."]
    assert "'Größe'" in refusal(path, text_field=unicodedata.normalize(forms[1], "Größe"))


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()])
def test_an_encoding_is_that_of_bytes_and_not_of_strings(tmp_path, kind):
    found = ["Größe, Übermaß und Öl", "zwölf süße Äpfel"]
    write_parquet(tmp_path / "a.parquet", pa.array(found, kind))
    write_arrow(tmp_path / "b.arrow", pa.array(found, kind), is_file=False)
    words = pa.array(found, pa.string()).dictionary_encode()
    write_arrow(tmp_path / "c.arrow", words, is_file=True)
    write_parquet(tmp_path / "d.parquet", pa.array([t.encode("cp1252") for t in found]))
    (tmp_path / "e.txt").write_bytes("\n\n".join(found).encode("cp1252"))
    assert read(tmp_path, encoding="cp1252") == found * 5


def test_a_parquet_file_is_read_a_few_rows_at_a_time(tmp_path):
    """Regardless of other columns and row groups."""
    from pyarrow import parquet

    words = [f"{n} " + "word " * 1000 for n in range(4000)]
    table = pa.table({"text": words, "other": [text * 4 for text in words]})
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=500, use_dictionary=False)
    usual = pa.default_memory_pool()
    watched = pa.proxy_memory_pool(usual)
    pa.set_memory_pool(watched)
    try:
        assert read(tmp_path / "a.parquet") == [word.strip() for word in words]
    finally:
        pa.set_memory_pool(usual)
    assert 0 < (watched.max_memory() or 0) < 0.5 * sum(map(len, words))


def test_long_records(tmp_path, monkeypatch):
    long = "many words " * 20_000
    (tmp_path / "a.csv").write_text(f"text\n{long}\n")
    csv.field_size_limit(1000)
    assert read(tmp_path / "a.csv") == [long.strip()]
    monkeypatch.setattr(columns, "LONGEST_RECORD_BYTES", 1000)
    for name, content in (
        ("a.csv", f"text\n{long}\n"),
        ("a.jsonl", '{"text": "a"}\n' + jsonl([long])),
        ("b.csv", 'text,n\n"a' + '","\n' * 900),  # a row that never ends, of short cells
    ):
        (tmp_path / name).write_text(content)
        assert f"{name}, line 2: " in (message := refusal(tmp_path / name))
        assert "longer than" in message


# --- plain text -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    [
        TEXT.rstrip("\n"),
        "\n\n" + TEXT.replace("\n\n", "\n \t\n\n\n") + "\n\n",
        TEXT.replace("\n", "\r\n"),
        TEXT.replace("\n", "\r"),
        TEXT[: len(TEXT) // 2] + TEXT[len(TEXT) // 2 :].replace("\n", "\r"),
        "\ufeff" + TEXT,
    ],
)
def test_the_ends_of_lines_and_a_byte_order_mark_do_not_matter(tmp_path, content):
    (tmp_path / "a.txt").write_bytes(content.encode())
    lines = "".join(json.dumps({"text": "\r".join(d)}) + "\r\n\r\n" for d in DOCUMENTS)
    (tmp_path / "b.jsonl").write_bytes(("\ufeff" * ("\ufeff" in content) + lines).encode())
    assert read(tmp_path / "a.txt") == read(tmp_path / "b.jsonl")
    assert read(tmp_path / "a.txt") == ["\n".join(document) for document in DOCUMENTS]


def test_documents_and_paragraphs_of_plain_text(tmp_path):
    lines = [line for text in texts(10) for line in text.split("\n")]
    (tmp_path / "a.txt").write_text("\n".join(lines) + "\n\n")
    assert read(tmp_path / "a.txt", document="line") == lines
    for wrong in ({"document": "line", "paragraph": "blank"}, {"document": "page"}):
        assert "`document_boundary`" in refusal(tmp_path / "a.txt", **wrong)
    for text, joined in (
        ("これは\n本です。\n\nThe end\nof it\nと本\n", "これは本です。\nThe end of it と本"),
        ("他说：“\n天气很好。”\n“我们去……\n公园——\n去。", "他说：“天气很好。”“我们去……公园——去。"),
        ("He said:\n“Yes.”\n“No…\n—\n“Why?”", "He said: “Yes.” “No… — “Why?”"),
        ("อากาศ\nดี “ไป”\nสวน", "อากาศดี “ไป” สวน"),
    ):
        (tmp_path / "a.txt").write_text(text, encoding="utf-8")
        assert read(tmp_path / "a.txt", document="file", paragraph="blank") == [joined]


@pytest.mark.parametrize("character", ["a", "é", "漢", "😀"])
@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.csv"])
def test_long_text_is_split_equally_in_every_format(tmp_path, monkeypatch, name, character):
    monkeypatch.setattr(document, "LONGEST_LINE_BYTES", 64)
    monkeypatch.setattr(document, "LONGEST_DOCUMENT_BYTES", 200)
    words = ["x" * (1 + i % 9) for i in range(40)]
    for shift in range(4):
        lines = [" ".join(words), "y" * shift + character * 100, "z" * 64, "z" * 63 + " ", "end"]
        text = "\n".join(lines)
        content = {"a.jsonl": json.dumps({"text": text}), "a.csv": f'text\n"{text}"\n'}
        (tmp_path / name).write_text(content.get(name, text) + "\n", encoding="utf-8")
        found = [text.split("\n") for text in read(tmp_path / name)]
        assert len(found) > 2
        assert max(len(part.encode()) for parts in found for part in parts) <= 64
        assert max(sum(len(part.encode()) for part in parts) for parts in found) <= 200 + 64
        assert "".join("".join(parts) for parts in found).replace(" ", "") == "".join(
            lines
        ).replace(" ", "")
        # Words are not split.
        assert [w for d in found for p in d for w in p.split()][: len(words)] == words


def test_undecodable_bytes_in_a_split_line_are_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(document, "LONGEST_LINE_BYTES", 64)
    (tmp_path / "a.txt").write_bytes(b"The cat.\n\n" + b"a " * 30 + b"caf\xe9")
    findings = Findings()
    assert read(tmp_path / "a.txt", findings=findings, skips_records=True) == ["The cat."]
    assert findings.records.total() == 1


def test_half_a_surrogate_pair_becomes_a_replacement_character(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "a \\ud83d b \\ud83d\\ude00"}\n', encoding="utf-8")
    assert read(tmp_path / "a.jsonl") == ["a \ufffd b 😀"]


# --- encodings ------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-be", "utf-32", "utf-32-be"])
def test_a_byte_order_mark_decides_the_encoding(tmp_path, encoding):
    mark = "\ufeff" * encoding.endswith("-be")
    (tmp_path / "a.txt").write_bytes((mark + TEXT).encode(encoding))
    (tmp_path / "b.jsonl").write_bytes((mark + jsonl(["漢字 and é."])).encode(encoding))
    (tmp_path / "c.csv").write_bytes((mark + "n;text\n1;é\n").encode(encoding))
    expected = [*("\n".join(document) for document in DOCUMENTS), "漢字 and é.", "é"]
    assert read(tmp_path) == expected == read(tmp_path, encoding="cp1252")


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
@pytest.mark.parametrize("text", ["यह एक वाक्य है।\n\nनदी के पार एक गाँव है।\n", "A line.\n\nMore."])
def test_two_or_four_bytes_per_letter_without_a_mark(tmp_path, text, encoding):
    """Most of it is valid UTF-8, with zero bytes."""
    (tmp_path / "a.txt").write_bytes(text.encode(encoding))
    for other in (None, "cp1252"):
        assert "zero bytes of UTF-16" in refusal(tmp_path / "a.txt", encoding=other)
    assert read(tmp_path / "a.txt", encoding=encoding) == text.strip().split("\n\n")
    # A few zero bytes occur in all kinds of text.
    (tmp_path / "a.txt").write_text("A line.\x00\n\nAnother\x00 one, and more." + " word" * 20)
    assert len(read(tmp_path / "a.txt")) == 2


@pytest.mark.parametrize(
    ("data", "encoding", "said"),
    [
        ("“Quotes” cost 5 €.".encode("cp1252"), "cp1252", "`encoding` cp1252"),
        ("漢字".encode("gb18030"), "gb18030", "a.txt, line 1: not UTF-8"),
        (b"a\rb\r" * 9000 + b"\xff", "latin-1", "a.txt, line 18001: not UTF-8"),
        ("日本\n日本".encode()[:-1], None, "a.txt, line 2: not UTF-8"),
        ("é\n".encode("utf-16") + b"\x00\xdc\x00\xdc", None, "not utf-16"),
    ],
)
def test_text_of_another_encoding_is_named_by_line(tmp_path, data, encoding, said):
    (tmp_path / "a.txt").write_bytes(data)
    assert said in refusal(tmp_path / "a.txt")
    if encoding:
        lines = data.decode(encoding).split("\r")
        assert read(tmp_path / "a.txt", encoding=encoding) == ["\n".join(lines).strip()]


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.csv"])
def test_bytes_of_no_letter_are_not_read_as_utf8(tmp_path, name):
    """0xc9 0xa1 is not a letter of EUC-KR, but of UTF-8: the record is skipped."""
    korean, bad = "한국어 문서".encode("euc_kr"), b"\xc9\xa1"
    records = {
        "a.txt": [korean, korean + bad, korean],
        "a.jsonl": [b'{"text": "' + text + b'"}' for text in (korean, korean + bad, korean)],
        "a.csv": [b"text", korean, korean + bad, korean],
    }[name]
    (tmp_path / name).write_bytes((b"\n" if name != "a.txt" else b"\n\n").join(records) + b"\n")
    assert "not euc_kr" in refusal(tmp_path / name, encoding="euc_kr")
    findings = Findings()
    found = read(tmp_path / name, findings=findings, encoding="euc_kr", skips_records=True)
    assert found == ["한국어 문서"] * 2 and findings.records == {str(tmp_path / name): 1}


@pytest.mark.parametrize("name", ["cp12521", "base64", "rot13", "punycode"])
def test_an_encoding_that_is_not_for_text_is_rejected(name):
    SourceOptions(encoding="koi8-r")
    with pytest.raises(UsageError, match=f"`encoding` {name} is not a text encoding"):
        SourceOptions(encoding=name)


# --- crawls ---------------------------------------------------------------------------------------

_PAGE = "<html><body><nav>Home</nav><p>The text of a page, with größe and dogs.</p></body></html>"
_SENTENCE = "The text of a page, with größe and dogs."


def response(head: str, page: bytes, kind: str = "text/html") -> bytes:
    http = f"HTTP/1.1 200 OK\r\nContent-Type: {kind}{head}\r\n\r\n".encode()
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
def test_the_main_text_of_a_page_in_its_character_set(tmp_path, head, page):
    others = response("", b"png", "image/png") + warc("request", b"GET / HTTP/1.1\r\n\r\n")
    (tmp_path / "a.warc").write_bytes(others + response(head, page))
    assert read(tmp_path / "a.warc") == [_SENTENCE]


def test_one_byte_does_not_garble_a_page(tmp_path):
    page = (_PAGE * 3).encode().replace(b"dogs", b"d\xffgs", 1)
    (tmp_path / "a.warc").write_bytes(response("; charset=utf-8", page))
    (text,) = read(tmp_path / "a.warc")
    assert text.count("größe") == 3 and text.count("\ufffd") == 1


def test_a_page_that_is_nested_too_deep_is_read_whole(tmp_path):
    """Extracting its main text takes time quadratic in the depth."""
    for depth, found in ((480, [_SENTENCE]), (510, ["Home", _SENTENCE])):
        page = _PAGE.replace("<p>", "<div>" * depth + "<p>")
        (tmp_path / "a.warc").write_bytes(response("", page.encode()))
        assert "\n".join(read(tmp_path / "a.warc")).split("\n") == found


@pytest.mark.parametrize(
    "head",
    ["\r\nContent-Encoding: gzip", "\r\nContent-Encoding: zzz", "\r\nTransfer-Encoding: chunked"],
)
def test_a_page_that_cannot_be_unpacked_is_one_bad_record(tmp_path, head):
    good = response("", _PAGE.encode())
    (tmp_path / "a.warc").write_bytes(good + response(head, b"plain") + good)
    findings = Findings()
    assert len(read(tmp_path / "a.warc", findings=findings, skips_records=True)) == 2
    (reason,) = findings.first_bad.values()
    assert "a.warc, record 2: cannot decompress its HTTP response" in reason


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"Length: 11", b"Length: 3"),
        (b"Length: 11", b"Length: 400"),
        (b"Length: 11", b"Length: " + b"9" * 5000),
        (b"Length: 11", b"Length: x"),
        (b"WARC-Type: conversion\r\n", b""),
        (b"WARC/1.0", b"XWARC/1.0"),
    ],
)
def test_a_crawl_is_bad_from_a_broken_record_on(tmp_path, old, new):
    """The number of lost records is unknown, so no record is reported as the only bad one."""
    good = warc("conversion", b"the old cat")
    (tmp_path / "a.wet").write_bytes(good + good.replace(old, new) + good * 3)
    for skips in (False, True):
        message = refusal(tmp_path / "a.wet", skips_records=skips)
        assert "a.wet, record 2: " in message or "a.wet, record 1: " in message


# --- formats from outside, packages ---------------------------------------------------------------


@pytest.mark.parametrize("error", [None, EOFError("it ends"), zlib.error("it is bent")])
def test_a_custom_format_gets_a_path_and_bytes(tmp_path, monkeypatch, error):
    def reads(path, stream):
        yield (path.name, *stream.read().decode("latin-1").split())
        if error:
            raise error

    monkeypatch.setattr(FORMATS, "_entries", dict(FORMATS._entries))
    FORMATS.register(".Words", reads)
    (tmp_path / "a.words").write_bytes("a caf\xe9".encode("latin-1"))
    if error:
        assert f"a.words: damaged ({error}); download it again" in refusal(tmp_path)
    else:
        assert read(tmp_path) == ["a.words\na\ncaf\xe9"]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["a.parquet"], "a.parquet: needs pyarrow: pip install 'pyarrow>=20'"),
        (["a.txt", "b.JSONL.ZST"], "b.JSONL.ZST: needs zstandard: pip install 'zstandard>=0.23'"),
        (["a.parquet", "b.txt.zst"], "needs pyarrow and zstandard: pip install"),
    ],
)
def test_a_missing_package_is_named_before_reading(tmp_path: Path, monkeypatch, names, expected):
    for package in ("pyarrow", "zstandard"):
        monkeypatch.setitem(sys.modules, package, None)
    for name in names:
        (tmp_path / name).write_bytes(b"x")
    with pytest.raises(UsageError) as caught:
        read_documents([str(tmp_path)], findings=Findings())
    assert expected in str(caught.value) and "\n" not in str(caught.value)
