"""Tables on stdout."""

import sys
from collections.abc import Sequence


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    found = Table(title=Text(title), title_justify="left")
    for column in columns:
        found.add_column(column)
    for row in rows:
        found.add_row(*(Text(cell) for cell in row))
    # A file or a pipe has no width of its own.
    Console(width=None if sys.stdout.isatty() else 110).print(found)
