"""Labelled texts: columns of the rows that data/sources/rows.py reads.

A row stores its file and line, so that later errors can name them.
"""

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_jax.data.sources.address import AnyFile
from bert_jax.data.sources.columns import Columns, Row, nfc
from bert_jax.data.sources.delimited import find_delimiter
from bert_jax.data.sources.document import whole_characters
from bert_jax.data.sources.read import STDIN, opened_files, opened_source
from bert_jax.data.sources.rows import READERS, rows, tfds_rows
from bert_jax.data.sources.stream import (
    MORE,
    UNQUOTED,
    Findings,
    Records,
    SourceOptions,
    SourceStream,
)
from bert_jax.errors import UsageError, brief
from bert_jax.progress import note

_PLAIN = ".txt"
# Labels that mean "no label": SNLI marks examples without agreement of the annotators like this.
_UNLABELLED = ("", "-")
_OF_TABLE = (
    "if the first line is not a header, name the columns with `columns` a,b,c; the character "
    "between cells is `delimiter`"
)


@dataclass(frozen=True)
class TextRow:
    """One or two texts with their label, as in the file, and their location."""

    location: str
    texts: tuple[str, ...]
    # None if the file has no label: text to predict.
    label: str | None
    # The id column, or the number of the row from 0.
    id: str
    # The name of the file, for a task that keeps the rows of several files apart.
    source: str = ""


def text_row(given: Any, *, number: int, columns: Sequence[str] = ()) -> TextRow:
    """Returns a row that was written in Python: a text, a pair of texts, or a dict of `columns`.

    Raises UsageError that names the row if it is none of these, or if its number of texts differs
    from the number of columns.
    """
    texts = (given,) if isinstance(given, str) else given
    if isinstance(given, Mapping):
        named = {nfc(str(name)): text for name, text in given.items()}
        texts = [named.get(nfc(column)) for column in columns]
    is_whole = isinstance(texts, Sequence) and all(isinstance(text, str) for text in texts)
    if not is_whole or len(texts) not in ((len(columns),) if columns else (1, 2)):
        wanted = f"the text of {' and '.join(columns)}" if columns else "a text or a pair of two"
        raise UsageError(f"row {number}: expected {wanted}, got {brief(given)}")
    return TextRow(f"row {number}", tuple(map(whole_characters, texts)), None, str(number))


def read_rows(
    source: Path | str,
    *,
    text_columns: Sequence[str],
    label_column: str | None,
    header: Sequence[str] | None = None,
    id_column: str | None = None,
    reading: SourceOptions | None = None,
    remedy: str = "",
) -> list[TextRow]:
    """Returns the rows of a source: a file, folder or glob of `.tsv`, `.csv`, `.jsonl`, `.parquet`
    or `.arrow`, compressed or not, local or at an address; `tfds:NAME[:SPLIT]`, or `-` for stdin.

    `header` names the columns of a table without a header line. With `label_column` None no label
    is read, and plain text is also accepted, with one text (or a pair separated by a tab) per line.
    A row with a label that is null, empty or "-" is skipped, with a note. A label may be a list of
    numbers. With `reading.skips_records`, rows that cannot be read are skipped, with a note. Raises
    UsageError that names file, row and column; `remedy` is the fix for a missing column, by
    default the options that name columns.
    """
    source, reading = str(source), reading or SourceOptions()
    if not reading.columns and header:
        reading = dataclasses.replace(reading, columns=tuple(header))
    names = [*text_columns, *(name for name in (label_column, id_column) if name is not None)]
    of_cells = "repair the line"
    if MORE not in reading.columns:
        of_cells = f"ignore further cells with `columns` {','.join([*reading.columns, MORE])}"
    fields = {"text": text_columns, "label": label_column, "id": id_column}
    given = " or ".join(f"`{field}`" for field, asked in fields.items() if asked)
    remedy = remedy or f"name one of these with {given}; {_OF_TABLE}"
    columns = Columns([(nfc(name),) for name in names], remedy, of_cells)
    findings = Findings()
    records = Records(source, reading, findings)
    found: list[TextRow] = []
    unlabelled: list[TextRow] = []
    for row, line in rows_of(source, columns, reading, findings, is_plain=label_column is None):
        values = dict(zip(names, row.values, strict=True))
        if label_column is not None and values[label_column] is None:
            values[label_column] = ""
        try:
            texts = {
                name: cell_text(row.location, name, value, takes_list=name == label_column)
                for name, value in values.items()
            }
        except UsageError as error:
            records.refuse(error)
            continue
        label = None if label_column is None else texts[label_column].strip()
        id_ = str(len(found) if line is None else line) if id_column is None else texts[id_column]
        kept = TextRow(row.location, tuple(texts[name] for name in text_columns), label, id_)
        (unlabelled if label in _UNLABELLED else found).append(kept)
    found = _with_text(source, found, is_predicted=label_column is None)
    if not found:
        none = f": none of its {len(unlabelled)} has a label" if unlabelled else ""
        raise UsageError(f"{source} has no rows{none}")
    if unlabelled:
        note(
            f"{source}: skipped {len(unlabelled):,} rows without a label (empty or '-'); the "
            f"first: {unlabelled[0].location}"
        )
    for name, count in findings.records.items():
        note(
            f"{name}: skipped {count:,} rows that cannot be read; the first: "
            f"{findings.first_bad[name]}"
        )
    return found


def rows_of(
    source: str,
    columns: Columns,
    reading: SourceOptions | None = None,
    findings: Findings | None = None,
    *,
    is_plain: bool = False,
) -> Iterator[tuple[Row, int | None]]:
    """Yields the rows of all files of a source. With `is_plain`, plain text is also read, and its
    rows have their line numbers from 0.
    """
    reading, findings = reading or SourceOptions(), findings or Findings()
    if source.startswith("tfds:"):
        records = Records(source, reading, findings)
        for row in tfds_rows(source, records, columns):
            yield row, None
    elif source == STDIN:
        with opened_source(source, reading, findings) as (path, stream):
            stream.ending = _kind_of_stdin(stream, columns)
            yield from _of_file(path, stream, columns)
    else:
        endings = [*READERS, *[_PLAIN] * is_plain]
        for path, stream in opened_files(source, endings, reading, findings):
            yield from _of_file(path, stream, columns)


def _of_file(
    path: AnyFile, stream: SourceStream, columns: Columns
) -> Iterator[tuple[Row, int | None]]:
    if stream.ending in READERS:
        for row in rows(path, stream, columns):
            yield row, None
        return
    # Plain text: a text per line, or two texts and a tab between them.
    names = tuple(f"text {number}" for number in range(1, len(columns.names) + 1))
    plain = {"columns": names, "delimiter": "\t", "quoting": UNQUOTED}
    stream.ending, stream.reading = ".tsv", dataclasses.replace(stream.reading, **plain)
    write = f"write {' and '.join(names)}, with a tab between two, or a table with a header"
    for row in rows(path, stream, Columns([(name,) for name in names], _OF_TABLE, write)):
        yield row, int(row.location.rpartition(" ")[2]) - 1


def _kind_of_stdin(stream: SourceStream, columns: Columns) -> str:
    """Returns the file suffix that matches the text of standard input: JSON lines begin with a
    brace, and a table with the names of all columns, unless `columns` names them.
    """
    reading, text = stream.reading, stream.peek(1).decode(errors="replace").lstrip("\ufeff")
    if text.lstrip().startswith("{"):
        return ".jsonl"
    first = next((line for line in text.splitlines() if line.strip()), "")
    delimiter = reading.delimiter or find_delimiter(first, columns.names, reading)
    if delimiter is None and not reading.columns:
        return _PLAIN
    return ".tsv" if delimiter == "\t" else ".csv"


def _with_text(source: str, found: list[TextRow], *, is_predicted: bool) -> list[TextRow]:
    """Returns the rows with text, or all rows to predict. Prints a note about rows without text."""
    empty = [row for row in found if not any(text.strip() for text in row.texts)]
    if not empty:
        return found
    what = "ignore their predictions" if is_predicted else "they are skipped"
    note(f"{source}: {len(empty):,} rows have no text, the first: {empty[0].location}; {what}")
    return found if is_predicted else [row for row in found if any(map(str.strip, row.texts))]


def cell_text(location: str, column: str, value: Any, *, takes_list: bool = False) -> str:
    """Returns a cell as text; numbers, Booleans and lists of numbers as in JSON."""
    values = value if takes_list and isinstance(value, list) else [value]
    if all(isinstance(v, int) or (isinstance(v, float) and math.isfinite(v)) for v in values):
        return json.dumps(value)
    if not isinstance(value, str):
        found = "null" if value is None else brief(value)
        wanted = "text, a number or a list of finite numbers" if takes_list else "text or a number"
        raise UsageError(f"{location}: column {column!r} is {found}; write {wanted}")
    return whole_characters(value)
