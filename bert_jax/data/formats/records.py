"""Files of records, one field of which is a document: JSON lines, CSV and TSV."""

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unicodedata import normalize

from bert_jax import strict_json
from bert_jax.data.formats import delimited
from bert_jax.data.formats.delimited import (
    CSV_DELIMITERS,
    QUOTED,
    UNQUOTED,
    find_delimiter,
    names_of,
    not_csv,
    table_rows,
    wrong_cells,
)
from bert_jax.data.sources.document import Document
from bert_jax.data.sources.stream import SourceStream
from bert_jax.errors import UsageError, brief

_REMEDY = "; `text_field` names the one with the text"
_MISSING = object()


def read_jsonl(path: Path, stream: SourceStream) -> Iterator[Document]:
    """Yields the documents of JSON lines: the field `text_field` of each object, a dot inside of
    objects. A record whose text is null has none.
    """
    fields = stream.reading.fields
    for number, line in _lines(path, stream):
        try:
            text = _text_of(f"{path}, line {number}", line, stream, fields)
        except UsageError as error:
            stream.refuse(error)
            continue
        if text is not _MISSING and (found := stream.document(text)):
            yield found


def _text_of(where: str, line: bytes, stream: SourceStream, fields: tuple[str, ...]) -> Any:
    """Returns the text of a line's object, None for null, _MISSING for an empty line."""
    text = _decoded(where, line, stream)
    if not text.strip():
        return _MISSING
    record = strict_json.parse_record(where, text)
    found = [value for name in fields if (value := _inside(record, name)) is not _MISSING]
    if found and all(value is None for value in found):
        return None
    value = next((value for value in found if value is not None), None)
    if not isinstance(value, str):
        seen = type(record).__name__
        if isinstance(record, dict):
            seen = f"{brief(sorted(record))}{'' if found else _REMEDY}"
        raise UsageError(
            f"{where}: needs an object with a string field {_either(fields)}, found {seen}"
        )
    return value


def _inside(record: Any, name: str) -> Any:
    """Returns the value of a field; one whose own name has a dot comes before one inside."""
    if not isinstance(record, dict):
        return _MISSING
    if name in record:
        return record[name]
    for at, character in enumerate(name):
        if character == "." and name[:at] in record:
            found = _inside(record[name[:at]], name[at + 1 :])
            if found is not _MISSING:
                return found
    return _MISSING


def _either(fields: tuple[str, ...]) -> str:
    return " or ".join(dict.fromkeys(repr(normalize("NFC", field)) for field in fields))


def read_csv(path: Path, stream: SourceStream) -> Iterator[Document]:
    """Yields the documents of a CSV file: the column `text_field`, which the first line names.

    The delimiter is the one with which the first line names that column; cells are quoted.
    """
    return _table(path, stream, CSV_DELIMITERS, stream.reading.quoting or QUOTED)


def read_tsv(path: Path, stream: SourceStream) -> Iterator[Document]:
    """Yields the documents of a TSV file, as `read_csv`; tabs separate, and nothing is quoted."""
    return _table(path, stream, "\t", stream.reading.quoting or UNQUOTED)


def _table(path: Path, stream: SourceStream, delimiters: str, quoting: str) -> Iterator[Document]:
    fields = set(stream.reading.fields)
    lines = _decoded_lines(path, stream)
    try:
        delimiter, columns = find_delimiter(
            next(lines, ""),
            lambda names: not fields.isdisjoint(names),
            quoting=quoting,
            delimiters=delimiters,
        )
    except csv.Error as error:
        raise not_csv(path, 1, error) from error
    delimiter = delimiter or delimiters[0]
    rows = table_rows(path, lines, delimiter, quoting=quoting, begun=1, refuse=stream.refuse)
    at = columns.index(require_column(path, columns, stream.reading.fields))
    for line, cells in rows:
        if not cells:
            continue
        where = f"{path}, line {line}"
        if len(cells) != len(columns):
            stream.refuse(wrong_cells(where, cells, columns))
        elif stream.reading.skips_records and not _is_whole("".join(cells)):
            stream.refuse(UsageError(f"{where}: not {stream.encoding}"))
        elif found := stream.document(cells[at]):
            yield found


def _is_whole(text: str) -> bool:
    """Returns whether all bytes of a text were of its encoding: others are half surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def require_column(path: Path, columns: list[str], fields: tuple[str, ...]) -> str:
    """Returns the first of `fields` that is a column of a table.

    Raises UsageError if none is, or one that several columns are called.
    """
    if not columns:
        raise UsageError(f"{path}: empty: it has no line with the names of its columns")
    field = next((name for name in fields if name in columns), None)
    if field is None:
        raise UsageError(f"{path}: no column {_either(fields)}, only {names_of(columns)}{_REMEDY}")
    if columns.count(field) > 1:
        raise UsageError(f"{path}: {columns.count(field)} columns are called {field!r}")
    return field


def _decoded_lines(path: Path, stream: SourceStream) -> Iterator[str]:
    """Yields lines; bytes that are no text are half surrogates, where records may be left out."""
    errors = "surrogateescape" if stream.reading.skips_records else "strict"
    for _, line in _lines(path, stream):
        yield line.decode(errors=errors)


def _decoded(where: str, line: bytes, stream: SourceStream) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"{where}: not {stream.encoding}") from error


def _lines(path: Path, stream: SourceStream) -> Iterator[tuple[int, bytes]]:
    """Yields lines with their numbers, without those that are too long."""
    text, longest = stream.text(), delimited.LONGEST_RECORD_BYTES
    number = 0
    while line := text.readline(longest):
        number += 1
        if len(line) == longest and not line.endswith(b"\n"):
            stream.refuse(
                UsageError(
                    f"{path}, line {number}: longer than {longest >> 20} MiB; "
                    "a line holds one document: split this one"
                )
            )
            while line and not line.endswith(b"\n"):
                line = text.readline(longest)
            continue
        yield number, line
