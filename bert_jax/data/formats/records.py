"""Files of records, one field of which is a document: JSON lines, CSV and TSV."""

import csv
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from bert_jax import strict_json
from bert_jax.data.corpus.document import Document
from bert_jax.data.corpus.source_stream import SourceStream
from bert_jax.errors import UsageError, brief

# A longer line, or cell, is refused: half a record cannot be read.
LONGEST_RECORD_BYTES = 128 << 20
# What may stand between the columns of a .csv file.
_SEPARATORS = ",;\t|"
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
    return " or ".join(map(repr, fields))


def read_csv(path: Path, stream: SourceStream) -> Iterator[Document]:
    """Yields the documents of a CSV file: the column `text_field`, which the first line names.

    What separates the columns is what makes the first line name that column.
    """
    fields = stream.reading.fields
    lines = _Lines(_decoded_lines(path, stream))
    head = next(lines, "")
    columns: list[str] = []
    separator = ","
    for candidate in _SEPARATORS:
        # A name is no more than a line.
        try:
            cells = next(csv.reader([head], delimiter=candidate), [])
        except csv.Error as error:
            raise _not_csv(path, 1, error) from error
        names = [cell.strip() for cell in cells]
        if not set(fields).isdisjoint(names):
            columns, separator = names, candidate
            break
        if len(names) > len(columns):
            columns = names
    return _column(path, columns, _rows(path, lines, separator, stream), stream)


class _Lines:
    """Lines, of which those since the last `begin_row` can be put back."""

    def __init__(self, lines: Iterator[str]) -> None:
        self._lines = lines
        self._waiting: list[str] = []
        self._row: list[str] = []
        self.number = 0  # of lines that were read

    def __iter__(self) -> "_Lines":
        return self

    def __next__(self) -> str:
        line = self._waiting.pop() if self._waiting else next(self._lines)
        self._row.append(line)
        self.number += 1
        return line

    def begin_row(self) -> None:
        self._row.clear()

    def give_back_all_but_first(self) -> None:
        self._waiting += reversed(self._row[1:])
        self.number -= len(self._row) - 1


def _rows(
    path: Path, lines: _Lines, separator: str, stream: SourceStream
) -> Iterator[tuple[int, list[str]]]:
    """Yields rows with the number of their last line.

    Strict: a quote that is never closed would make one cell of the rest of the file. Where bad
    records are left out, the row's first line is bad, and the next one begins a row.
    """
    while True:
        lines.begin_row()
        begun = lines.number + 1
        rows = csv.reader(lines, delimiter=separator, strict=True)
        try:
            cells = _next_row(rows)
        except StopIteration:
            return
        except csv.Error as error:
            # A quote that is never closed was opened in this row, however far its cell goes.
            line = begun if "end of data" in str(error) else lines.number
            stream.refuse(_not_csv(path, line, error))
            lines.give_back_all_but_first()
            continue
        yield lines.number, cells


def read_tsv(path: Path, stream: SourceStream) -> Iterator[Document]:
    """Yields the documents of a TSV file, as `read_csv`; tabs separate, and nothing is quoted."""
    lines = (line.rstrip("\r\n") for line in _decoded_lines(path, stream))
    rows = enumerate(((line.split("\t") if line else []) for line in lines), 1)
    columns = [cell.strip() for cell in next(rows, (1, []))[1]]
    return _column(path, columns, rows, stream)


def _column(
    path: Path, columns: list[str], rows: Iterable[tuple[int, list[str]]], stream: SourceStream
) -> Iterator[Document]:
    at = columns.index(require_column(path, columns, stream.reading.fields))
    for line, cells in rows:
        if not cells:
            continue
        error = None
        if len(cells) != len(columns):
            error = (
                f"{len(cells)} cells for {len(columns)} columns ({_names(columns)}); quote the "
                "text that holds a separator, or repair the line"
            )
        elif stream.reading.skips_records and not _is_whole("".join(cells)):
            error = f"not {stream.encoding}"
        if error:
            stream.refuse(UsageError(f"{path}, line {line}: {error}"))
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
        raise UsageError(f"{path}: no column {_either(fields)}, only {_names(columns)}{_REMEDY}")
    if columns.count(field) > 1:
        raise UsageError(f"{path}: {columns.count(field)} columns are called {field!r}")
    return field


def _names(columns: list[str]) -> str:
    return ", ".join(brief(name)[1:-1] for name in columns[:20]) + ", ..." * (len(columns) > 20)


def with_long_cells(path: Path, rows) -> Iterator[tuple[int, list[str]]]:
    """Yields rows with the number of their last line. Raises UsageError for one that is no CSV."""
    while True:
        begun = rows.line_num + 1
        try:
            cells = _next_row(rows)
        except StopIteration:
            return
        except csv.Error as error:
            line = begun if "end of data" in str(error) else rows.line_num
            raise _not_csv(path, line, error) from error
        yield rows.line_num, cells


def _next_row(rows: Any) -> list[str]:
    """Returns the next row; the limit of cells is the library's own for all others who read."""
    usual = csv.field_size_limit(LONGEST_RECORD_BYTES)
    try:
        return next(rows)
    finally:
        csv.field_size_limit(usual)


def _not_csv(path: Path, line: int, error: csv.Error) -> UsageError:
    remedy = "is a quote not closed, or not doubled inside of quotes?"
    if "new-line" in str(error):
        error, remedy = csv.Error("a carriage return without a newline"), "end lines in newlines"
    return UsageError(f"{path}, line {line}: {error}; {remedy}")


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
    text = stream.text()
    number = 0
    while line := text.readline(LONGEST_RECORD_BYTES):
        number += 1
        if len(line) == LONGEST_RECORD_BYTES and not line.endswith(b"\n"):
            stream.refuse(
                UsageError(
                    f"{path}, line {number}: longer than {LONGEST_RECORD_BYTES >> 20} MiB; "
                    "a line holds one document: split this one"
                )
            )
            while line and not line.endswith(b"\n"):
                line = text.readline(LONGEST_RECORD_BYTES)
            continue
        yield number, line
