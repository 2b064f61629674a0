"""Documents of source readers: tuples of paragraphs with a limited size."""

import re
from collections.abc import Iterable, Iterator

from bert_jax.data.language import spaces

# Paragraphs, stripped, none of them empty, none with a newline inside.
Document = tuple[str, ...]


class Continuation(tuple[str, ...]):
    """A document that continues the previous one, which exceeded the size limit."""


# A longer line or paragraph continues as a new paragraph after the last space before the limit.
LONGEST_LINE_BYTES = 1 << 20
# A longer document continues as a new document at a paragraph boundary.
LONGEST_DOCUMENT_BYTES = 16 << 20

_BLANK_LINES = re.compile(r"\n[^\S\n]*\n")
# Some Windows programs write several carriage returns before a newline.
_LINE_ENDS = re.compile(r"\r+\n|\r")


def paragraphs_of(text: str, paragraph: str = "line") -> Document:
    """Returns the paragraphs of a text; half surrogate pairs are replaced.

    A paragraph is a line or, with `paragraph` "blank", the lines between two blank lines.
    """
    text = with_newlines(whole_characters(text))
    if paragraph == "blank":
        blocks = _BLANK_LINES.split(text)
        return tuple(joined for block in blocks if (joined := join_lines(block.split("\n"))))
    return tuple(line for line in map(str.strip, text.split("\n")) if line)


def join_lines(lines: Iterable[str]) -> str:
    """Joins wrapped lines with spaces, except inside a script without spaces."""
    joined: list[str] = []
    for line in map(str.strip, lines):
        if not line:
            continue
        if joined and not spaces.is_unspaced(joined[-1], line):
            joined.append(" ")
        joined.append(line)
    return "".join(joined)


def with_newlines(text: str) -> str:
    """Returns `text` with each line end as one newline. A carriage return without a newline also
    ends a line, as in files from old Macs and some spreadsheets.
    """
    return _LINE_ENDS.sub("\n", text) if "\r" in text else text


def whole_characters(text: str) -> str:
    """Returns `text` with each half of a surrogate pair as U+FFFD, such as a truncated emoji: JSON
    allows half pairs, UTF-8 does not. The text keeps its length.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def bounded(documents: Iterable[Document]) -> Iterator[Document]:
    """Yields documents with long paragraphs split, and long documents as several."""
    for document in documents:
        # A character has at most four bytes.
        if 4 * sum(map(len, document)) <= LONGEST_LINE_BYTES:
            yield document
            continue
        paragraphs: list[str] = []
        size, kind = 0, type(document)
        for paragraph in document:
            for piece, length in _pieces(paragraph):
                paragraphs.append(piece)
                size += length
                if size >= LONGEST_DOCUMENT_BYTES:
                    yield kind(paragraphs)
                    paragraphs, size, kind = [], 0, Continuation
        if paragraphs:
            yield kind(paragraphs)


def _pieces(paragraph: str) -> Iterator[tuple[str, int]]:
    """Yields the parts of a paragraph, and the number of bytes of each."""
    text = paragraph.encode()
    at = 0
    while len(text) - at > LONGEST_LINE_BYTES:
        head = cut(text[at : at + LONGEST_LINE_BYTES])[0]
        at += len(head)
        if piece := head.decode().strip():
            yield piece, len(head)
    if piece := text[at:].decode().strip():
        yield piece, len(text) - at


def cut(line: bytes) -> tuple[bytes, bytes]:
    """Splits after the last space or, without a space, between two characters."""
    at = line.rfind(b" ") + 1
    if at < len(line) // 2:
        at = len(line)
        # Bytes 10xxxxxx continue a character, which contains at most three of them.
        while at > len(line) - 4 and line[at - 1] & 0xC0 == 0x80:
            at -= 1
        if line[at - 1] >= 0xC0:
            at -= 1
    return line[:at], line[at:]
