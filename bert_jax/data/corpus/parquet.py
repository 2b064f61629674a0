"""Parquet files, one column of which holds a document a row."""

from collections.abc import Iterator
from pathlib import Path

from bert_jax.data.corpus.records import require_column
from bert_jax.data.corpus.source_stream import SourceStream
from bert_jax.data.corpus.sources import Document, paragraphs_of
from bert_jax.errors import UsageError, brief

_ROWS = 256  # held at a time, beside a page of the file


def read_parquet(path: Path, stream: SourceStream) -> Iterator[Document]:
    """Yields the documents of a parquet file: the column `text_field`. Row groups are read one
    after the other, a few rows at a time; no other column is read. A row without a value is passed
    over.
    """
    import pyarrow
    from pyarrow import parquet

    field = stream.reading.text_field
    if not stream.seekable():
        raise UsageError(f"{path}: unpack it first; parquet is packed inside, and read in places")
    try:
        # A buffer: else it would read the column of a whole row group at once.
        file = parquet.ParquetFile(stream, buffer_size=1 << 20, pre_buffer=False)
        require_column(path, file.schema_arrow.names, field)
        kind = file.schema_arrow.field(field).type
        value_type = kind.value_type if pyarrow.types.is_dictionary(kind) else kind
        types = pyarrow.types
        if not (types.is_string(value_type) or types.is_large_string(value_type)):
            raise UsageError(
                f"{path}: column {field!r} is {brief(str(kind))[1:-1]}, not text; `text_field` "
                "names another"
            )
        for batch in file.iter_batches(batch_size=_ROWS, columns=[field], use_threads=False):
            for text in batch.column(0).to_pylist():
                if text is not None and (paragraphs := paragraphs_of(text)):
                    yield paragraphs
    except (pyarrow.ArrowException, UnicodeDecodeError) as error:
        reason = str(error).partition("\n")[0]
        raise UsageError(
            f"{path}: damaged parquet file ({brief(reason)[1:-1]}); fetch it again"
        ) from error
    except OSError as error:
        if error.errno is not None:
            raise
        reason = str(error).partition("\n")[0]
        raise UsageError(
            f"{path}: damaged parquet file ({brief(reason)[1:-1]}); fetch it again"
        ) from error
