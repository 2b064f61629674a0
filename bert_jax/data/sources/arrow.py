"""Rows of parquet and Arrow files."""

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from bert_jax.data.sources.address import AnyFile
from bert_jax.data.sources.columns import Columns, Row, decoded, nfc, no_column
from bert_jax.data.sources.stream import SourceOptions, SourceStream
from bert_jax.errors import UsageError, brief

# Rows that are converted to Python values at a time.
_ROWS_AT_ONCE = 256
# The first bytes of the random-access Arrow format; the other Arrow format is a stream.
_ARROW_FILE = b"ARROW1"


def parquet_rows(path: AnyFile, stream: SourceStream, columns: Columns) -> Iterator[Row]:
    """Yields the rows of a parquet file. Reads only the requested columns."""
    if not stream.seekable():
        raise UsageError(f"{path}: decompress it first; parquet needs random access")
    with _damage_named(path, "parquet"):
        from pyarrow import parquet

        # Buffered, to avoid reading a whole row group at once.
        file = parquet.ParquetFile(stream, buffer_size=1 << 20, pre_buffer=False)
        fields = [_field(path, file.schema_arrow, names, columns) for names in columns.names]
        batches = file.iter_batches(
            batch_size=_ROWS_AT_ONCE,
            columns=[*dict.fromkeys(map(".".join, fields))],
            use_threads=False,
        )
        yield from _rows_of(path, stream, batches, fields)


def arrow_rows(path: AnyFile, stream: SourceStream, columns: Columns) -> Iterator[Row]:
    """Yields the rows of an Arrow file or stream, the format of `datasets`' `save_to_disk`."""
    with _damage_named(path, "Arrow"):
        from pyarrow import ipc

        if stream.peek(6)[:6] == _ARROW_FILE:
            if not stream.seekable():
                raise UsageError(f"{path}: decompress it first; this format needs random access")
            file = ipc.open_file(stream)
            batches = map(file.get_batch, range(file.num_record_batches))
        else:
            batches = file = ipc.open_stream(stream)
        fields = [_field(path, file.schema, names, columns) for names in columns.names]
        yield from _rows_of(path, stream, batches, fields)


@contextlib.contextmanager
def _damage_named(path: AnyFile, kind: str) -> Iterator[None]:
    """Raises UsageError with the `kind` of the file if pyarrow reports damage."""
    # Arrow's default allocator keeps about 20 MB of freed memory.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    import pyarrow

    try:
        yield
    except (pyarrow.ArrowException, OSError, MemoryError, UnicodeDecodeError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # an error of the operating system
        reason = brief(str(error).partition("\n")[0])[1:-1] or "it needs too much memory"
        raise UsageError(f"{path}: damaged {kind} file ({reason}); download it again") from error


def _field(path: AnyFile, schema: Any, names: Sequence[str], columns: Columns) -> list[str]:
    """Returns the path of the first of `names` that is in a schema: several names for a field of a
    struct ("doc.text").
    """
    found = next((place for name in names if (place := _path_of([*schema], name))), None)
    if found is None:
        raise no_column(str(path), names, schema.names, columns.remedy)
    if schema.names.count(found[0]) > 1:
        raise UsageError(f"{path}: column {found[0]!r} occurs twice; rename one of the two")
    return found


def _path_of(fields: Sequence[Any], name: str) -> list[str] | None:
    """Returns the path of a name; a field with a dot in its name precedes a nested field."""
    kinds = {nfc(field.name): field for field in fields}
    if name in kinds:
        return [kinds[name].name]
    for at, character in enumerate(name):
        field = kinds.get(name[:at]) if character == "." else None
        # The children of a type other than struct do not have column names.
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
    """Returns the values of a column, or of the nested field at the path `names`. For text that
    cannot be decoded, the value is the error.
    """
    import pyarrow
    from pyarrow import types

    array = batch.column(names[0])
    if len(names) > 1:
        from pyarrow import compute

        array = compute.struct_field(array, [*names[1:]])
    # Following a length or an index outside a damaged file would crash the process.
    if types.is_dictionary(array.type):
        array.validate(full=True)
        array = array.dictionary_decode()
    as_bytes = {
        pyarrow.string(): pyarrow.binary(),
        pyarrow.large_string(): pyarrow.large_binary(),
        pyarrow.string_view(): pyarrow.binary_view(),
    }
    # Strings are UTF-8 by definition of the format; `encoding` applies to bytes.
    encoding = "utf-8" if array.type in as_bytes else reading.encoding or "utf-8"
    array = array.view(as_bytes.get(array.type, array.type))
    array.validate(full=True)
    values = array.to_pylist()
    return [decoded(value, encoding) if isinstance(value, bytes) else value for value in values]
