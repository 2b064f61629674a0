"""Crawls of the web in WARC files: pages, and the text that somebody has taken from them (WET)."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bert_jax.data.corpus.document import Document
from bert_jax.data.corpus.source_stream import SourceStream
from bert_jax.errors import UsageError

# Of one record that are read; a page beyond is cut there, which no text of people reaches.
_LONGEST_RECORD_BYTES = 128 << 20
_HTML = ("text/html", "application/xhtml+xml")


def read_texts(path: Path, stream: SourceStream) -> Iterator[Document]:
    """Yields the text of each record of a WET file ("conversion"), without its headers."""
    from fastwarc.warc import WarcRecordType

    for number, record in enumerate(_records(path, stream, WarcRecordType.conversion), 1):
        data = record.reader.read(_LONGEST_RECORD_BYTES)
        try:
            text = data.decode()
        except UnicodeDecodeError:
            stream.refuse(UsageError(f"{path}, record {number}: not UTF-8"))
            continue
        if found := stream.document(text):
            yield found


def read_pages(path: Path, stream: SourceStream) -> Iterator[Document]:
    """Yields the main text of each HTML page of a WARC file ("response"), and the text of each
    record that has been converted; what else was fetched is passed over.
    """
    from fastwarc.warc import WarcRecordType
    from resiliparse.extract.html2text import extract_plain_text
    from resiliparse.parse.encoding import bytes_to_str, detect_encoding

    wanted = WarcRecordType.response | WarcRecordType.conversion
    for record in _records(path, stream, wanted):
        is_page = record.record_type == WarcRecordType.response
        if is_page and (record.http_content_type or "").lower() not in _HTML:
            continue
        data = record.reader.read(_LONGEST_RECORD_BYTES)
        text = bytes_to_str(data, record.http_charset or detect_encoding(data) or "utf-8")
        if is_page:
            text = extract_plain_text(text, main_content=True)
        if found := stream.document(text):
            yield found


def _records(path: Path, stream: SourceStream, kinds: Any) -> Iterator[Any]:
    from fastwarc.warc import ArchiveIterator

    if stream.peek(5)[:5] != b"WARC/":
        raise UsageError(f"{path}: is no WARC file: it does not begin with WARC/")
    yield from ArchiveIterator(stream, record_types=kinds, auto_decode="all")
