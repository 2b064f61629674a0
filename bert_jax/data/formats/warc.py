"""Crawls of the web in WARC files: pages, and the text that somebody has taken from them (WET)."""

import re
from collections.abc import Iterator
from pathlib import Path

from bert_jax.data.sources.document import Document
from bert_jax.data.sources.stream import SourceStream
from bert_jax.errors import UsageError, brief

# Of one record that are read; a page beyond is cut there, which no text of people reaches.
_LONGEST_RECORD_BYTES = 128 << 20
_LONGEST_LINE_BYTES = 1 << 20
# Of a page whose tags are nested deeper, all text is taken: to look for the main text takes time
# that grows with the square of the depth, and no signal ends it. Browsers nest 512 levels.
_DEEPEST = 500
_TOO_DEEP = " > ".join("*" * (_DEEPEST + 1))
_HTML = ("text/html", "application/xhtml+xml")
_BEGINNING, _VERSION = b"WARC/", b"WARC/1."
_TYPE, _LENGTH = b"warc-type", b"content-length"


def read_texts(path: Path, stream: SourceStream) -> Iterator[Document]:
    """Yields the text of each record of a WET file ("conversion"), without its headers."""
    for where, kind, content in _records(path, stream):
        if kind == b"conversion":
            yield from _converted(where, content, stream)


def read_pages(path: Path, stream: SourceStream) -> Iterator[Document]:
    """Yields the main text of each HTML page of a WARC file ("response"), or all of it where its
    tags are nested too deep, and the text of each record that has been converted; what else was
    fetched is passed over.
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
    """Returns a page as text, in the character set that was sent with it. Where some bytes are none
    of it, the set that the page looks like is tried; if they are none of that either, they become
    U+FFFD.
    """
    from resiliparse.parse.encoding import bytes_to_str, detect_encoding, map_encoding_to_html5

    seen = detect_encoding(page) or "utf-8"
    said = map_encoding_to_html5(charset or "", fallback_utf8=False) or seen
    return bytes_to_str(page, said, errors="replace", fallback_encodings=(seen,))


def _records(path: Path, stream: SourceStream) -> Iterator[tuple[str, bytes, bytes]]:
    """Yields the place of each record, for messages, its type and its content.

    A bad record is refused, and the next one is looked for. The libraries that read WARC files end
    at the first bad record, and what is cut at the end they leave out without a word.
    """
    line = stream.readline(_LONGEST_LINE_BYTES)
    if not line.startswith(_BEGINNING):
        raise UsageError(f"{path}: is no WARC file: it does not begin with WARC/")
    number = 0
    while line:
        number += 1
        where = f"{path}, record {number}"
        kind, content, problem = b"", b"", "does not begin with WARC/"
        if line.startswith(_BEGINNING):
            headers = _headers(stream)
            kind = headers.get(_TYPE, b"")
            content, problem = _content(stream, headers)
            line, blank = _next_line(stream)
            if line and blank < 2 and not line.startswith(_BEGINNING):
                problem = problem or "goes on where its content should end"
        if not problem:
            yield where, kind, content
            continue
        # Nobody knows how many would be lost.
        if content and not line.startswith(_BEGINNING) and _VERSION in content + line:
            raise UsageError(f"{where}: {problem}, and it holds others; fetch the file again")
        stream.refuse(UsageError(f"{where}: {problem}"))
        while line and not line.startswith(_BEGINNING):
            line = stream.readline(_LONGEST_LINE_BYTES)


def _next_line(stream: SourceStream) -> tuple[bytes, int]:
    """Returns the next line that is not blank, or nothing, and how many blank ones are before."""
    blank = 0
    while (line := stream.readline(_LONGEST_LINE_BYTES)) and not line.strip():
        blank += 1
    return line, blank


def _headers(stream: SourceStream) -> dict[bytes, bytes]:
    """Returns what the headers of a record say of its type and of the length of its content."""
    found = {}
    while (line := stream.readline(_LONGEST_LINE_BYTES)).strip():
        name, _, value = line.partition(b":")
        if (name := name.strip().lower()) in (_TYPE, _LENGTH):
            found[name] = value.strip()
    return found


def _content(stream: SourceStream, headers: dict[bytes, bytes]) -> tuple[bytes, str]:
    """Returns the content of a record, and what is wrong with the record; "" is nothing."""
    if not re.fullmatch(rb"\d{1,18}", headers.get(_LENGTH, b"")):
        return b"", "has no length"
    length = int(headers[_LENGTH])
    content = stream.read(min(length, _LONGEST_RECORD_BYTES))
    rest = length - len(content)
    while rest > 0 and (skipped := stream.read(min(rest, 1 << 20))):
        rest -= len(skipped)
    if rest:
        return content, f"ends after {length - rest:,} of {length:,} bytes"
    return content, "" if _TYPE in headers else "has no type"
