"""Sequences in FASTA files: a header line that begins with ">", then the lines of one record."""

from collections.abc import Iterator
from pathlib import Path

from bert_jax.data.sources import document as limits
from bert_jax.data.sources.document import Continuation, Document
from bert_jax.data.sources.stream import SourceStream
from bert_jax.errors import UsageError


def read_fasta(path: Path, stream: SourceStream) -> Iterator[Document]:
    """Yields the sequence of each record: its lines joined, without header and white space.

    At most `LONGEST_DOCUMENT_BYTES` are held: a longer record continues as a new document. Raises
    UsageError if text comes before the first header.
    """
    text = stream.text()
    lines: list[bytes] = []
    size, number, begins, is_header = 0, 0, True, False
    kind: type[tuple[str, ...]] | None = None  # of the open document

    def close() -> Iterator[Document]:
        if kind is None or (kind is Continuation and not lines):
            return
        try:
            sequence = b"".join(lines).decode()
        except UnicodeDecodeError:
            stream.refuse(UsageError(f"{path}, line {number}: not {stream.encoding} up to here"))
            return
        if found := stream.document(sequence):
            yield kind(found)

    while line := text.readline(limits.LONGEST_LINE_BYTES):
        if begins:
            number, is_header = number + 1, line.startswith(b">")
            if is_header:
                yield from close()
                lines, size, kind = [], 0, tuple
        begins = line.endswith(b"\n")
        if is_header or not (letters := b"".join(line.split())):
            continue
        if kind is None:
            raise UsageError(f"{path}, line {number}: a FASTA record begins with a line >NAME")
        lines.append(letters)
        size += len(letters)
        if size >= limits.LONGEST_DOCUMENT_BYTES:
            yield from close()
            lines, size, kind = [], 0, Continuation
    yield from close()
