"""Tables with delimiters (CSV and TSV), of corpora and of tasks: rows with the numbers of their
lines.
"""

import csv
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from bert_jax.errors import UsageError, brief

# A longer line, row or cell is refused: half a record cannot be read.
LONGEST_RECORD_BYTES = 128 << 20
# Each line of a row counts as so many characters at least: a short string takes about that, too.
_SHORTEST_LINE = 32
_ROW_TOO_LONG = "a row longer than"
# The characters that may separate the columns of a .csv file.
CSV_DELIMITERS = ",;\t|"
# As the last name of a table's columns: rows may have more cells, which are ignored.
MORE = "..."
# A cell that holds a delimiter, a quote or a line break is quoted; or quotes are letters.
QUOTED, UNQUOTED = QUOTINGS = ("double", "none")


def _raise(error: UsageError) -> None:
    raise error


def find_delimiter(
    head: str,
    is_header: Callable[[list[str]], bool],
    *,
    quoting: str = QUOTED,
    delimiters: str = CSV_DELIMITERS,
) -> tuple[str | None, list[str]]:
    """Returns the delimiter with which the first line of a file is a header, and the names in it.

    None, and the longest list of names, where there is no such delimiter. Raises csv.Error.
    """
    most: list[str] = []
    for delimiter in delimiters:
        # A name has no line break.
        if quoting == QUOTED:
            cells = next(csv.reader([head], delimiter=delimiter), [])
        else:
            cells = _split(head, delimiter)
        names = [cell.strip() for cell in cells]
        if is_header(names):
            return delimiter, names
        most = max(most, names, key=len)
    return None, most


def table_rows(
    path: Path,
    lines: Iterable[str],
    delimiter: str,
    *,
    quoting: str,
    begun: int = 0,
    refuse: Callable[[UsageError], None] = _raise,
) -> Iterator[tuple[int, list[str]]]:
    """Yields the rows of a table, as `csv_rows`; an empty line has no cells. With `quoting` "none"
    quotes are letters, and each line is a row.
    """
    if quoting == QUOTED:
        return csv_rows(path, iter(lines), delimiter, begun=begun, refuse=refuse)
    return enumerate((_split(line, delimiter) for line in lines), begun + 1)


def _split(line: str, delimiter: str) -> list[str]:
    line = line.rstrip("\r\n")
    return line.split(delimiter) if line else []


def csv_rows(
    path: Path,
    lines: Iterator[str],
    delimiter: str,
    *,
    begun: int = 0,
    refuse: Callable[[UsageError], None] = _raise,
) -> Iterator[tuple[int, list[str]]]:
    """Yields rows with the number of their last line, after the `begun` lines that were read.

    Strict: a quote that is never closed would make one cell of the rest of the file. Where `refuse`
    does not raise, the row's first line is left out, and the next one begins a row.
    """
    # The library has one limit for all cells of a process. It is not lowered again: another thread
    # may be reading.
    csv.field_size_limit(max(csv.field_size_limit(), LONGEST_RECORD_BYTES))
    counted = _Lines(lines, begun)
    while True:
        counted.begin_row()
        first = counted.number + 1
        try:
            cells = next(csv.reader(counted, delimiter=delimiter, strict=True))
        except StopIteration:
            return
        except csv.Error as error:
            # A quote that is never closed was opened in this row, however far its cell goes.
            is_open = any(words in str(error) for words in ("end of data", _ROW_TOO_LONG))
            line = first if is_open else counted.number
            refuse(not_csv(path, line, error))
            counted.give_back_all_but_first(str(error))
            continue
        yield counted.number, cells


class _Lines:
    """Lines, of which those since the last `begin_row` can be put back.

    A row goes on into its next line inside of quotes, and then ends as any row would that does,
    wherever it began. So one that goes on into lines that were put back ends in the same error as
    the row that had them. That is raised at once: else each row would read them all again.
    """

    def __init__(self, lines: Iterator[str], number: int) -> None:
        self._lines = lines
        self._waiting: list[str] = []
        self._row: list[str] = []
        self._size = 0  # of the row
        self._put_back_to, self._error = number, ""
        self.number = number  # of lines that were read

    def __iter__(self) -> "_Lines":
        return self

    def __next__(self) -> str:
        line = self._waiting.pop() if self._waiting else next(self._lines)
        self._row.append(line)
        self.number += 1
        if self.number <= self._put_back_to and len(self._row) > 1:
            raise csv.Error(self._error)
        # A limit of cells alone does not end a row of many short ones.
        self._size += max(len(line), _SHORTEST_LINE)
        if self._size > LONGEST_RECORD_BYTES:
            raise csv.Error(f"{_ROW_TOO_LONG} {LONGEST_RECORD_BYTES >> 20} MiB")
        return line

    def begin_row(self) -> None:
        self._row.clear()
        self._size = 0

    def give_back_all_but_first(self, error: str) -> None:
        """Puts back the lines of a row that ended in `error`."""
        if self.number > self._put_back_to:
            self._put_back_to, self._error = self.number, error
        self._waiting += reversed(self._row[1:])
        self.number -= len(self._row) - 1


def not_csv(path: Path, line: int, error: csv.Error) -> UsageError:
    """Returns the error of a line that is no CSV."""
    remedy = (
        "is a quote not closed, or not doubled inside of quotes? If quotes are letters in this "
        "file, read it with `quoting` none"
    )
    return UsageError(f"{path}, line {line}: {error}; {remedy}")


def wrong_cells(
    where: str, cells: Sequence[str], columns: Sequence[str], remedy: str = "repair the line"
) -> UsageError:
    """Returns the error of a row that does not have one cell per column."""
    return UsageError(
        f"{where}: {len(cells)} cells for {len(columns)} columns ({names_of(columns)}); quote the "
        f"text that holds a separator, or {remedy}"
    )


def names_of(columns: Sequence[str]) -> str:
    """Returns the names of a table's columns for a message, or the first of many."""
    return ", ".join(brief(name)[1:-1] for name in columns[:20]) + ", ..." * (len(columns) > 20)
