"""Options of table files, shared by fine-tuning and prediction."""

from typing import Any, ClassVar, Literal

from bert_jax.cli.options import Verb
from bert_jax.config.fields import section, setting
from bert_jax.errors import UsageError


@section
class TableFormat(Verb):
    """The format of a table."""

    GROUP: ClassVar = ("tables", None)
    columns: str | None = setting(
        None,
        "NAMES: the columns of a file whose first line does not name them, such as a,b,c; a "
        "last ... (a,b,c,...) ignores further cells",
    )
    delimiter: str | None = setting(
        None,
        "CHARACTER: what stands between the cells of a table, such as ';' or 'tab' (default: "
        "the tab of a .tsv; for a .csv the first of , tab ; | with which the first line has the"
        " columns)",
    )
    quoting: Literal["double", "none"] | None = setting(
        None,
        "cells that hold a delimiter are in double quotes, or no cell is and quotes are letters"
        " (default: none for a .tsv, double for a .csv)",
    )
    encoding: str | None = setting(
        None,
        "NAME: the encoding of text without a byte order mark, such as cp1252 (default: UTF-8)",
    )

    def reading(self, *, skip_bad: bool = False) -> Any:
        """Returns the options as `Sources.reading` takes them."""
        from bert_jax.data.sources.stream import SourceOptions

        delimiter = {"tab": "\t", "\\t": "\t"}.get(self.delimiter or "", self.delimiter)
        if delimiter is not None and len(delimiter) != 1:
            raise UsageError(f"--delimiter {self.delimiter}: write one character, or 'tab'")
        columns = tuple(name.strip() for name in (self.columns or "").split(",") if name.strip())
        return SourceOptions(
            delimiter=delimiter,
            columns=columns,
            quoting=self.quoting,
            encoding=self.encoding,
            skips_records=skip_bad,
        )
