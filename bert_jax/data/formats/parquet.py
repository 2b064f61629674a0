"""Parquet files, one column of which holds a document a row."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bert_jax.data.formats.columns import damage_named, documents_of, find_column
from bert_jax.data.sources.document import Document
from bert_jax.data.sources.stream import SourceStream
from bert_jax.errors import UsageError

# Held at a time, beside a page of the file: so many rows, of so many bytes at most, or one row.
_ROWS, _BYTES = 256, 256 << 20
# The entry of a file's metadata in which Arrow keeps the types that columns had in memory.
_TYPES_IN_MEMORY = b"ARROW:schema"


def read_parquet(path: Path, stream: SourceStream) -> Iterator[Document]:
    """Yields the documents of a parquet file: the column `text_field`. Row groups are read one
    after the other, a few rows at a time; no other column is read.
    """
    if not stream.seekable():
        raise UsageError(f"{path}: unpack it first; parquet is packed inside, and read in places")
    with damage_named(path, "parquet"):
        file = _open(stream)
        names = find_column(path, file.schema_arrow, stream.reading.fields)
        yield from documents_of(path, stream, _batches(file, names), names)


def _open(stream: SourceStream) -> Any:
    """Returns a parquet.ParquetFile that takes little memory."""
    from pyarrow import parquet

    # A column that was a dictionary in memory would be made one again, which takes six times the
    # bytes of its words. By the types of the file itself it is text.
    copy = io.BytesIO()
    parquet.read_metadata(stream).write_metadata_file(copy)
    packed = copy.getvalue().replace(_TYPES_IN_MEMORY, _TYPES_IN_MEMORY.swapcase())
    metadata = parquet.read_metadata(io.BytesIO(packed))
    # A buffer: else it would read the column of a whole row group at once.
    return parquet.ParquetFile(stream, metadata=metadata, buffer_size=1 << 20, pre_buffer=False)


def _batches(file: Any, names: list[str]) -> Iterator[Any]:
    column = ".".join(names)
    at = [file.schema.column(i).path for i in range(len(file.schema))].index(column)
    for group in range(file.num_row_groups):
        chunk = file.metadata.row_group(group).column(at)
        rows = min(_ROWS, max(1, _BYTES // max(1, _longest(chunk))))
        yield from file.iter_batches(
            batch_size=rows, row_groups=[group], columns=[column], use_threads=False
        )


def _longest(chunk: Any) -> int:
    """Returns how many bytes a row of a column may have, about; where each row takes up as many
    bytes in its page as it has, how many it has in the mean.

    A few bytes of a file may be many long texts: a row may be any word of a dictionary, and in the
    encoding by differences it may begin as the row before.
    """
    whole = chunk.total_uncompressed_size
    if "DELTA_BYTE_ARRAY" in chunk.encodings:
        return whole
    mean = whole // max(1, chunk.num_values)
    if chunk.dictionary_page_offset is None:
        return mean
    packed = chunk.data_page_offset - chunk.dictionary_page_offset
    return max(mean, whole * packed // max(1, chunk.total_compressed_size))
