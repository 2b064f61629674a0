"""Requested columns of rows, and the errors about them."""

import functools
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from bert_jax.errors import UsageError, brief, did_you_mean

# Longer lines or rows are rejected, because a whole row is held in memory.
LONGEST_RECORD_BYTES = 128 << 20
_LISTED = 10  # column names in a message
# The kind of the error for a file without a requested column, in its message.
NO_COLUMN = ": no column "
# Column names are compared composed: macOS decomposes letters that a keyboard composes.
nfc = functools.partial(unicodedata.normalize, "NFC")


class Row(NamedTuple):
    """A row: its location, such as "FILE, line 3", and a value for each requested column: text,
    None, or another value of JSON, parquet or Arrow.
    """

    location: str
    values: tuple[Any, ...]


class Columns(NamedTuple):
    """The requested columns of a row: the alternative names of each, in NFC. A dot selects a nested
    field of an object or a struct.

    `remedy` is added to the error for a file without such a column, `of_cells` to the error for a
    row with a number of cells that differs from the number of columns.
    """

    names: Sequence[Sequence[str]]
    remedy: str
    of_cells: str = "repair the line"


def no_column(where: str, names: Sequence[str], there: Iterable[Any], remedy: str) -> UsageError:
    """Returns the error for a column that is missing in a file or a record at `where`."""
    found = [*map(str, there)]
    return UsageError(
        f"{where}{NO_COLUMN}{' or '.join(map(repr, names))}, only "
        f"{listed(found) or 'empty objects'}."
        f"{did_you_mean(names[0], found)} {remedy[0].upper()}{remedy[1:]}"
    )


def listed(names: Sequence[str]) -> str:
    """Returns the names of columns for a message, or the first ones of many."""
    return ", ".join(brief(name)[1:-1] for name in names[:_LISTED]) + ", ..." * (
        len(names) > _LISTED
    )


def decoded(value: bytes, encoding: str) -> str | UnicodeDecodeError:
    """Returns bytes as text, or the decoding error."""
    try:
        return value.decode(encoding)
    except UnicodeDecodeError as error:
        return error
