"""Labelled texts from files: GLUE's TSV, CSV, JSON lines, TFDS.

A row knows the file and line it came from: whatever is wrong with it later is reported by name.
"""

import codecs
import contextlib
import csv
import dataclasses
import functools
import io
import json
import math
import sys
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_jax import strict_json
from bert_jax.data.formats.delimited import (
    MORE,
    QUOTED,
    QUOTINGS,
    UNQUOTED,
    find_delimiter,
    names_of,
    table_rows,
    wrong_cells,
)
from bert_jax.data.sources.beginnings import misnamed
from bert_jax.data.sources.document import whole_characters, with_newlines
from bert_jax.data.sources.read import load_tfds
from bert_jax.data.sources.stream import SourceOptions, opened, require_packages
from bert_jax.data.sources.unpacking import PACKED
from bert_jax.errors import UsageError, brief, did_you_mean
from bert_jax.progress import note

_FORMATS = (".tsv", ".csv", ".jsonl")
_PLAIN = ".txt"
# Where a record has the number of its line, from 0: no column has such a name.
_LINE = "\n"
# A packed file may become a thousand times as large, and all of it is held: as bytes, and as rows
# that take several times as much.
_LARGEST_UNPACKED_BYTES = 1 << 30
# Standard input, wherever a file is expected.
STDIN = Path("/dev/stdin")
# A row with one of these for a label has none: SNLI marks so what its judges did not agree on.
_UNLABELLED = ("", "-")
# Names of columns are compared so: macOS decomposes letters that a keyboard composes.
_nfc = functools.partial(unicodedata.normalize, "NFC")


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """The user's choices of how files of rows are read, beside what the task says."""

    # Between the cells of a table; none finds it, or takes the tab of a .tsv.
    delimiter: str | None = None
    # The columns of a table without a line of names. A last `...` ignores further cells.
    columns: tuple[str, ...] = ()
    # "double" for cells in double quotes, "none" where quotes are letters; None is "none" for a
    # table with tabs, unless it is a .csv file, and "double" for all others.
    quoting: str | None = None
    # Leaves out and counts rows that are not usable, instead of refusing the file.
    skip_bad: bool = False

    def __post_init__(self) -> None:
        if MORE in self.columns[:-1]:
            raise UsageError(f"`columns` {','.join(self.columns)}: only the last may be {MORE}")
        if self.quoting not in (None, *QUOTINGS):
            raise UsageError(f"`quoting` {self.quoting}: choose one of {', '.join(QUOTINGS)}")


@dataclass(frozen=True)
class TextRow:
    """One or two texts with their label, as they are written; `location` names where."""

    location: str
    texts: tuple[str, ...]
    # None where the file has no label: text to predict.
    label: str | None
    # What the file calls the row: the number of the row from 0, unless it has an id column.
    id: str


def text_row(given: Any, *, number: int, columns: Sequence[str] = ()) -> TextRow:
    """Returns a row that was written in Python: a text, a pair of texts, or a dict of `columns`.

    Raises UsageError that names the row if it is none of these, or has not as many texts as there
    are columns.
    """
    texts = (given,) if isinstance(given, str) else given
    if isinstance(given, Mapping):
        named = {_nfc(str(name)): text for name, text in given.items()}
        texts = [named.get(_nfc(column)) for column in columns]
    is_whole = isinstance(texts, Sequence) and all(isinstance(text, str) for text in texts)
    if not is_whole or len(texts) not in ((len(columns),) if columns else (1, 2)):
        wanted = f"the text of {' and '.join(columns)}" if columns else "a text or a pair of two"
        raise UsageError(f"row {number}: expected {wanted}, got {brief(given)}")
    return TextRow(f"row {number}", tuple(map(whole_characters, texts)), None, str(number))


def read_text(path: Path) -> str:
    """Returns the content of a UTF-8 file, packed or not, in lines that end in newlines.

    Raises UsageError if it is not there, is damaged, is not UTF-8 or is too large when it is
    unpacked.
    """
    if path == STDIN:
        data = sys.stdin.buffer.read()
    else:
        packing = path.suffix if path.suffix in PACKED else ""
        require_packages({packing: path})
        with opened(path, name=path, suffix=packing, reading=SourceOptions()) as stream:
            data = stream.read(_LARGEST_UNPACKED_BYTES + 1 if packing else -1)
        if packing and len(data) > _LARGEST_UNPACKED_BYTES:
            raise UsageError(
                f"{path}: more than {_LARGEST_UNPACKED_BYTES >> 30} GiB when it is unpacked, and "
                "all of it would be held; split it, or unpack it first where memory is plenty"
            )
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _not_utf8(path, error) from error
    return with_newlines(text)


def _not_utf8(path: Path, error: UnicodeDecodeError) -> UsageError:
    data, offset = error.object, error.start
    is_utf16 = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    encoding = "utf-16" if is_utf16 else "cp1252"
    remedy = misnamed(data) or (
        f"if Windows or Excel wrote it in {encoding}, `iconv -f {encoding} -t utf-8 FILE > NEW` "
        "converts it"
    )
    line = 1 + with_newlines(data[:offset].decode()).count("\n")
    return UsageError(
        f"{path}, line {line}: not UTF-8 (byte 0x{data[offset]:02x} at offset {offset}); {remedy}"
    )


def read_rows(
    path: Path,
    *,
    text_columns: Sequence[str],
    label_column: str | None,
    header: Sequence[str] | None = None,
    id_column: str | None = None,
    skip_short: bool = False,
    reading: TableOptions = TableOptions(),
) -> tuple[list[TextRow], int]:
    """Returns the rows of a `.tsv`, `.csv` or `.jsonl` file (`.gz` as well), and how many were
    skipped.

    `header` names the columns of a table without a first line of names. TSV is GLUE's: tabs
    separate, nothing is quoted; of another table the separator is found, unless `reading` has it.
    With `skip_short`, lines that have too few columns are left out (GLUE's QQP has some). A file
    that lacks `label_column` altogether is an error; `None` reads none. A row whose label is empty
    or "-" has none (but beside "+", where it is one): it is left out, with a note. Raises
    UsageError that names file, line and column.
    """
    name = path.stem if path.suffix in PACKED else path.name
    text_columns = [*map(_nfc, text_columns)]
    label_column, id_column = (name and _nfc(name) for name in (label_column, id_column))
    others = (column for column in (label_column, id_column) if column is not None)
    wanted = [*text_columns, *others]
    # A text a line is for prediction: it has no label.
    formats = _FORMATS if label_column is not None else (*_FORMATS, _PLAIN)
    if path != STDIN and not name.endswith(formats):
        endings, packed = ", ".join(formats), ", ".join(PACKED)
        raise UsageError(f"{path}: the name must end in {endings} (or these and {packed})")
    if not reading.columns and header:
        reading = dataclasses.replace(reading, columns=tuple(header))
    records = _records(path, name, wanted, reading)
    rows: list[TextRow] = []
    skipped = 0
    unlabelled: list[TextRow] = []
    for location, record in records:
        missing = next(
            (
                c
                for c in wanted
                if record.get(c) is None and not (c == label_column and c in record)
            ),
            None,
        )
        if missing is not None and skip_short:
            skipped += 1
            continue
        if missing is not None and missing in record:
            raise UsageError(
                f"{location}: column {missing!r} is null; write text or a number, or leave the "
                "line out"
            )
        if missing is not None:
            raise UsageError(
                f"{location}: no column {missing!r}, only {names_of([*record]) or '{}'}; name the "
                "columns of the file, or repair the line"
            )
        texts = tuple(_text(record[column], location, column) for column in text_columns)
        label = None
        if label_column is not None:
            given = record[label_column]
            label = "" if given is None else _text(given, location, label_column).strip()
        if id_column is None:
            id_ = record.get(_LINE, str(len(rows)))
        else:
            id_ = _text(record[id_column], location, id_column)
        row = TextRow(location, texts, label, id_)
        (unlabelled if label in _UNLABELLED else rows).append(row)
    if unlabelled and any(row.label == "+" for row in rows):
        # Plus and minus: a minus says something.
        rows = sorted([*rows, *(row for row in unlabelled if row.label)], key=_number_of)
        unlabelled = [row for row in unlabelled if not row.label]
    rows = _with_text(path, rows, is_predicted=label_column is None)
    if not rows:
        none = f": none of its {len(unlabelled)} has a label" if unlabelled else ""
        raise UsageError(f"{path} has no rows{none}")
    if unlabelled:
        note(
            f"{path}: {len(unlabelled):,} rows without a label (empty or '-') are left out, the "
            f"first of them {unlabelled[0].location.removeprefix(f'{path}, ')}"
        )
    return rows, skipped


def _with_text(path: Path, rows: list[TextRow], *, is_predicted: bool) -> list[TextRow]:
    """Returns the rows of which something is to be learned; where they are predicted, all."""
    empty = [row for row in rows if not any(text.strip() for text in row.texts)]
    if not empty:
        return rows
    what = "what is predicted of them says nothing" if is_predicted else "they are left out"
    told = {row.location for row in empty}
    first = empty[0].location.removeprefix(f"{path}, ")
    note(f"{path}: {len(empty):,} rows have no text, the first of them {first}; {what}")
    return rows if is_predicted else [row for row in rows if row.location not in told]


def _number_of(row: TextRow) -> int:
    return int(row.location.rpartition(" ")[2])


def _records(
    path: Path,
    name: str,
    wanted: Sequence[str],
    reading: TableOptions,
) -> Iterator[tuple[str, dict[str, Any]]]:
    text = read_text(path)
    is_plain = path != STDIN and name.endswith(_PLAIN)
    if path != STDIN and not is_plain:
        if name.endswith(".jsonl"):
            return _json_lines(path, text)
        return _table(path, text, name, wanted, reading)
    if not is_plain and text.lstrip().startswith("{"):
        return _json_lines(path, text)
    found = None if is_plain else reading.delimiter or _found_delimiter(text, wanted, reading)[0]
    if not is_plain and (reading.columns or found is not None):
        return _table(path, text, ".tsv" if found == "\t" else ".csv", wanted, reading)
    # Without a line of names, which an error would ask for: a text a line, or a pair and a tab.
    rows = table_rows(path, text.split("\n"), "\t", quoting=UNQUOTED)
    numbered = [(number, cells) for number, cells in rows if "".join(cells).strip()]
    for number, cells in numbered:
        if len(cells) != len(wanted):
            raise UsageError(
                f"{path}, line {number}: {len(cells)} cells; write {' and '.join(wanted)}, with a "
                "tab between them, or a first line of their names, or JSON lines"
            )
    return (
        (
            f"{path}, line {number}",
            {_LINE: str(number - 1), **dict(zip(wanted, cells, strict=True))},
        )
        for number, cells in numbered
    )


def _found_delimiter(
    text: str, wanted: Sequence[str], reading: TableOptions
) -> tuple[str | None, list[str]]:
    """Returns the separator with which the first line names all wanted columns, and its names.

    None, and the most names that there may be, where there is no such separator.
    """
    first = next((line for line in text.split("\n") if line.strip()), "")
    with contextlib.suppress(csv.Error):
        return find_delimiter(
            first,
            lambda names: set(wanted) <= {*map(_nfc, names)},
            quoting=reading.quoting or QUOTED,
        )
    return None, []


def _text(value: Any, location: str, column: str) -> str:
    """Returns a cell as text; of JSON numbers and truth values, too, as JSON writes them."""
    if isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)):
        return json.dumps(value)
    if not isinstance(value, str):
        raise UsageError(f"{location}: column {column!r} is {brief(value)}; write text or a number")
    return whole_characters(value)


def _table(
    path: Path, text: str, name: str, wanted: Sequence[str], reading: TableOptions
) -> Iterator[tuple[str, dict[str, Any]]]:
    header = [_nfc(column) for column in reading.columns if column != MORE]
    is_open = MORE in reading.columns
    is_csv = name.endswith(".csv") or reading.delimiter not in (None, "\t")
    delimiter = reading.delimiter or ("," if is_csv else "\t")
    names: list[str] = []
    if is_csv and not reading.delimiter and not header:
        found, names = _found_delimiter(text, wanted, reading)
        if found and found != delimiter:
            note(f"{path}: its cells are separated by {found!r}")
            delimiter = found
    quoting = reading.quoting or (QUOTED if is_csv else UNQUOTED)
    lines = table_rows(path, io.StringIO(text, newline=""), delimiter, quoting=quoting)
    columns = _once(header, wanted, "`columns`") if header else None
    may_be_names = True
    for number, cells in lines:
        if not cells:
            continue
        location = f"{path}, line {number}"
        if columns is None:
            columns = _once([_nfc(cell.strip()) for cell in cells], wanted, location)
            if not set(wanted) <= set(columns):
                # A separator that makes more columns of the line is the one of the file.
                columns = max(columns, [*map(_nfc, names)], key=len)
                lacking = next(column for column in wanted if column not in columns)
                raise _no_column(location, lacking, columns)
            may_be_names = len(columns) > 1
            continue
        # Of one column alone, a later text may be the name.
        if may_be_names and [_nfc(cell.strip()) for cell in cells] == columns:
            remedy = " or leave out `columns`" if header else ""
            raise UsageError(f"{location} has the names of the columns; remove the line{remedy}")
        may_be_names = len(columns) > 1
        if not is_open and any(map(str.strip, cells[len(columns) :])):
            option = f"`columns` {','.join([*header, MORE])}"
            raise wrong_cells(location, cells, columns, f"ignore further cells with {option}")
        yield location, dict(zip(columns, cells, strict=False))


def _once(columns: list[str], wanted: Sequence[str], location: str) -> list[str]:
    """Returns the columns. Raises UsageError if a wanted one is among them twice."""
    for column in wanted:
        if columns.count(column) > 1:
            raise UsageError(f"{location}: column {column!r} occurs twice; rename one of the two")
    return columns


def _no_column(location: str, column: str, columns: Sequence[str]) -> UsageError:
    shown = [brief(cell if len(cell) <= 20 else f"{cell[:17]}...") for cell in columns[:6]]
    more = f" and {len(columns) - 6} more" if len(columns) > 6 else ""
    remedy = did_you_mean(column, columns) or (
        " Is there a header? If not, name the columns with `columns` a,b,c; if so, name one of "
        "these, or say with `delimiter` what stands between them"
    )
    return UsageError(f"{location}: no column {column!r}, only {', '.join(shown)}{more}.{remedy}")


def _json_lines(path: Path, text: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        location = f"{path}, line {number}"
        record = strict_json.parse_file(location, line)
        if not isinstance(record, dict):
            raise UsageError(f"{location}: needs an object, found {type(record).__name__}")
        yield location, {_nfc(name): value for name, value in record.items()}


def read_tfds(source: str, split: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the records of `tfds:NAME[/CONFIG]` with their locations, bytes decoded."""
    data, _ = load_tfds(source, source.removeprefix("tfds:"), split)
    for number, record in enumerate(data.as_numpy_iterator(), 1):
        yield f"{source}:{split}, record {number}", _decoded(record)


def _decoded(value: Any) -> Any:
    """Returns bytes as text, arrays as lists, all the way down."""
    if isinstance(value, dict):
        return {key: _decoded(child) for key, child in value.items()}
    if isinstance(value, bytes):
        return value.decode()
    if hasattr(value, "tolist"):
        return _decoded(value.tolist())
    if isinstance(value, list):
        return [_decoded(child) for child in value]
    return value
