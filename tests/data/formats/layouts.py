"""The same text in every format that `prepare` reads, and bad records of each format."""

import bz2
import csv
import functools
import gzip
import io
import json
import lzma
import random
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

pa = pytest.importorskip("pyarrow")
zstandard = pytest.importorskip("zstandard")

WORDS = ["the", "old", "red", "cat", "sees", "a", "dog", "and", "hears", "birds", "near", "river"]
WORDS += ["house", "müde", "wörter"]
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *"0123456789"]
VOCABULARY += [*(f"##{digit}" for digit in "0123456789"), *dict.fromkeys(WORDS)]

DOCUMENTS = [
    ("The first paragraph.", "The second, with é and 漢字."),
    ("Another document.",),
    ("A third. It has two sentences.", "And two paragraphs."),
]
TEXT = "\n\n".join("\n".join(document) for document in DOCUMENTS) + "\n"


def _zstd(data: bytes) -> bytes:
    # Several frames, one without its size, as `zstd` and `pzstd` write to a pipe.
    frame = zstandard.ZstdCompressor(write_content_size=False).compress
    return frame(data[:10]) + zstandard.compress(data[10:]) + frame(b"")


PACKERS = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress, ".zst": _zstd}


@functools.cache
def texts(count: int, paragraphs: int = 3) -> list[str]:
    """Returns documents with lines as paragraphs."""
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
    parquet.write_table(table, path, row_group_size=400)


def write_arrow(path: Path, found: object, *, is_file: bool, name: str = "text") -> None:
    table = pa.table({name: found})
    new = pa.ipc.new_file if is_file else pa.ipc.new_stream
    with new(str(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=300)


def write_csv(path: Path, found: list[str]) -> None:
    with path.open("w", newline="") as stream:
        csv.writer(stream).writerows([["id", "text"], *([i, t] for i, t in enumerate(found))])


def write_files(path: Path, found: list[str]) -> None:
    path.mkdir()
    for number, text in enumerate(found):
        (path / f"{number:05}.txt").write_text(text.replace("\n", "\n\n"))


def write_wrapped(path: Path, found: list[str]) -> None:
    path.mkdir()
    for number, text in enumerate(found):
        blocks = ["\n".join(textwrap.wrap(part, 70)) for part in text.split("\n")]
        (path / f"{number:05}.txt").write_text("\n\n".join(blocks) + "\n")


def write_wet(path: Path, found: list[str]) -> None:
    records = [warc("warcinfo", b"a: b\r\n", "application/warc-fields")]
    records += [warc("conversion", text.encode()) for text in found]
    path.write_bytes(b"".join(gzip.compress(record) for record in records))


def jsonl(found: list[str], wrap: Callable[[str], object] = lambda text: {"text": text}) -> str:
    return "".join(json.dumps(wrap(text)) + "\n" for text in found)


Write = Callable[[Path, list[str]], object]
# Layout -> the name, the options for reading it, and the function that writes documents.
LAYOUTS: dict[str, tuple[str, dict[str, str], Write]] = {
    "text": ("a.txt", {}, lambda p, t: p.write_text("\n\n".join(t))),
    "windows": (
        "a.txt",
        {"encoding": "cp1252"},
        lambda p, t: p.write_bytes("\n\n".join(t).replace("\n", "\r\n").encode("cp1252")),
    ),
    "jsonl": ("a.jsonl", {}, lambda p, t: p.write_text(jsonl(t))),
    "nested": (
        "a.jsonl",
        {"text_field": "content,doc.text"},
        lambda p, t: p.write_text(jsonl(t, lambda text: {"doc": {"text": text}, "id": 1})),
    ),
    "parquet": ("a.parquet", {}, lambda p, t: write_parquet(p, pa.array(t))),
    "view": ("a.parquet", {}, lambda p, t: write_parquet(p, pa.array(t, pa.string_view()))),
    "large": ("a.parquet", {}, lambda p, t: write_parquet(p, pa.array(t, pa.large_string()))),
    "binary": ("a.parquet", {}, lambda p, t: write_parquet(p, pa.array([x.encode() for x in t]))),
    "dictionary": ("a.parquet", {}, lambda p, t: write_parquet(p, pa.array(t).dictionary_encode())),
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
    "wrapped": ("books", {"document": "file", "paragraph": "blank"}, write_wrapped),
    "fasta": (
        "A.FA",
        {},
        lambda p, t: p.write_text("".join(f">{n}\n{x}\n" for n, x in enumerate(t))),
    ),
}

_PACKED = [f"{layout} + {ending}" for layout in ("text", "jsonl", "csv") for ending in PACKERS]


def written(folder: Path, layout: str, found: list[str]) -> tuple[str, dict[str, str]]:
    """Writes documents in a layout, optionally compressed. Returns the name and the options."""
    stem, _, packing = layout.partition(" + ")
    name, options, write = LAYOUTS[stem]
    folder.mkdir(parents=True, exist_ok=True)
    write(folder / name, found)
    if packing:
        packed = PACKERS[packing]((folder / name).read_bytes())
        (folder / name).unlink()
        name += packing
        (folder / name).write_bytes(packed)
    return name, options


ALL = [*LAYOUTS, *_PACKED]

# --- bad records ----------------------------------------------------------------------------------

NOT_UTF8 = [b"\xff\xfe"]
# A file's name -> bad records, each for another reason.
BAD = {
    "a.txt": [b"\xff", b"one \xc3"],
    "a.jsonl": [
        *(b'{"text": "x', b'{"text": "\xff"}', b'{"text": 3}', b'{"body": "x"}', b"[]"),
        b"[" * 100_000,
    ],
    "a.csv": [b"7,a,b", b"7,\xff", b"7"],
    "a.tsv": [b"7\ta\tb", b"7", b"7\t\xe9t\xe9"],
    "a.parquet": NOT_UTF8,
    "a.arrow": NOT_UTF8,
    "b.arrow": NOT_UTF8,
    "a.fasta": [b">x\n\xff"],
    "a.wet": [warc("conversion", b"caf\xe9")],
}


def write_with(path: Path, found: list[str], bad: dict[int, bytes]) -> None:
    """Writes one record for each text, with bad records at the indices `bad`."""
    if path.suffix in (".parquet", ".arrow"):
        values = [bad.get(i, text.encode()) for i, text in enumerate(found)]
        if path.suffix == ".parquet":
            write_parquet(path, pa.array(values, pa.binary()))
            return
        # As in `datasets`: a column of strings with unchecked bytes.
        buffers = pa.array(values, pa.binary()).buffers()
        column = pa.Array.from_buffers(pa.string(), len(values), buffers)
        write_arrow(path, column, is_file=path.stem == "b")
        return
    make: dict[str, Callable[[int, str], bytes]] = {
        ".wet": lambda n, text: warc("conversion", text.encode()),
        ".jsonl": lambda n, text: json.dumps({"text": text}).encode(),
        ".csv": lambda n, text: _csv_row(n, text),
        ".tsv": lambda n, text: f"{n}\t{text}".encode(),
        ".fasta": lambda n, text: f">{n}\n{text}".encode(),
        ".txt": lambda n, text: text.encode(),
    }
    rows = [bad.get(n) or make[path.suffix](n, text) for n, text in enumerate(found)]
    head = {".csv": b"id,text\n", ".tsv": b"id\ttext\n"}.get(path.suffix, b"")
    between = {".txt": b"\n\n", ".wet": b""}.get(path.suffix, b"\n")
    path.write_bytes(head + between.join(rows))


def _csv_row(number: int, text: str) -> bytes:
    row = io.StringIO()
    csv.writer(row, quoting=csv.QUOTE_ALL).writerow([number, text])
    return row.getvalue().rstrip("\r\n").encode()
