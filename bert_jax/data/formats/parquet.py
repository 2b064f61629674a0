"""Parquet files, one column of which holds a document a row."""

from collections.abc import Iterator
from pathlib import Path

from bert_jax.data.formats.columns import damage_named, documents_of, find_column
from bert_jax.data.sources.document import Document
from bert_jax.data.sources.stream import SourceStream
from bert_jax.errors import UsageError

_ROWS = 256  # held at a time, beside a page of the file


def read_parquet(path: Path, stream: SourceStream) -> Iterator[Document]:
    """Yields the documents of a parquet file: the column `text_field`. Row groups are read one
    after the other, a few rows at a time; no other column is read.
    """
    from pyarrow import parquet

    if not stream.seekable():
        raise UsageError(f"{path}: unpack it first; parquet is packed inside, and read in places")
    with damage_named(path, "parquet"):
        # A buffer: else it would read the column of a whole row group at once.
        file = parquet.ParquetFile(stream, buffer_size=1 << 20, pre_buffer=False)
        names = find_column(path, file.schema_arrow, stream.reading.fields)
        batches = file.iter_batches(batch_size=_ROWS, columns=[".".join(names)], use_threads=False)
        yield from documents_of(path, stream, batches, names)
