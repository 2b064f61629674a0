"""Documents from one column of the rows of a file."""

from collections.abc import Iterator
from pathlib import Path

from bert_jax.data.sources.columns import Columns
from bert_jax.data.sources.document import Document
from bert_jax.data.sources.rows import documents_of, rows
from bert_jax.data.sources.stream import SourceStream


def read_records(path: Path, stream: SourceStream) -> Iterator[Document]:
    """Yields the documents in the column `text_column` of a file of rows."""
    columns = Columns([stream.reading.fields], "name the column of the text with `text_column`")
    return documents_of(rows(path, stream, columns), stream)
