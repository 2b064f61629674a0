"""Files of records, one field of which is a document: JSON lines, CSV and TSV."""

import csv
from collections.abc import Iterator
from pathlib import Path

from bert_jax import strict_json
from bert_jax.data.corpus.source_stream import SourceStream
from bert_jax.data.corpus.sources import Document, paragraphs_of
from bert_jax.errors import UsageError, brief

# A longer line, or cell, is refused: half a record cannot be read.
LONGEST_RECORD_BYTES = 128 << 20
# What may stand between the columns of a .csv file.
_SEPARATORS = ",;\t|"
_REMEDY = "; `text_field` names the one with the text"


def read_jsonl(path: Path, stream: SourceStream) -> Iterator[Document]:
    """Yields the documents of JSON lines: the field `text_field` of each object."""
    field = stream.reading.text_field
    for number, text in enumerate(_lines(path, stream), 1):
        if not text.strip():
            continue
        record = strict_json.parse_record(f"{path}, line {number}", text)
        if not isinstance(record, dict) or not isinstance(record.get(field), str):
            found = type(record).__name__
            if isinstance(record, dict):
                found = f"{brief(sorted(record))}{'' if field in record else _REMEDY}"
            raise UsageError(
                f"{path}, line {number}: needs an object with a string field {field!r}, "
                f"found {found}"
            )
        if paragraphs := paragraphs_of(record[field]):
            yield paragraphs


def read_csv(path: Path, stream: SourceStream) -> Iterator[Document]:
    """Yields the documents of a CSV file: the column `text_field`, which the first line names.

    What separates the columns is what makes the first line name that column.
    """
    field = stream.reading.text_field
    lines = _lines(path, stream)
    head = next(lines, "")
    columns: list[str] = []
    separator = ","
    for candidate in _SEPARATORS:
        # A name is no more than a line.
        try:
            cells = next(csv.reader([head], delimiter=candidate), [])
        except csv.Error as error:
            raise _not_csv(path, 1, error) from error
        if field in (names := [cell.strip() for cell in cells]):
            columns, separator = names, candidate
            break
        if len(names) > len(columns):
            columns = names

    def rest() -> Iterator[str]:
        yield head
        yield from lines

    # Strict: a quote that is never closed would make one cell of the rest of the file.
    rows = csv.reader(rest(), delimiter=separator, strict=True)
    found = with_long_cells(path, rows)
    next(found, None)
    return _column(path, columns, found, field)


def read_tsv(path: Path, stream: SourceStream) -> Iterator[Document]:
    """Yields the documents of a TSV file, as `read_csv`; tabs separate, and nothing is quoted."""
    lines = (line.rstrip("\r\n") for line in _lines(path, stream))
    rows = enumerate(((line.split("\t") if line else []) for line in lines), 1)
    columns = [cell.strip() for cell in next(rows, (1, []))[1]]
    field = stream.reading.text_field
    return _column(path, columns, rows, field)


def _column(
    path: Path, columns: list[str], rows: Iterator[tuple[int, list[str]]], field: str
) -> Iterator[Document]:
    require_column(path, columns, field)
    at = columns.index(field)
    for line, cells in rows:
        if not cells:
            continue
        if len(cells) != len(columns):
            raise UsageError(
                f"{path}, line {line}: {len(cells)} cells for {len(columns)} columns "
                f"({_names(columns)}); quote the text that holds a separator, or repair the line"
            )
        if paragraphs := paragraphs_of(cells[at]):
            yield paragraphs


def require_column(path: Path, columns: list[str], field: str) -> None:
    """Raises UsageError if `field` is none of the columns of a table, or several of them."""
    if not columns:
        raise UsageError(f"{path}: empty: it has no line with the names of its columns")
    if columns.count(field) > 1:
        raise UsageError(f"{path}: {columns.count(field)} columns are called {field!r}")
    if field not in columns:
        raise UsageError(f"{path}: no column {field!r}, only {_names(columns)}{_REMEDY}")


def _names(columns: list[str]) -> str:
    return ", ".join(brief(name)[1:-1] for name in columns[:20]) + ", ..." * (len(columns) > 20)


def with_long_cells(path: Path, rows) -> Iterator[tuple[int, list[str]]]:
    """Yields rows with the number of their last line; the limit of cells is the library's own for
    all others who read with it.
    """
    while True:
        usual, begun = csv.field_size_limit(LONGEST_RECORD_BYTES), rows.line_num + 1
        try:
            cells = next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            # A quote that is never closed was opened in this row, however far its cell goes.
            line = begun if "end of data" in str(error) else rows.line_num
            raise _not_csv(path, line, error) from error
        finally:
            csv.field_size_limit(usual)
        yield rows.line_num, cells


def _not_csv(path: Path, line: int, error: csv.Error) -> UsageError:
    remedy = "is a quote not closed, or not doubled inside of quotes?"
    if "new-line" in str(error):
        error, remedy = csv.Error("a carriage return without a newline"), "end lines in newlines"
    return UsageError(f"{path}, line {line}: {error}; {remedy}")


def _lines(path: Path, stream: SourceStream) -> Iterator[str]:
    text = stream.text()
    number = 0
    while line := text.readline(LONGEST_RECORD_BYTES):
        number += 1
        if len(line) == LONGEST_RECORD_BYTES and not line.endswith(b"\n"):
            raise UsageError(
                f"{path}, line {number}: longer than {LONGEST_RECORD_BYTES >> 20} MiB; "
                "a line holds one document: split this one"
            )
        yield line.decode()
