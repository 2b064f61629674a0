"""Rows of CSV and TSV files."""

import contextlib
import csv
from collections.abc import Iterator, Sequence

from bert_jax.data.sources import columns as limits
from bert_jax.data.sources.address import AnyFile
from bert_jax.data.sources.columns import Columns, Row, listed, nfc, no_column
from bert_jax.data.sources.stream import MORE, QUOTED, UNQUOTED, SourceOptions, SourceStream
from bert_jax.errors import UsageError

# The characters that may separate the columns of a .csv file.
_CSV_DELIMITERS = ",;\t|"


def delimited_rows(path: AnyFile, stream: SourceStream, columns: Columns) -> Iterator[Row]:
    """Yields the rows of a CSV or TSV file; skips empty lines."""
    reading, is_tsv = stream.reading, stream.ending == ".tsv"
    delimiters = reading.delimiter or ("\t" if is_tsv else _CSV_DELIMITERS)
    quoting = reading.quoting or (UNQUOTED if is_tsv and delimiters == "\t" else QUOTED)
    lines = whole_lines(path, stream)
    header = [nfc(name) for name in reading.columns if name != MORE]
    begun, delimiter, where = 0, delimiters[0], f"{path}: `columns`"
    if not header:
        begun, first = next(((n, line) for n, line in lines if not line.isspace()), (0, ""))
        if not first:
            raise UsageError(f"{path}: empty: it has no line with the names of its columns")
        where = f"{path}, line {begun}"
        stream.require_decoded(where, first)
        delimiter, header = _find_header(where, first, delimiters, quoting, columns)
    places = [_place(where, names, header, columns) for names in columns.names]
    is_open = MORE in reading.columns
    fewest = max(places) + 1 if is_open else len(header)
    if quoting == QUOTED:
        table = _quoted(path, lines, delimiter, begun)
    else:
        table = ((number, _split(line, delimiter)) for number, line in lines)
    for number, cells in table:
        if not cells:
            continue
        where = f"{path}, line {number}"
        try:
            stream.require_decoded(where, "".join(cells))
            further = not is_open and any(map(str.strip, cells[len(header) :]))
            if len(cells) < fewest or further:
                raise UsageError(
                    f"{where}: {len(cells)} cells for {len(header)} columns ({listed(header)}); "
                    f"quote the text that holds a separator, or {columns.of_cells}"
                )
        except UsageError as error:
            stream.refuse(error)
        else:
            yield Row(where, tuple(cells[place] for place in places))


def find_delimiter(line: str, names: Sequence[Sequence[str]], reading: SourceOptions) -> str | None:
    """Returns the delimiter with which a line names all the columns; None if there is none."""
    for delimiter in reading.delimiter or _CSV_DELIMITERS:
        with contextlib.suppress(csv.Error):
            if _has(_names(line, delimiter, reading.quoting or QUOTED), names):
                return delimiter
    return None


def _find_header(
    where: str, line: str, delimiters: str, quoting: str, columns: Columns
) -> tuple[str, list[str]]:
    """Returns the delimiter with which a line names the columns, and all names in the line; if no
    delimiter does, the delimiter that gives the most columns.
    """
    try:
        found = {each: _names(line, each, quoting) for each in delimiters}
    except csv.Error as error:
        raise _not_csv(where, error) from error
    for delimiter, header in found.items():
        if _has(header, columns.names):
            return delimiter, header
    return max(found.items(), key=lambda item: len(item[1]))


def _has(header: Sequence[str], names: Sequence[Sequence[str]]) -> bool:
    return all(any(name in header for name in alternatives) for alternatives in names)


def _names(line: str, delimiter: str, quoting: str) -> list[str]:
    if quoting == UNQUOTED:
        cells = _split(line, delimiter)
    else:  # a name does not contain a line break
        cells = next(csv.reader([line], delimiter=delimiter), [])
    return [nfc(cell.strip()) for cell in cells]


def _place(where: str, names: Sequence[str], header: Sequence[str], columns: Columns) -> int:
    """Returns the index of the first of `names` that is in a header."""
    name = next((name for name in names if name in header), None)
    if name is None:
        raise no_column(where, names, header, columns.remedy)
    if header.count(name) > 1:
        raise UsageError(f"{where}: column {name!r} occurs twice; rename one of the two")
    return header.index(name)


def _split(line: str, delimiter: str) -> list[str]:
    line = line.rstrip("\n")
    return line.split(delimiter) if line else []


def _quoted(
    path: AnyFile, lines: Iterator[tuple[int, str]], delimiter: str, begun: int
) -> Iterator[tuple[int, list[str]]]:
    """Yields rows with the number of their last line, after the first `begun` lines."""
    last, size = begun, 0  # the number of the last line, the characters of the row

    def taken() -> Iterator[str]:
        nonlocal last, size
        for number, line in lines:
            last, size = number, size + len(line)
            # An unclosed quote may merge the rest of the file into one row.
            if size > limits.LONGEST_RECORD_BYTES:
                raise csv.Error(f"a row longer than {limits.LONGEST_RECORD_BYTES >> 20} MiB")
            yield line

    # The library has one limit for all cells of a process.
    csv.field_size_limit(max(csv.field_size_limit(), limits.LONGEST_RECORD_BYTES))
    found = csv.reader(taken(), delimiter=delimiter, strict=True)
    while True:
        first, size = last + 1, 0
        try:
            cells = next(found)
        except StopIteration:
            return
        except csv.Error as error:
            raise _not_csv(f"{path}, line {first}", error) from error
        yield last, cells


def _not_csv(where: str, error: csv.Error) -> UsageError:
    return UsageError(
        f"{where}: {error}; is a quote not closed, or not doubled inside quotes? If quotes are "
        "ordinary characters in this file, read it with `quoting` none"
    )


def whole_lines(path: AnyFile, stream: SourceStream) -> Iterator[tuple[int, str]]:
    """Yields lines with their numbers, except for lines that are too long."""
    is_rest = False
    for number, line in stream.lines(limits.LONGEST_RECORD_BYTES):
        is_whole = line[-1] == "\n"
        if not is_rest and is_whole:
            yield number, line
        elif not is_rest:
            limit = f"longer than {limits.LONGEST_RECORD_BYTES >> 20} MiB"
            stream.refuse(UsageError(f"{path}, line {number}: {limit}; split this record"))
        is_rest = not is_whole
