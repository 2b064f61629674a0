"""Crawls of the web in WARC files: pages, and the text that was extracted from them (WET)."""

import re
from collections.abc import Iterator
from pathlib import Path

from bert_jax.data.sources.document import Document
from bert_jax.data.sources.stream import SourceStream
from bert_jax.errors import UsageError, brief

# The bytes of one record that are read; a longer page is cut there.
_LONGEST_RECORD_BYTES = 128 << 20
_LONGEST_LINE_BYTES = 1 << 20
# All text is taken of a page whose tags are nested deeper: to find its main text takes time that
# grows with the square of the depth, and no signal ends it. Browsers nest 512 levels.
_DEEPEST = 500
_TOO_DEEP = " > ".join("*" * (_DEEPEST + 1))
_HTML = ("text/html", "application/xhtml+xml")
_BEGINNING = b"WARC/"
# The line after the content of a record; the last one of a file may be missing.
_ENDS = (b"\r\n", b"\n", b"")
_TYPE, _LENGTH = b"warc-type", b"content-length"


def read_texts(path: Path, stream: SourceStream) -> Iterator[Document]:
    """Yields the text of each record of a WET file ("conversion"), without its headers."""
    for where, kind, content in _records(path, stream):
        if kind == b"conversion":
            yield from _converted(where, content, stream)


def read_pages(path: Path, stream: SourceStream) -> Iterator[Document]:
    """Yields the main text of each HTML page of a WARC file ("response"), or all of it if its tags
    are nested too deep, and the text of each converted record; other records are passed over.
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
        stream.refuse(UsageError(f"{where}: its HTTP response cannot be unpacked ({reason})"))
        return
    tree = HTMLTree.parse(_decoded(page, response.http_charset))
    root = tree.document
    is_deep = root is not None and root.query_selector(_TOO_DEEP) is not None
    text = extract_plain_text(tree, main_content=not is_deep)
    if found := stream.document(text):
        yield found


def _decoded(page: bytes, charset: str | None) -> str:
    """Returns a page as text, in the character set that was sent with it, else in the set that the
    page looks like; bytes of neither become U+FFFD.
    """
    from resiliparse.parse.encoding import bytes_to_str, detect_encoding, map_encoding_to_html5

    seen = detect_encoding(page) or "utf-8"
    said = map_encoding_to_html5(charset or "", fallback_utf8=False) or seen
    return bytes_to_str(page, said, errors="replace", fallback_encodings=(seen,))


def _records(path: Path, stream: SourceStream) -> Iterator[tuple[str, bytes, bytes]]:
    """Yields the place of each record, for messages, its type and its content.

    The libraries that read WARC files end silently at a bad record or at the end of a file that was
    cut. Here the file is bad from there on: how many records are lost is not known.
    """
    line, number = stream.readline(_LONGEST_LINE_BYTES), 0
    if not line.startswith(_BEGINNING):
        raise UsageError(f"{path}: is no WARC file: it does not begin with WARC/")
    while line:
        number += 1
        where, problem = f"{path}, record {number}", "does not begin with WARC/"
        kind, content = b"", b""
        if line.startswith(_BEGINNING):
            headers = _headers(stream)
            kind = headers.get(_TYPE, b"")
            content, problem = _content(stream, headers)
        if problem:
            raise UsageError(f"{where}: {problem}; fetch the file again")
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
    """Returns the content of a record, and what is wrong with the record; "" if nothing is."""
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
