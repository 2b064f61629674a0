"""Kinds of corpus files: packed, in any encoding, with columns; and folders that hold more."""

import bz2
import csv
import gzip
import io
import json
import lzma
import sys
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_jax.__main__ import main
from bert_jax.data.corpus.prepare import prepare
from bert_jax.data.formats import delimited
from bert_jax.data.language.sentences import split_sentences
from bert_jax.data.sources import document
from bert_jax.data.sources.read import left_out, read_documents
from bert_jax.data.sources.stream import Findings, SourceOptions, require_encoding
from bert_jax.errors import UsageError
from bert_jax.registry import FORMATS

TEXTS = ["The first one.\nIt has “two”, paragraphs.", 'A second; "quoted"\tone.', "漢字 and é."]
DOCUMENTS = [tuple(text.split("\n")) for text in TEXTS]


def documents(*paths, **reading):
    return list(read_documents([str(path) for path in paths], SourceOptions(**reading)))


def refusal(*paths, **reading):
    with pytest.raises(UsageError) as caught:
        documents(*paths, **reading)
    return str(caught.value)


def table(separator: str, field: str = "text", end: str = "\r\n") -> str:
    stream = io.StringIO()
    writer = csv.writer(stream, delimiter=separator, lineterminator=end)
    writer.writerow(["id", field, "n"])
    writer.writerows([number, text, 1] for number, text in enumerate(TEXTS))
    return stream.getvalue()


def jsonl(field: str = "text") -> str:
    return "".join(json.dumps({"id": 1, field: text}) + "\n" for text in TEXTS)


def plain() -> str:
    return "\n\n".join(TEXTS) + "\n"


def _zstd(data: bytes) -> bytes:
    zstandard = pytest.importorskip("zstandard")
    # Several frames, one of them without its size: what `zstd` and `pzstd` write to a pipe.
    frame = zstandard.ZstdCompressor(write_content_size=False).compress
    return frame(data[:10]) + zstandard.compress(data[10:]) + frame(b"")


PACK = {"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress, ".zst": _zstd}


@pytest.mark.parametrize("packing", PACK)
@pytest.mark.parametrize(
    ("ending", "content"), [(".txt", plain()), (".jsonl", jsonl()), (".csv", table(","))]
)
def test_each_format_in_each_packing_gives_the_same_documents(tmp_path, ending, content, packing):
    path = tmp_path / f"A{ending}{packing}".upper()
    path.write_bytes(PACK[packing](content.encode()))
    assert documents(path) == DOCUMENTS


@pytest.mark.parametrize("packing", [".gz", ".bz2", ".xz", ".zst"])
@pytest.mark.parametrize("damage", ["cut", "altered", "plain"])
def test_what_is_damaged_names_the_program_that_checks_it(tmp_path, packing, damage):
    data = PACK[packing](plain().encode() * 50)
    if damage == "cut":
        data = data[:-9] if packing != ".zst" else data[:-15]
    elif damage == "altered":
        data = data[: len(data) // 2] + bytes(b ^ 0xFF for b in data[len(data) // 2 :])
    else:
        data = plain().encode()
    path = tmp_path / f"a.txt{packing}"
    path.write_bytes(data)
    tool = {".gz": "gzip", ".bz2": "bzip2", ".xz": "xz", ".zst": "zstd"}[packing]
    message = refusal(path)
    assert f"a.txt{packing}: damaged {tool} file (" in message
    assert f"`{tool} -t` and fetch it again" in message and "()" not in message


@pytest.mark.parametrize("packing", [".gz", ".bz2", ".xz", ".zst"])
def test_a_file_of_many_frames_is_read_to_its_end_or_refused(tmp_path, packing):
    """A frame whose beginning is damaged is not the end of the file."""
    frames = [PACK[packing](f"Document {number}.\n\n".encode()) for number in range(3)]
    path = tmp_path / f"a.txt{packing}"
    path.write_bytes(b"".join(frames))
    whole = documents(path)
    assert whole == [(f"Document {number}.",) for number in range(3)]
    padding = b"" if packing == ".zst" else bytes(8)  # which zstd does not know
    path.write_bytes(padding.join(frames) + padding)
    assert documents(path) == whole
    for damage in ([frames[0], b"?" + frames[1][1:], frames[2]], [*frames, b"<html>"], [bytes(64)]):
        path.write_bytes(b"".join(damage))
        assert f"a.txt{packing}: damaged" in refusal(path)
    path.write_bytes(b"")
    assert "(it is empty)" in refusal(path)


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_the_separator_of_a_csv_is_the_one_that_makes_a_column_of_the_field(
    tmp_path, separator, end
):
    (tmp_path / "a.csv").write_text(table(separator, "the body", end), "utf-8", newline="")
    assert documents(tmp_path / "a.csv", text_field="the body") == DOCUMENTS


def test_a_tsv_has_tabs_and_no_quotes(tmp_path):
    (tmp_path / "a.tsv").write_text('n\ttext\r\n1\ta "quoted", one\r\n\r\n2\t"open\r\n')
    assert documents(tmp_path / "a.tsv") == [('a "quoted", one',), ('"open',)]


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.csv", "id,body\n1,x\n", "no column 'text', only id, body; `text_field` names the one"),
        ("a.tsv", "id\tbody\n1\tx\n", "no column 'text', only id, body; `text_field` names"),
        ("a.csv", "text,text\n1,x\n", "2 columns are called 'text'"),
        ("a.csv", "", "empty: it has no line with the names"),
        ("a.csv", "n,text\n1,x\n2,y,z\n", "line 3: 3 cells for 2 columns (n, text); quote"),
        ("a.tsv", "n\ttext\n1\n", "line 2: 1 cells for 2 columns"),
        ("a.csv", 'n,text\n1,"never closed\n2,y\n', "line 2: unexpected end of data; is a quote"),
        ("a.csv", 'n,text\n1,"a "b" c"\n', "line 2: ',' expected after '\"'; is a quote not clo"),
        ("a.jsonl", '{"content": "x"}\n', "found ['content']; `text_field` names the one with"),
        ("a.jsonl", '{"text": 3}\n', "needs an object with a string field 'text', found ['te"),
    ],
)
def test_what_is_wrong_with_a_record_is_said(tmp_path, name, content, expected):
    (tmp_path / name).write_text(content, newline="")
    assert f"{name}" in (message := refusal(tmp_path / name)) and expected in message


def test_a_format_of_ones_own_takes_a_path_and_bytes(tmp_path, monkeypatch):
    def read(path, stream):
        yield (path.name, *stream.read().decode("latin-1").split())

    monkeypatch.setattr(FORMATS, "_entries", dict(FORMATS._entries))
    FORMATS.register(".Words", read)
    (tmp_path / "a.words.gz").write_bytes(gzip.compress("a caf\xe9".encode("latin-1")))
    assert documents(tmp_path) == [("a.words.gz", "a", "caf\xe9")]


@pytest.mark.parametrize("error", [EOFError("it ends"), zlib.error("it is bent")])
def test_damage_that_a_format_of_ones_own_finds(tmp_path, monkeypatch, error):
    def read(path, stream):
        raise error
        yield

    monkeypatch.setattr(FORMATS, "_entries", dict(FORMATS._entries))
    FORMATS.register(".words", read)
    (tmp_path / "a.words").write_text("a")
    assert f"a.words: damaged ({error}); fetch it again" in refusal(tmp_path / "a.words")


def test_a_long_cell_is_read_whatever_the_limit_of_the_library_was(tmp_path, monkeypatch):
    long = "many words " * 20_000
    (tmp_path / "a.csv").write_text(f"text\n{long}\n")
    csv.field_size_limit(1000)
    assert documents(tmp_path / "a.csv") == [(long.strip(),)]
    monkeypatch.setattr(delimited, "LONGEST_RECORD_BYTES", 1000)
    assert "a.csv, line 2: longer than" in refusal(tmp_path / "a.csv")


@pytest.mark.parametrize("line", ['a","\\n', "many words " * 9 + '","\\n'])
def test_a_row_that_never_ends_is_refused_before_it_fills_the_memory(tmp_path, monkeypatch, line):
    """Its cells are short, and many; short lines take more memory than their characters."""
    monkeypatch.setattr(delimited, "LONGEST_RECORD_BYTES", 32_000)
    taken = []
    lines = (taken.append(1) or line for _ in range(5_000))
    with pytest.raises(UsageError, match=r"a.csv, line 2: a row longer than .*a quote not closed"):
        list(delimited.csv_rows(tmp_path / "a.csv", lines, ",", begun=1))
    assert len(taken) <= 1_001


def _rows_tried_one_by_one(lines):
    """Returns the rows of lines, and how many are bad: each bad row costs its first line."""
    rows, bad, at = [], 0, 0
    while at < len(lines):
        reader = csv.reader(lines[at:], strict=True)
        try:
            cells = next(reader)
            at += reader.line_num
            rows.append((at, cells))
        except csv.Error:
            bad, at = bad + 1, at + 1
    return rows, bad


@settings(max_examples=400, deadline=None)
@given(st.text('"",a\r\n\n', max_size=60))
def test_bad_rows_cost_their_first_lines_and_no_others(text):
    lines = io.StringIO(text, newline="\n").readlines()
    bad = []
    rows = delimited.csv_rows(Path("a.csv"), iter(lines), ",", refuse=bad.append)
    assert (list(rows), len(bad)) == _rows_tried_one_by_one(lines)


def test_time_to_leave_out_rows_does_not_grow_with_the_square_of_them(monkeypatch):
    """Each line is looked at a few times, however many rows never end: counted, not timed."""
    looked_at, reader = [], csv.reader

    def watched(lines, **options):
        return reader((looked_at.append(1) or line for line in lines), **options)

    monkeypatch.setattr(csv, "reader", watched)
    for line in ('a","\n', 'a "b",", c""d\n'):
        looked_at.clear()
        bad = []
        lines = iter([line] * 3_000)
        assert not list(delimited.csv_rows(Path("a.csv"), lines, ",", refuse=bad.append))
        assert len(bad) == 3_000 and len(looked_at) < 4 * 3_000


@pytest.mark.parametrize(
    "name, quoting, text",
    [
        ("a.csv", "none", 'text;x\n"One.;1\nTwo" "more.;2\n'),
        ("a.csv", None, 'text;x\n"""One.";1\n"Two"" ""more.";2\n'),
        ("a.tsv", "double", 'x\ttext\n1\t"""One."\n2\t"Two"" ""more."\n'),
        ("a.tsv", None, 'x\ttext\n1\t"One.\n2\tTwo" "more.\n'),
    ],
)
def test_quotes_are_letters_or_not(tmp_path, name, quoting, text):
    (tmp_path / name).write_text(text)
    found = documents(tmp_path / name, quoting=quoting)
    assert found == [('"One.',), ('Two" "more.',)]


# --- parquet --------------------------------------------------------------------------------------


@pytest.fixture
def parquet(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    def write(name="a.parquet", texts=TEXTS, kind="string", **columns):
        kinds = {"string": pyarrow.string(), "large": pyarrow.large_string(), "int": None}
        arrays = {"text": pyarrow.array(texts, kinds[kind])} | columns
        parquet.write_table(pyarrow.table(arrays), tmp_path / name, row_group_size=2)
        return tmp_path / name

    return write


@pytest.mark.parametrize("kind", ["string", "large"])
def test_parquet_is_read_by_row_groups(parquet, kind):
    path = parquet(texts=[*TEXTS[:2], None, " \n ", TEXTS[2]], kind=kind, n=list("abcde"))
    assert documents(path) == DOCUMENTS


def test_parquet_that_cannot_be_read(parquet, tmp_path):
    assert "column 'text' is int64, not text; `text_field`" in refusal(
        parquet(texts=[1], kind="int")
    )
    path = parquet(n=[1, 2, 3])
    assert "no column 'body', only text, n; `text_field` names" in refusal(path, text_field="body")
    data = path.read_bytes()
    path.write_bytes(data[:-20])
    assert "a.parquet: damaged parquet file (" in refusal(path)
    (tmp_path / "b.parquet.zst").write_bytes(_zstd(data))
    assert "b.parquet.zst: unpack it first" in refusal(tmp_path / "b.parquet.zst")


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["a.parquet"], "a.parquet: needs pyarrow: pip install 'pyarrow>=20'"),
        (["a.txt", "b.JSONL.ZST"], "b.JSONL.ZST: needs zstandard: pip install 'zstandard>=0.23'"),
        (["a.parquet", "b.txt.zst"], "needs pyarrow and zstandard: pip install"),
    ],
)
def test_an_absent_package_is_one_line_before_anything_is_read(
    tmp_path, monkeypatch, names, expected
):
    for package in ("pyarrow", "zstandard"):
        monkeypatch.setitem(sys.modules, package, None)
    for name in names:
        (tmp_path / name).write_bytes(b"x")
    with pytest.raises(UsageError) as caught:
        read_documents([str(tmp_path)], findings=Findings())
    assert expected in str(caught.value) and "\n" not in str(caught.value)


# --- encodings ------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
@pytest.mark.parametrize(
    ("ending", "content"), [(".txt", plain()), (".jsonl", jsonl()), (".csv", table(";"))]
)
def test_a_byte_order_mark_says_what_a_text_is_written_in(tmp_path, ending, content, encoding):
    path = tmp_path / f"a{ending}"
    path.write_bytes(content.encode(encoding))
    assert documents(path) == DOCUMENTS == documents(path, encoding="cp1252")
    if encoding != "utf-8-sig":
        data = content.encode(encoding.replace("-", "_") + "_be")
        path.write_bytes("\ufeff".encode(encoding + "-be") + data)
        assert documents(path) == DOCUMENTS


_HINDI = "यह एक वाक्य है।\r\n\r\nनदी के पार एक गाँव है।\r\n"
_ENGLISH = "A line here.\n\nAnother text is longer than that.\n"


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
@pytest.mark.parametrize("text", [_HINDI, _ENGLISH], ids=["hi", "en"])
@pytest.mark.parametrize("skips_records", [False, True])
def test_two_or_four_bytes_a_letter_without_a_mark(tmp_path, text, encoding, skips_records):
    """Valid UTF-8, most of it, in which every other character is a zero byte."""
    path, plain = tmp_path / "a.txt", tmp_path / "plain.txt"
    path.write_bytes(text.encode(encoding))
    plain.write_text(text, encoding="utf-8")
    for other in {None, "cp1252", encoding[:6], "utf-16-le"} - {encoding}:
        message = refusal(path, encoding=other, skips_records=skips_records)
        assert f"looks like {encoding} without a byte order mark; `encoding` {encoding}" in message
    assert documents(path, encoding=encoding) == documents(plain)
    # Without spaces nothing says so; the name alone does not say which end comes first.
    path.write_bytes("漢字仮名".encode("utf-16-le"))
    assert "`encoding` utf-16-le or utf-16-be says" in refusal(path, encoding="utf-16")
    # A few zero bytes are in text of all kinds.
    path.write_text("A line.\x00\n\nAnother\x00 one, and\x00 more.")
    assert len(documents(path)) == 2


def test_an_encoding_that_is_named_is_obeyed(tmp_path):
    text = "“Quotes” cost 5 €."
    (tmp_path / "a.txt").write_bytes(text.encode("cp1252"))
    assert documents(tmp_path / "a.txt", encoding="cp1252") == [(text,)]
    message = refusal(tmp_path / "a.txt")
    assert "a.txt, line 1: not UTF-8 (byte 0x93 at offset 0)" in message
    assert "`encoding` cp1252" in message
    (tmp_path / "a.txt").write_bytes("漢字".encode("gb18030"))
    assert documents(tmp_path / "a.txt", encoding="gb18030") == [("漢字",)]
    message = refusal(tmp_path / "a.txt", encoding="ascii")
    assert "line 1: not ascii (byte 0x9d at offset 0); give it another `encoding`" in message


def test_utf8_is_not_read_as_another_encoding(tmp_path):
    """An option says it of all files, and of this one it is not so: a letter would become two."""
    text = "Größe, Übermaß, Äpfel, Öl, süß, müde, grün. " * 2
    (tmp_path / "a.txt").write_text(text, encoding="utf-8")
    assert "a.txt: it is UTF-8 by its bytes, and not cp1252" in refusal(
        tmp_path / "a.txt", encoding="cp1252"
    )
    assert documents(tmp_path / "a.txt", encoding="utf-8-sig") == [(text.strip(),)]
    (tmp_path / "a.txt").write_bytes(text.encode("cp1252"))
    assert documents(tmp_path / "a.txt", encoding="cp1252") == [(text.strip(),)]
    # A few may be so by chance: these characters are also Latin letters in UTF-8.
    (tmp_path / "a.txt").write_bytes("联通".encode("gbk"))
    assert documents(tmp_path / "a.txt", encoding="gbk") == [("联通",)]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
@pytest.mark.parametrize("mark", [True, False])
def test_line_and_offset_are_those_of_the_file(tmp_path, monkeypatch, encoding, mark):
    """Also where the bad bytes come late, and a character lies across what is read at a time."""
    name = "utf-8-sig" if mark and encoding == "utf-8" else encoding
    good = ("é漢 a line\n" * 40_000).encode(name if mark else "utf-8")
    bad = b"ab\xff\xff" if encoding == "utf-8" or not mark else b"\x00\xdc\x00\xdc"
    (tmp_path / "a.txt").write_bytes(good + bad)
    offset = len(good) + (2 if bad[:2] == b"ab" else 0)
    byte = "ff" if bad[:2] == b"ab" else "00"
    assert (
        f"line 40001: not UTF-8 (byte 0x{byte} at offset {offset})".lower().replace(
            "utf-8", encoding if mark else "utf-8"
        )
        in refusal(tmp_path / "a.txt").lower()
    )


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.csv"])
def test_bytes_that_are_none_are_not_read_as_another_encoding(tmp_path, name):
    """0xc9 0xa1 are no letter of EUC-KR, and one of UTF-8: the record is left out."""
    korean, bad = "한국어 문서".encode("euc_kr"), b"\xc9\xa1"
    texts = {
        "a.txt": [korean, korean + bad, korean],
        "a.jsonl": [b'{"text": "' + text + b'"}' for text in (korean, korean + bad, korean)],
        "a.csv": [b"text", korean, korean + bad, korean],
    }[name]
    (tmp_path / name).write_bytes((b"\n" if name != "a.txt" else b"\n\n").join(texts) + b"\n")
    assert "not euc_kr (byte 0xc9 at" in refusal(tmp_path / name, encoding="euc_kr")
    findings = Findings()
    reading = SourceOptions(encoding="euc_kr", skips_records=True)
    found = list(read_documents([str(tmp_path / name)], reading, findings=findings))
    assert found == [("한국어 문서",)] * 2
    assert findings.records == {str(tmp_path / name): 1}


def test_half_a_character_that_an_encoding_can_write_is_one_that_is_lost(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"an emoji +2D0- cut in two\n")
    assert documents(tmp_path / "a.txt", encoding="utf-7") == [("an emoji \ufffd cut in two",)]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("count", [2, 40_000])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16-le", "utf-16-be", "utf-32-be"])
def test_a_line_is_counted_as_it_is_read(tmp_path, end, count, encoding):
    """Lines end as they do in the text, and bytes are in the order that the mark says."""
    good = f"\ufeff{f'a line{end}' * count}".encode(encoding)
    bad = {"utf-8": b"\xff", "utf-16-le": b"\x00\xdc", "utf-16-be": b"\xdc\x00"}
    rest = "x\n".encode(encoding) * 2
    (tmp_path / "a.txt").write_bytes(good + bad.get(encoding, b"\xff" * 4) + rest)
    assert (
        f"a.txt, line {count + 1}: not {encoding[:6]}".lower()
        in refusal(tmp_path / "a.txt").lower()
    )


@pytest.mark.parametrize("packing", [".gz", ".bz2", ".xz", ".zst"])
def test_a_packed_file_by_another_name_is_called_so(tmp_path, packing):
    (tmp_path / "a.txt").write_bytes(PACK[packing]((plain() * 20).encode()))
    assert f"{packing} file does: let its name end so" in refusal(tmp_path / "a.txt")


@pytest.mark.parametrize("name", ["cp12521", "base64", "rot13", "idna", "punycode"])
def test_an_encoding_that_is_none_of_text_is_refused(name):
    require_encoding("koi8-r")
    with pytest.raises(UsageError, match=f"`encoding` {name}: no such encoding of text"):
        require_encoding(name)


# --- what is long ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.csv"])
def test_what_is_long_is_cut_alike_in_every_format(tmp_path, monkeypatch, name):
    monkeypatch.setattr(document, "LONGEST_LINE_BYTES", 64)
    monkeypatch.setattr(document, "LONGEST_DOCUMENT_BYTES", 200)
    lines = [" ".join("x" * (1 + i % 9) for i in range(40)), "é" * 100, "short", "漢 " * 50]
    text = "\n".join(lines)
    content = {
        "a.txt": text,
        "a.jsonl": json.dumps({"text": text}),
        "a.csv": f'text\n"{text}"\n',
    }[name]
    (tmp_path / name).write_text(content + "\n", encoding="utf-8")
    found = documents(tmp_path / name)
    assert len(found) > 2
    assert max(len(p.encode()) for document in found for p in document) <= 64
    assert max(sum(len(p.encode()) for p in document) for document in found) <= 200 + 64
    joined = "".join("".join(document) for document in found)
    assert joined.replace(" ", "") == text.replace(" ", "").replace("\n", "")
    # Words are whole.
    assert [w for d in found for p in d for w in p.split()][:40] == lines[0].split()


def test_time_to_cut_a_sentence_does_not_grow_with_its_square(monkeypatch):
    """Every character is looked at a few times, however long the sentence: counted, not timed."""

    class Watched(str):
        copied = 0

        def __getitem__(self, key):
            piece = str.__getitem__(self, key)
            Watched.copied += len(piece)
            return piece

        def strip(self):
            return self

    import sentencex

    monkeypatch.setattr(sentencex, "segment", lambda language, text: [Watched(text)])
    for words in (2_000, 20_000):
        Watched.copied = 0
        text = "many words" + " and more" * words
        assert " ".join(split_sentences(text)) == text
        assert Watched.copied < 1.1 * len(text)


# --- folders, standard input ----------------------------------------------------------------------


@pytest.fixture
def mixed(tmp_path):
    folder = tmp_path / "in"
    (folder / "sub").mkdir(parents=True)
    words = ["the", "cat", "sees", "a", "dog", "in", "the", "old", "house", "by", "the", "river"]
    for number, name in enumerate(["UPPER.TXT", "sub/b.txt", "c.jsonl"]):
        texts = [" ".join([*words, str(i), "."]) for i in range(40 * number, 40 * number + 40)]
        lines = [json.dumps({"text": text}) for text in texts]
        content = "\n".join(lines) if name.endswith("jsonl") else "\n\n".join(texts)
        (folder / name).write_text(content + "\n")
    for name in ("readme.md", "sub/scan.pdf", ".DS_Store"):
        (folder / name).write_bytes(b"x")
    return folder


def _command(folder, output, *more):
    return ["prepare", "--source", str(folder), "--output", str(output), "--vocab-size", "150",
            "--validation-fraction", "0.2", "--workers", "1", *more]  # fmt: skip


def test_each_file_of_a_folder_is_read_or_named(mixed, tmp_path, capsys):
    assert main(_command(mixed, tmp_path / "c")) == 0
    said = capsys.readouterr()
    assert (
        "skipped 3 files: readme.md, sub/scan.pdf (of no kind that is read); .DS_Store (hidden)"
        in (said.err.replace("\n", " "))
    )
    assert "sample text: 120 documents" in said.err
    for i in range(20):
        (mixed / f"{i}.png").touch()
    (mixed / "loop").symlink_to(mixed)
    import os

    os.mkfifo(mixed / "pipe.txt")
    (line,) = left_out([str(mixed), "docs:", "-"])
    assert "skipped 25 files: " in line and "20 .png, 1 .md, 1 .pdf (of no kind that is" in line
    assert "loop (links to folders)" in line and "pipe.txt (not plain files)" in line


def test_a_file_of_another_encoding_is_added_by_itself(mixed, tmp_path, capsys):
    """As the error says: left out beside files that are UTF-8, and then added."""
    (mixed / "a.txt").write_bytes("Das Café.\n\nDie Öfen.\n".encode("cp1252"))
    output = tmp_path / "c"
    assert main(_command(mixed, output)) == 2
    assert (
        f"{mixed}/a.txt, line 1: not UTF-8 (byte 0xe9 at offset 7); --skip-bad leaves it out; if "
        "Windows wrote it in a western language, a second command adds it: --append --source FILE "
        "--encoding cp1252\n"
    ) in capsys.readouterr().err
    assert main(_command(mixed, output, "--skip-bad")) == 0
    adding = ["prepare", "--append", "--source", str(mixed / "a.txt"), "--encoding", "cp1252"]
    assert main([*adding, "--output", str(output), "--workers", "1"]) == 0
    assert "its last addition: 2 documents" in capsys.readouterr().out
    # Where there is nothing else, all of it is read so.
    assert main(_command(mixed / "a.txt", tmp_path / "d")) == 2
    said = "; if Windows wrote it in a western language, --encoding cp1252 reads it\n"
    assert said in capsys.readouterr().err


def test_a_reason_that_several_files_have_is_said_once(mixed, tmp_path, capsys):
    for name in ("x.txt", "y.txt"):
        (mixed / name).write_bytes(b"a b\n\ncaf\xe9 " + name.encode())
    (mixed / "f.csv").write_text("id,body\n")
    assert main(_command(mixed, tmp_path / "c")) == 2
    said = capsys.readouterr().err
    head, *lines = said[said.index("error: ") :].splitlines()
    assert head == "error: 3 files cannot be read:" and len(lines) == 5
    assert lines[0].startswith(f"  {mixed}/f.csv: no column 'text', only id, body; --text-field")
    assert lines[1].startswith("  2 of them: not UTF-8; --skip-bad leaves it out; if Windows")
    assert lines[2:4] == [f"    {mixed}/{name}.txt, line 3" for name in "xy"]
    assert lines[4] == "fix them, or leave them out with --skip-bad"


def test_all_bad_files_are_listed_at_once_and_may_be_left_out(mixed, tmp_path, capsys):
    assert main(_command(mixed, tmp_path / "good")) == 0
    (mixed / "a.txt").write_bytes(b"Some good words.\n\nthe cat caf\xe9\n")
    (mixed / "d.jsonl").write_text('{"text": "the cat"}\n{"content": "the cat"}\n')
    (mixed / "e.txt.gz").write_bytes(gzip.compress(b"the cat " * 50)[:-9])
    (mixed / "f.csv").write_text("id,body\n")
    capsys.readouterr()
    assert main(_command(mixed, tmp_path / "bad")) == 2
    said = capsys.readouterr().err
    error = said[said.index("error: ") :]
    assert error.startswith("error: 4 files cannot be read:\n")
    for name in ("a.txt, line 3: not", "d.jsonl, line 2: ", "e.txt.gz: damaged", "f.csv: no col"):
        assert error.count(f"{mixed}/{name}") == 1
    assert "--encoding cp1252" in error and error.endswith("leave them out with --skip-bad\n")
    assert not (tmp_path / "bad/tokenizer").exists()

    for again in (False, True):
        assert main(_command(mixed, tmp_path / "bad", "--skip-bad")) == 0
        said = capsys.readouterr()
        assert "left out: 4 bad file(s), which corpus.json names" in said.out
        assert ("nothing to do" in said.err) == again
    manifest = json.loads((tmp_path / "bad/corpus.json").read_text())
    assert [name.rsplit("/")[-1] for name in manifest["skipped_files"]] == [
        "a.txt", "d.jsonl", "e.txt.gz", "f.csv",
    ]  # fmt: skip
    assert "line 3: not UTF-8" in manifest["skipped_files"][str(mixed / "a.txt")]
    # Not even what came before the bad place is taken.
    whole = json.loads((tmp_path / "good/corpus.json").read_text())
    assert manifest["fingerprint"] == whole["fingerprint"]


def test_a_single_bad_file_is_one_line(mixed, tmp_path, capsys):
    (mixed / "a.csv").write_text("id,body\n")
    assert main(_command(mixed, tmp_path / "c")) == 2
    assert capsys.readouterr().err.splitlines()[-1].endswith("; --skip-bad leaves the file out")


@pytest.mark.parametrize("source", ["-", "stdin:.JSONL.gz"])
def test_standard_input(mixed, tmp_path, monkeypatch, capsys, source):
    name = "sub/b.txt" if source == "-" else "c.jsonl"
    data = (mixed / name).read_bytes()
    assert main(_command(mixed / name, tmp_path / "file")) == 0
    for again in (False, True):
        packed = data if source == "-" else gzip.compress(data)
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(packed)))
        assert main(_command(source, tmp_path / "piped")) == 0
        assert ("nothing to do" in capsys.readouterr().err) == again
    found, expected = (
        json.loads((tmp_path / output / "corpus.json").read_text()) for output in ("piped", "file")
    )
    assert found.pop("sources") == [source] != expected.pop("sources")
    assert found == expected
    assert not (tmp_path / "piped/.parts").exists()


@pytest.mark.parametrize(
    ("sources", "data", "expected"),
    [
        (["-"], b'{"text": "x"}\n', "looks like JSON lines; write `source` stdin:.jsonl for"),
        (["-"], b"\n\nab\xff", "standard input, line 3: not UTF-8 (byte 0xff at offset 4)"),
        (["stdin:.jsonl"], b"nothing", "standard input, line 1: not JSON"),
        (["stdin:.pdf"], b"", "stdin:.pdf: write stdin: and one of .txt, .jsonl, .csv"),
        (["-", "stdin:.csv"], b"", "- and stdin:.csv: standard input can be read once"),
        (["-"], None, "`source` -: standard input is closed"),
    ],
)
def test_standard_input_that_is_refused(tmp_path, monkeypatch, sources, data, expected):
    stream = None if data is None else io.TextIOWrapper(io.BytesIO(data))
    monkeypatch.setattr(sys, "stdin", stream)
    with pytest.raises(UsageError) as caught:
        prepare(sources, tmp_path / "c", workers=1)
    assert expected in str(caught.value)


def test_too_few_documents_are_said_before_anything_is_encoded(tmp_path, monkeypatch):
    def encoded(*_, **__):
        raise AssertionError("encoded")

    monkeypatch.setattr("bert_jax.data.corpus.prepare.encode_units", encoded)
    monkeypatch.setattr("bert_jax.data.corpus.trained_tokenizer.train_wordpiece", encoded)
    (tmp_path / "a.txt").write_text("One.\n\nTwo.\n\nThree.\n")
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "one"]
    (tmp_path / "vocab.txt").write_text("\n".join(special))
    for tokenizer in ("wordpiece", str(tmp_path / "vocab.txt")):
        with pytest.raises(UsageError, match="of 3 documents and needs at least 2"):
            prepare([str(tmp_path / "a.txt")], tmp_path / "c", tokenizer=tokenizer, workers=1)


def test_the_tokenizer_of_a_corpus_or_workdir_is_found(mixed, tmp_path, capsys):
    assert main(_command(mixed, tmp_path / "first")) == 0
    given = ["--tokenizer", str(tmp_path / "first")]
    assert main(_command(mixed, tmp_path / "second", *given)) == 0
    one, two = (
        json.loads((tmp_path / name / "corpus.json").read_text()) for name in ("first", "second")
    )
    assert one["fingerprint"] == two["fingerprint"]
    (tmp_path / "empty/tokenizer").mkdir(parents=True)
    assert main(_command(mixed, tmp_path / "third", "--tokenizer", str(tmp_path / "empty"))) == 2
    assert f"{tmp_path / 'empty'}/tokenizer: holds neither" in capsys.readouterr().err


def test_help_begins_its_examples_with_the_tokenizer_of_a_model(capsys):
    with pytest.raises(SystemExit):
        main(["prepare", "--help"])
    examples = capsys.readouterr().out.split("\nto train on from a model, take its tokenizer:\n")
    assert examples[1].startswith("  bert-jax prepare --tokenizer DIR ")
