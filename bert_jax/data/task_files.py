"""Labelled texts from files: GLUE's TSV, CSV, JSON lines, TFDS.

A row knows the file and line it came from, so that whatever is wrong with it later is said by name.
"""

import csv
import gzip
import io
import json
import math
import os
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from bert_jax.data.corpus import whole_characters
from bert_jax.errors import UsageError, brief

_FORMATS = (".tsv", ".csv", ".jsonl")


@dataclass(frozen=True)
class TextRow:
    """One or two texts with their label, as they are written; `place` names where."""

    place: str
    texts: tuple[str, ...]
    # None where the file has no label: text to predict.
    label: str | None
    # What the file calls the row: the number of the row from 0, unless it has an id column.
    id: str


def read_text(path: Path) -> str:
    """The content of a UTF-8 file, gzipped or not, with line ends as they are.

    Raises UsageError if it is not there or is not UTF-8.
    """
    try:
        data = path.read_bytes()
        if path.suffix == ".gz":
            data = gzip.decompress(data)
        return data.decode("utf-8-sig")
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"cannot read {path}: {reason}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 text: {error}; convert it") from error


def read_rows(
    path: Path,
    *,
    text_columns: Sequence[str],
    label_column: str | None,
    header: Sequence[str] | None = None,
    id_column: str | None = None,
    skip_short: bool = False,
) -> tuple[list[TextRow], int]:
    """The rows of a `.tsv`, `.csv` or `.jsonl` file (`.gz` as well), and how many were skipped.

    `header` names the columns of a TSV without a first line of names. TSV is GLUE's: tabs separate,
    nothing is quoted. With `skip_short`, lines that have too few columns are left out (GLUE's QQP
    has some). A file that lacks `label_column` altogether is an error; `None` reads none. Raises
    UsageError that names file, line and column.
    """
    name = path.name.removesuffix(".gz")
    if not name.endswith(_FORMATS):
        raise UsageError(f"{path}: the name must end in {', '.join(_FORMATS)} (or these and .gz)")
    records = _json_lines(path) if name.endswith(".jsonl") else _table(path, header, name)
    others = (column for column in (label_column, id_column) if column is not None)
    wanted = [*text_columns, *others]
    rows: list[TextRow] = []
    skipped = 0
    for place, record in records:
        missing = next((column for column in wanted if record.get(column) is None), None)
        if missing is not None and skip_short:
            skipped += 1
            continue
        if missing is not None:
            there = ", ".join(key for key, value in record.items() if value is not None)
            raise UsageError(
                f"{place}: no column {missing!r}, only {there}; name the columns of the file, or "
                "repair the line"
            )
        texts = tuple(_text(record[column], place, column) for column in text_columns)
        label = None
        if label_column is not None:
            label = _text(record[label_column], place, label_column).strip()
            if not label:
                raise UsageError(
                    f"{place}: column {label_column!r} is empty; give the row its label, or leave "
                    "it out"
                )
        id_ = str(len(rows)) if id_column is None else _text(record[id_column], place, id_column)
        rows.append(TextRow(place, texts, label, id_))
    if not rows:
        raise UsageError(f"{path} has no rows")
    return rows, skipped


def _text(value: Any, place: str, column: str) -> str:
    """A cell as text; of JSON numbers and truth values, too, as JSON writes them."""
    if isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)):
        return json.dumps(value)
    if not isinstance(value, str):
        raise UsageError(f"{place}: column {column!r} is {brief(value)}; write text or a number")
    return whole_characters(value)


def _csv_lines(path: Path, text: str) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader(io.StringIO(text, newline=""))
    try:
        for cells in reader:
            yield reader.line_num, cells
    except csv.Error as error:
        raise UsageError(
            f"{path}, line {reader.line_num}: {error}; is a quote not closed before it?"
        ) from error


def _table(
    path: Path, header: Sequence[str] | None, name: str
) -> Iterator[tuple[str, dict[str, Any]]]:
    text = read_text(path)
    if name.endswith(".csv"):
        lines = _csv_lines(path, text)
    else:
        split = text.replace("\r\n", "\n").split("\n")
        lines = ((number, line.split("\t")) for number, line in enumerate(split, 1) if line)
    columns = list(header) if header else None
    for number, cells in lines:
        if not cells:
            continue
        if columns is None:
            columns = [cell.strip() for cell in cells]
            continue
        place = f"{path}, line {number}"
        if any(map(str.strip, cells[len(columns) :])):
            raise UsageError(
                f"{place}: {len(cells)} cells for {len(columns)} columns ({', '.join(columns)}); "
                "quote the text that holds a separator, or repair the line"
            )
        yield place, dict(zip(columns, cells, strict=False))


def _json_lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, line in enumerate(read_text(path).split("\n"), 1):
        if not line.strip():
            continue
        place = f"{path}, line {number}"
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{place}: not JSON ({error})") from error
        if not isinstance(record, dict):
            raise UsageError(f"{place}: needs an object, found {type(record).__name__}")
        yield place, record


def read_tfds(source: str, split: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The records of `tfds:NAME[/CONFIG]`, bytes decoded; its directory is `TFDS_DATA_DIR`."""
    try:
        import tensorflow_datasets as tfds
    except ImportError as error:
        raise UsageError(
            f"{source} needs tensorflow-datasets: pip install 'bert-jax[tfds]'"
        ) from error
    try:
        data = tfds.load(
            source.removeprefix("tfds:"),
            split=split,
            data_dir=os.environ.get("TFDS_DATA_DIR"),
            # One file after the other, in order: a fixed order of rows.
            read_config=tfds.ReadConfig(interleave_cycle_length=1),
        )
    except Exception as error:  # whatever a data set's own download and build code raises
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise UsageError(f"{source}: tensorflow_datasets cannot load {split}: {reason}") from error
    for number, record in enumerate(tfds.as_numpy(cast(Any, data)), 1):
        yield f"{source}:{split}, record {number}", _decoded(record)


def _decoded(value: Any) -> Any:
    """Bytes as text, arrays as lists, all the way down."""
    if isinstance(value, dict):
        return {key: _decoded(child) for key, child in value.items()}
    if isinstance(value, bytes):
        return value.decode()
    if hasattr(value, "tolist"):
        return _decoded(value.tolist())
    if isinstance(value, list):
        return [_decoded(child) for child in value]
    return value
