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
        "NAMES: names of the columns if the first line does not have them, for example a,b,c; "
        "a,b,c,... ignores further cells",
    )
    delimiter: str | None = setting(
        None,
        "CHARACTER: the character between the cells of a table, for example ';' or 'tab' "
        "(default: tab for a .tsv; detected for a .csv)",
    )
    quoting: Literal["double", "none"] | None = setting(
        None,
        "double: cells that contain a delimiter are in double quotes; none: quotes are ordinary "
        "characters (default: none for a .tsv, double for a .csv)",
    )
    encoding: str | None = setting(
        None,
        "NAME: encoding of files without a byte order mark, for example cp1252 (default: UTF-8)",
    )

    def reading(self, *, skips_records: bool = False) -> Any:
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
            skips_records=skips_records,
        )
