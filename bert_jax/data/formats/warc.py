"""Web crawls in WARC files: pages, and text that was extracted from pages (WET)."""

import re
from collections.abc import Iterator
from pathlib import Path

from bert_jax.data.sources.document import Document
from bert_jax.data.sources.stream import SourceStream
from bert_jax.errors import UsageError, brief

# The largest number of bytes of one record; a longer page is truncated.
_LONGEST_RECORD_BYTES = 128 << 20
_LONGEST_LINE_BYTES = 1 << 20
# If tags are nested deeper, all text of a page is used: extracting its main text would take time
# quadratic in the depth, which no signal interrupts. Browsers nest up to 512 levels.
_DEEPEST = 500
_TOO_DEEP = " > ".join("*" * (_DEEPEST + 1))
_HTML = ("text/html", "application/xhtml+xml")
_BEGINNING = b"WARC/"
# The line after the content of a record, which may be missing at the end of a file.
_ENDS = (b"\r\n", b"\n", b"")
_TYPE, _LENGTH = b"warc-type", b"content-length"


def read_texts(path: Path, stream: SourceStream) -> Iterator[Document]:
    """Yields the text of each record of a WET file ("conversion"), without its headers."""
    for where, kind, content in _records(path, stream):
        if kind == b"conversion":
            yield from _converted(where, content, stream)


def read_pages(path: Path, stream: SourceStream) -> Iterator[Document]:
    """Yields the main text of each HTML page of a WARC file ("response"), or all of its text if the
    tags are nested too deep, and the text of each converted record. Skips other records.
    """
    for where, kind, content in _records(path, stream):
        if kind == b"conversion":
            yield from _converted(where, content, stream)
        elif kind == b"response":
            yield from _page(where, content, stream)


def _converted(where: str, content: bytes, stream: SourceStream) -> Iterator[Document]:
    try:
        text = content.decode()
    except UnicodeDecodeError:
        stream.refuse(UsageError(f"{where}: not UTF-8"))
        return
    if found := stream.document(text):
        yield found


def _page(where: str, content: bytes, stream: SourceStream) -> Iterator[Document]:
    from fastwarc.warc import WarcRecord, WarcRecordType
    from resiliparse.extract.html2text import extract_plain_text
    from resiliparse.parse.html import HTMLTree

    response = WarcRecord()
    response.record_type = WarcRecordType.response
    response.set_bytes_content(content)
    response.is_http = True
    try:
        response.parse_http(auto_decode="all")
        if (response.http_content_type or "").lower() not in _HTML:
            return
        page = response.reader.read(_LONGEST_RECORD_BYTES)
    except OSError as error:
        reason = brief(str(error))[1:-1]
        stream.refuse(UsageError(f"{where}: cannot decompress its HTTP response ({reason})"))
        return
    tree = HTMLTree.parse(_decoded(page, response.http_charset))
    root = tree.document
    is_deep = root is not None and root.query_selector(_TOO_DEEP) is not None
    text = extract_plain_text(tree, main_content=not is_deep)
    if found := stream.document(text):
        yield found


def _decoded(page: bytes, charset: str | None) -> str:
    """Returns a page as text, decoded with the declared character set, else with the detected one;
    bytes outside this set become U+FFFD.
    """
    from resiliparse.parse.encoding import bytes_to_str, detect_encoding, map_encoding_to_html5

    seen = detect_encoding(page) or "utf-8"
    said = map_encoding_to_html5(charset or "", fallback_utf8=False) or seen
    return bytes_to_str(page, said, errors="replace", fallback_encodings=(seen,))


def _records(path: Path, stream: SourceStream) -> Iterator[tuple[str, bytes, bytes]]:
    """Yields the location of each record, for messages, its type and its content.

    Libraries for WARC files stop silently at a bad record or at the end of a truncated file. Here
    the rest of the file is reported as bad: the number of lost records is unknown.
    """
    line, number = stream.readline(_LONGEST_LINE_BYTES), 0
    if not line.startswith(_BEGINNING):
        raise UsageError(f"{path}: is not a WARC file: it does not begin with WARC/")
    while line:
        number += 1
        where, problem = f"{path}, record {number}", "does not begin with WARC/"
        kind, content = b"", b""
        if line.startswith(_BEGINNING):
            headers = _headers(stream)
            kind = headers.get(_TYPE, b"")
            content, problem = _content(stream, headers)
        if problem:
            raise UsageError(f"{where}: {problem}; download the file again")
        yield where, kind, content
        while (line := stream.readline(_LONGEST_LINE_BYTES)) and not line.strip():
            pass  # blank lines end a record


def _headers(stream: SourceStream) -> dict[bytes, bytes]:
    """Returns the headers of a record that give its type and the length of its content."""
    found = {}
    while (line := stream.readline(_LONGEST_LINE_BYTES)).strip():
        name, _, value = line.partition(b":")
        if (name := name.strip().lower()) in (_TYPE, _LENGTH):
            found[name] = value.strip()
    return found


def _content(stream: SourceStream, headers: dict[bytes, bytes]) -> tuple[bytes, str]:
    """Returns the content of a record, and an error in the record, "" if there is none."""
    if not re.fullmatch(rb"\d{1,18}", headers.get(_LENGTH, b"")):
        return b"", "has no length"
    length = int(headers[_LENGTH])
    content = stream.read(min(length, _LONGEST_RECORD_BYTES))
    rest = length - len(content)
    while rest > 0 and (skipped := stream.read(min(rest, 1 << 20))):
        rest -= len(skipped)
    if rest:
        return content, f"ends after {length - rest:,} of {length:,} bytes"
    if _TYPE not in headers:
        return content, "has no type"
    return content, "" if stream.readline(4) in _ENDS else "continues where its content should end"
