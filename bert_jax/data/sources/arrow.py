"""Rows of parquet and Arrow files."""

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from bert_jax.data.sources.address import AnyFile
from bert_jax.data.sources.columns import Columns, Row, decoded, nfc, no_column
from bert_jax.data.sources.stream import SourceOptions, SourceStream
from bert_jax.errors import UsageError, brief

# Rows that are held at a time as Python values.
_ROWS_AT_ONCE = 256
# How a kind of Arrow file begins that is read in places; the other kind is a stream.
_ARROW_FILE = b"ARROW1"


def parquet_rows(path: AnyFile, stream: SourceStream, columns: Columns) -> Iterator[Row]:
    """Yields the rows of a parquet file: no more columns are read than are asked for."""
    if not stream.seekable():
        raise UsageError(f"{path}: unpack it first; parquet is packed inside, and read in places")
    with _damage_named(path, "parquet"):
        from pyarrow import parquet

        # With a buffer, and not a whole row group at once.
        file = parquet.ParquetFile(stream, buffer_size=1 << 20, pre_buffer=False)
        fields = [_field(path, file.schema_arrow, names, columns) for names in columns.names]
        batches = file.iter_batches(
            batch_size=_ROWS_AT_ONCE,
            columns=[*dict.fromkeys(map(".".join, fields))],
            use_threads=False,
        )
        yield from _rows_of(path, stream, batches, fields)


def arrow_rows(path: AnyFile, stream: SourceStream, columns: Columns) -> Iterator[Row]:
    """Yields the rows of an Arrow file or stream, as `datasets` saves to disk."""
    with _damage_named(path, "Arrow"):
        from pyarrow import ipc

        if stream.peek(6)[:6] == _ARROW_FILE:
            if not stream.seekable():
                raise UsageError(f"{path}: unpack it first; this kind of file is read in places")
            file = ipc.open_file(stream)
            batches = map(file.get_batch, range(file.num_record_batches))
        else:
            batches = file = ipc.open_stream(stream)
        fields = [_field(path, file.schema, names, columns) for names in columns.names]
        yield from _rows_of(path, stream, batches, fields)


@contextlib.contextmanager
def _damage_named(path: AnyFile, kind: str) -> Iterator[None]:
    """Raises UsageError, with the `kind` of the file, if pyarrow finds it damaged."""
    # Arrow's own allocator keeps some 20 MB of what it gave back.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    import pyarrow

    try:
        yield
    except (pyarrow.ArrowException, OSError, MemoryError, UnicodeDecodeError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the operating system's own
        reason = brief(str(error).partition("\n")[0])[1:-1] or "it asks for too much memory"
        raise UsageError(f"{path}: damaged {kind} file ({reason}); fetch it again") from error


def _field(path: AnyFile, schema: Any, names: Sequence[str], columns: Columns) -> list[str]:
    """Returns the names that lead to the first of `names` that a schema has: several for a field
    of a struct ("doc.text").
    """
    found = next((place for name in names if (place := _path_of([*schema], name))), None)
    if found is None:
        raise no_column(str(path), names, schema.names, columns.remedy)
    if schema.names.count(found[0]) > 1:
        raise UsageError(f"{path}: column {found[0]!r} occurs twice; rename one of the two")
    return found


def _path_of(fields: Sequence[Any], name: str) -> list[str] | None:
    """Returns the path of a name; a field with a dot in its name comes before one inside."""
    kinds = {nfc(field.name): field for field in fields}
    if name in kinds:
        return [kinds[name].name]
    for at, character in enumerate(name):
        field = kinds.get(name[:at]) if character == "." else None
        # The children of a type that is no struct have no names of columns.
        inner = [] if field is None else [field.type.field(i) for i in range(field.type.num_fields)]
        if field is not None and (rest := _path_of(inner, name[at + 1 :])):
            return [field.name, *rest]
    return None


def _rows_of(
    path: AnyFile, stream: SourceStream, batches: Iterable[Any], fields: Sequence[Sequence[str]]
) -> Iterator[Row]:
    number = 0
    for whole in batches:
        whole.validate()
        # A batch of an Arrow file is as large as its writer made it.
        for start in range(0, len(whole), _ROWS_AT_ONCE):
            batch = whole.slice(start, _ROWS_AT_ONCE)
            read = [_values(batch, names, stream.reading) for names in fields]
            for values in zip(*read, strict=True):
                number += 1
                where = f"{path}, row {number}"
                if bad := next((v for v in values if isinstance(v, UnicodeDecodeError)), None):
                    stream.refuse(UsageError(f"{where}: not {bad.encoding} ({bad.reason})"))
                else:
                    yield Row(where, values)


def _values(batch: Any, names: Sequence[str], reading: SourceOptions) -> list[Any]:
    """Returns the values of a column, or of the field of a struct that `names` lead to. A text that
    cannot be decoded is the error of its row.
    """
    import pyarrow
    from pyarrow import types

    array = batch.column(names[0])
    if len(names) > 1:
        from pyarrow import compute

        array = compute.struct_field(array, [*names[1:]])
    # To follow a length or an index that leads out of a damaged file would end the process.
    if types.is_dictionary(array.type):
        array.validate(full=True)
        array = array.dictionary_decode()
    as_bytes = {
        pyarrow.string(): pyarrow.binary(),
        pyarrow.large_string(): pyarrow.large_binary(),
        pyarrow.string_view(): pyarrow.binary_view(),
    }
    # Strings are UTF-8 by the format of the file; `encoding` is the encoding of bytes.
    encoding = "utf-8" if array.type in as_bytes else reading.encoding or "utf-8"
    array = array.view(as_bytes.get(array.type, array.type))
    array.validate(full=True)
    values = array.to_pylist()
    return [decoded(value, encoding) if isinstance(value, bytes) else value for value in values]
