"""Plain text: divides lines into paragraphs, and paragraphs into documents."""

from collections.abc import Iterator
from pathlib import Path

from bert_jax.data.sources import document as limits
from bert_jax.data.sources.document import Continuation, Document, cut, join_lines
from bert_jax.data.sources.stream import SourceStream
from bert_jax.errors import UsageError


def read_text(path: Path, stream: SourceStream) -> Iterator[Document]:
    """Yields the documents of plain text.

    `stream.reading.document` decides whether a document ends at a blank line, at each line, or at
    the end of the file. `stream.reading.paragraph` decides whether a paragraph is one line, or all
    lines between two blank lines.
    """
    if stream.peek(5)[:5] == b"WARC/":
        raise UsageError(f"{path}: is a WARC file: rename it to end in .warc or .wet")
    document, joins = stream.reading.document, stream.reading.paragraph == "blank"
    paragraphs: list[str] = []
    lines: list[str] = []  # of the open paragraph
    size = 0
    kind: type[tuple[str, ...]] = tuple
    error: UsageError | None = None  # of the open document

    def close() -> Iterator[Document]:
        nonlocal paragraphs, lines, size, error
        if lines:
            paragraphs.append(join_lines(lines))
        if error is not None:
            stream.refuse(error)
        elif paragraphs:
            yield kind(paragraphs)
        paragraphs, lines, size = [], [], 0

    for number, part, begins, ends in _parts(stream):
        found = part.strip()
        try:
            size += len(part.encode()) if found else 0
        except UnicodeEncodeError:
            error = error or stream.not_decoded(f"{path}, line {number}")
        is_blank = begins and ends and not found
        if found:
            (lines if joins else paragraphs).append(found)
        elif is_blank and lines:
            paragraphs.append(join_lines(lines))
            lines = []
        is_over = is_blank if document == "blank" else document == "line" and ends
        if is_over or size >= limits.LONGEST_DOCUMENT_BYTES:
            yield from close()
            kind, error = (tuple, None) if is_over else (Continuation, error)
    yield from close()


def _parts(stream: SourceStream) -> Iterator[tuple[int, str, bool, bool]]:
    """Yields the lines of a text with their numbers, in parts of at most `LONGEST_LINE_BYTES`, and
    whether the part contains the beginning and the end of the line.
    """
    longest = limits.LONGEST_LINE_BYTES
    rest, begins = "", True
    for number, more in stream.lines(longest):
        line = rest + more
        ends = line[-1] == "\n"
        if 4 * len(line) > longest:  # a character has at most four bytes
            data = line.encode(errors="surrogatepass")
            while len(data) > longest:
                head, tail = cut(data[:longest])
                data = tail + data[longest:]
                yield number, head.decode(errors="surrogatepass"), begins, False
                begins = False
            line = data.decode(errors="surrogatepass")
        rest = "" if ends else line
        if ends:
            yield number, line, begins, True
            begins = True
