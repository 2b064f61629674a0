"""Sequences in FASTA files: a header line that begins with ">", then the lines of one record."""

from collections.abc import Iterator
from pathlib import Path

from bert_jax.data.sources import document as limits
from bert_jax.data.sources.document import Continuation, Document
from bert_jax.data.sources.stream import SourceStream
from bert_jax.errors import UsageError


def read_fasta(path: Path, stream: SourceStream) -> Iterator[Document]:
    """Yields the sequence of each record: its lines joined, without header and white space.

    A record longer than `LONGEST_DOCUMENT_BYTES` continues as a new document, which limits memory.
    Raises UsageError if text precedes the first header.
    """
    parts: list[str] = []
    size, first, begins, is_header = 0, 0, True, False
    kind: type[tuple[str, ...]] | None = None  # of the open document

    def close() -> Iterator[Document]:
        if kind is None or (kind is Continuation and not parts):
            return
        sequence = "".join(parts)
        try:
            stream.require_decoded(f"{path}, record of line {first}", sequence)
        except UsageError as error:
            stream.refuse(error)
            return
        if found := stream.document(sequence):
            yield kind(found)

    for number, line in stream.lines(limits.LONGEST_LINE_BYTES):
        if begins:
            is_header = line.startswith(">")
            if is_header:
                yield from close()
                parts, size, kind, first = [], 0, tuple, number
        begins = line[-1] == "\n"
        if is_header or not (letters := "".join(line.split())):
            continue
        if kind is None:
            raise UsageError(f"{path}, line {number}: a FASTA record begins with a line >NAME")
        parts.append(letters)
        size += len(letters)
        if size >= limits.LONGEST_DOCUMENT_BYTES:
            yield from close()
            parts, size, kind = [], 0, Continuation
    yield from close()
