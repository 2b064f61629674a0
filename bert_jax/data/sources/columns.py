"""The columns that are asked for of rows, and the errors about them."""

import functools
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from bert_jax.errors import UsageError, brief, did_you_mean

# A longer line or row is refused: a row is held whole.
LONGEST_RECORD_BYTES = 128 << 20
# Names of columns are compared composed: macOS decomposes letters that a keyboard composes.
nfc = functools.partial(unicodedata.normalize, "NFC")


class Row(NamedTuple):
    """A row: where it is, such as "FILE, line 3", and a value for each column that was asked for:
    text, None, or another value of JSON, parquet or Arrow.
    """

    location: str
    values: tuple[Any, ...]


class Columns(NamedTuple):
    """The columns of a row that are asked for; of each, the alternatives, in NFC. A dot leads into
    an object or a struct.

    `remedy` follows the error of a file without such a column, `of_cells` that of a row with other
    cells than the table has columns.
    """

    names: Sequence[Sequence[str]]
    remedy: str
    of_cells: str = "repair the line"


def no_column(where: str, names: Sequence[str], there: Iterable[Any], remedy: str) -> UsageError:
    """Returns the error of a column that a file or a record at `where` does not have."""
    found = [*map(str, there)]
    return UsageError(
        f"{where}: no column {' or '.join(map(repr, names))}, only "
        f"{listed(found) or 'empty objects'}."
        f"{did_you_mean(names[0], found)} {remedy[0].upper()}{remedy[1:]}"
    )


def listed(names: Sequence[str]) -> str:
    """Returns the names of columns for a message, or the first of many."""
    return ", ".join(brief(name)[1:-1] for name in names[:20]) + ", ..." * (len(names) > 20)


def decoded(value: bytes, encoding: str) -> str | UnicodeDecodeError:
    """Returns bytes as text; the error where they are not of the encoding."""
    try:
        return value.decode(encoding)
    except UnicodeDecodeError as error:
        return error
