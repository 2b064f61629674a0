"""Plain text: which lines are a paragraph, and which paragraphs a document."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from bert_jax.data.sources import document as limits
from bert_jax.data.sources.document import Continuation, Document, cut, join_lines
from bert_jax.data.sources.stream import SourceStream
from bert_jax.errors import UsageError


def read_text(path: Path, stream: SourceStream) -> Iterator[Document]:
    """Yields the documents of plain text.

    `stream.reading.document` says where one ends: at a blank line, at each line, or with the file;
    `stream.reading.paragraph` whether a paragraph is a line, or the lines between blank ones.
    """
    if stream.peek(5)[:5] == b"WARC/":
        raise UsageError(f"{path}: is a WARC file: let its name end in .warc or .wet")
    document, joins = stream.reading.document, stream.reading.paragraph == "blank"
    wrapping = None if joins or document == "line" else _Wrapping()
    text = stream.text()
    paragraphs: list[str] = []
    lines: list[str] = []  # of a paragraph that goes on
    size, kind, number, bad = 0, tuple, 0, 0
    rest, goes_on = b"", False  # of a line that was cut: what is left of it, and that it was

    def close() -> Iterator[Document]:
        nonlocal paragraphs, lines, size, bad
        if lines:
            paragraphs.append(join_lines(lines))
        if bad:
            stream.refuse(UsageError(f"{path}, line {bad}: not {stream.encoding}"))
        elif paragraphs:
            yield kind(paragraphs)
        paragraphs, lines, size = [], [], 0

    longest_line, longest_document = limits.LONGEST_LINE_BYTES, limits.LONGEST_DOCUMENT_BYTES
    while line := rest + text.readline(longest_line - len(rest)):
        begins, goes_on = not goes_on, len(line) == longest_line and line[-1:] != b"\n"
        line, rest = cut(line) if goes_on else (line, b"")
        number += begins
        try:
            found = line.decode().strip()
        except UnicodeDecodeError:
            bad, found = bad or number, "\ufffd"
        is_blank = begins and not goes_on and not found
        if found:
            (lines if joins else paragraphs).append(found)
            size += len(line)
        elif is_blank and lines:
            paragraphs.append(join_lines(lines))
            lines = []
        if wrapping is not None:
            wrapping = wrapping.after(found, path, stream)
        ends = is_blank if document == "blank" else document == "line" and not goes_on
        if ends or size >= longest_document:
            yield from close()
            kind, bad = (tuple, 0) if ends else (Continuation, bad)
    yield from close()
    if wrapping is not None:
        wrapping.end(path, stream)


# Lines of a file that are looked at, and the fewest that say something.
_LOOKED_AT, _FEWEST = 2000, 40
# Lines of a text that is wrapped are no longer; a longer one is a paragraph.
_WIDEST = 120
_ENDS = frozenset('.!?…:;"”’»)]*。！？」』।؟۔')


class _Wrapping:
    """Looks whether lines end where a column is full, and not where a sentence does."""

    def __init__(self) -> None:
        self._before = ""
        self._lines = self._inside = self._long = 0
        self._lengths: Counter[int] = Counter()

    def after(self, line: str, path: Path, stream: SourceStream) -> "_Wrapping | None":
        """Takes the next line; returns None when enough were seen."""
        if self._before:
            self._lines += 1
            self._long += len(self._before) > _WIDEST
            if line and self._before[-1] not in _ENDS:  # in mid-sentence, and more follows
                self._inside += 1
                self._lengths[len(self._before)] += 1
        self._before = line
        if self._lines < _LOOKED_AT:
            return self
        self.end(path, stream)
        return None

    def end(self, path: Path, stream: SourceStream) -> None:
        """Notes a file that looks wrapped in the findings of `stream`."""
        if self._lines < _FEWEST or self._inside < 0.4 * self._lines:
            return
        if self._long > 0.02 * self._lines:
            return
        widest = max(self._lengths)
        near = sum(count for length, count in self._lengths.items() if length > 0.7 * widest)
        if widest >= 30 and near > 0.7 * self._inside:
            stream.findings.wrapped[str(path)] = self._inside / self._lines
