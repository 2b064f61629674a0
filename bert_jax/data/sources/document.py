"""Documents as the readers of sources give them: tuples of paragraphs, none too long to be held."""

import re
from collections.abc import Iterable, Iterator

from bert_jax.data.language import spaces

# Paragraphs, stripped, none of them empty, none with a newline inside.
Document = tuple[str, ...]


class Continuation(tuple[str, ...]):
    """A document that continues the one before it, which was too long to be held."""


# A longer line or paragraph continues as a new paragraph, cut at the last space before the limit.
LONGEST_LINE_BYTES = 1 << 20
# A longer document continues as a new document at a paragraph boundary.
LONGEST_DOCUMENT_BYTES = 16 << 20

_BLANK_LINES = re.compile(r"\n[^\S\n]*\n")
# Some programs of Windows write several carriage returns before a newline.
_LINE_ENDS = re.compile(r"\r+\n|\r")


def paragraphs_of(text: str, paragraph: str = "line") -> Document:
    """Returns the paragraphs of a text, without half characters.

    A paragraph is a line, or, with `paragraph` "blank", the lines between two blank ones.
    """
    text = with_newlines(whole_characters(text))
    if paragraph == "blank":
        blocks = _BLANK_LINES.split(text)
        return tuple(joined for block in blocks if (joined := join_lines(block.split("\n"))))
    return tuple(line for line in map(str.strip, text.split("\n")) if line)


def join_lines(lines: Iterable[str]) -> str:
    """Returns wrapped lines as one: with spaces, but within a script that writes none."""
    joined: list[str] = []
    for line in map(str.strip, lines):
        if not line:
            continue
        if joined and not spaces.is_unspaced(joined[-1], line):
            joined.append(" ")
        joined.append(line)
    return "".join(joined)


def with_newlines(text: str) -> str:
    """Returns `text` with each end of a line as one newline. A carriage return is an end, as old
    Macs and some spreadsheets write it, unless a newline follows.
    """
    return _LINE_ENDS.sub("\n", text) if "\r" in text else text


def whole_characters(text: str) -> str:
    """Returns `text` with each half of a surrogate pair as U+FFFD, such as an emoji that was cut in
    two: JSON can write it, UTF-8 cannot. The text keeps its length.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def bounded(documents: Iterable[Document]) -> Iterator[Document]:
    """Yields documents with their long paragraphs cut, and long documents as several."""
    for document in documents:
        # No character has more than four bytes.
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
    """Yields the parts of a paragraph, and how many bytes each has."""
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
    """Cuts in two after the last space, or, without one, between two characters."""
    at = line.rfind(b" ") + 1
    if at < len(line) // 2:
        at = len(line)
        # Bytes 10xxxxxx continue a character, which has at most three of them.
        while at > len(line) - 4 and line[at - 1] & 0xC0 == 0x80:
            at -= 1
        if line[at - 1] >= 0xC0:
            at -= 1
    return line[:at], line[at:]
