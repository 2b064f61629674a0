"""Rows of files and data sets, for corpora and for tasks: the only reader of records.

A corpus uses one column of a row as a document; a task uses several, its texts and their label
(data/tasks/tables.py). This module reads JSON lines; `delimited`, `arrow` and `tfds` read the other
kinds.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from bert_jax import strict_json
from bert_jax.data.sources.address import AnyFile
from bert_jax.data.sources.arrow import arrow_rows, parquet_rows
from bert_jax.data.sources.columns import Columns, Row, nfc, no_column
from bert_jax.data.sources.delimited import delimited_rows, whole_lines
from bert_jax.data.sources.document import Document
from bert_jax.data.sources.stream import Records, SourceStream
from bert_jax.data.sources.tfds import tfds_records
from bert_jax.errors import UsageError, brief

_MISSING = object()


def rows(path: AnyFile, stream: SourceStream, columns: Columns) -> Iterator[Row]:
    """Yields the rows of a file, with the reader in `READERS` for its suffix.

    A row that cannot be read is passed to `stream.refuse`. Raises UsageError that names the file,
    and the row if there is one, for missing or repeated columns, for damage, and for an unclosed
    quote in a CSV file, after which no row is reliable.
    """
    return READERS[stream.ending](path, stream, columns)


def _json_rows(path: AnyFile, stream: SourceStream, columns: Columns) -> Iterator[Row]:
    """Yields the rows of JSON lines; skips empty lines."""
    for number, line in whole_lines(path, stream):
        where = f"{path}, line {number}"
        try:
            stream.require_decoded(where, line)
            if line.isspace():
                continue
            record = strict_json.parse_file(where, line)
            if not isinstance(record, dict):
                found = type(record).__name__
                raise UsageError(f"{where}: needs a JSON object, found {found}")
            row = Row(where, tuple(_value(where, record, n, columns) for n in columns.names))
        except UsageError as error:
            stream.refuse(error)
        else:
            yield row


def _value(where: str, record: dict[str, Any], names: Sequence[str], columns: Columns) -> Any:
    """Returns the first value that is not null among the fields `names` of a record.

    Raises UsageError if the record has none of the fields.
    """
    found = [value for name in names if (value := _inside(record, name)) is not _MISSING]
    if not found:
        raise no_column(where, names, sorted(record), columns.remedy)
    return next((value for value in found if value is not None), None)


def _inside(record: Any, name: str) -> Any:
    """Returns the value of a field; a field with a dot in its name precedes a nested field."""
    if not isinstance(record, dict):
        return _MISSING
    if name in record:
        return record[name]
    if not name.isascii():
        record = {nfc(key): value for key, value in record.items()}
        if name in record:
            return record[name]
    for at, character in enumerate(name):
        if character == "." and name[:at] in record:
            found = _inside(record[name[:at]], name[at + 1 :])
            if found is not _MISSING:
                return found
    return _MISSING


# By file suffix.
READERS: dict[str, Callable[[AnyFile, SourceStream, Columns], Iterator[Row]]] = {
    ".tsv": delimited_rows,
    ".csv": delimited_rows,
    ".jsonl": _json_rows,
    ".parquet": parquet_rows,
    ".arrow": arrow_rows,
}


def tfds_rows(source: str, records: Records, columns: Columns) -> Iterator[Row]:
    """Yields the rows of a TensorFlow data set, as `rows` does for a file."""
    for where, record in tfds_records(source, records.reading.splits):
        values = tuple(_value(where, record, names, columns) for names in columns.names)
        if bad := next((value for value in values if isinstance(value, UnicodeDecodeError)), None):
            records.refuse(UsageError(f"{where}: not UTF-8 ({bad.reason})"))
        else:
            yield Row(where, values)


def read_records(path: AnyFile, stream: SourceStream) -> Iterator[Document]:
    """Yields the documents in the column `text_column` of a file of rows."""
    return _documents_of(rows(path, stream, _text_column(stream)), stream)


def read_tfds(source: str, records: Records) -> Iterator[Document]:
    """Yields the documents in the feature `text_column` of a TensorFlow data set."""
    return _documents_of(tfds_rows(source, records, _text_column(records)), records)


def _text_column(records: Records) -> Columns:
    return Columns([records.reading.fields], "name the column of the text with `text_column`")


def _documents_of(found: Iterable[Row], records: Records) -> Iterator[Document]:
    """Yields the documents of rows with one column, the text; skips rows with null."""
    for where, (text,) in found:
        if text is not None and not isinstance(text, str):
            is_other = f"`text_column` is {brief(text)}, not text; name another column"
            records.refuse(UsageError(f"{where}: {is_other}"))
        elif document := records.document(text):
            yield document
