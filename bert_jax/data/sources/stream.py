"""The bytes of a source file as the reader of a format gets them: unpacked, also as lines."""

import codecs
import importlib.util
import io
import lzma
import sys
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unicodedata import normalize

from bert_jax.data.sources.address import AnyFile
from bert_jax.data.sources.document import Document, paragraphs_of
from bert_jax.data.sources.unpacking import TOOLS, unpacked
from bert_jax.errors import UsageError, brief, install_command

# The splits of a folder that are read: "train"; "validation", or "test" where there is no
# validation split; all but "train".
TRAIN, HELD_OUT, TESTS = "train", "held-out", "tests"
# As the last name of a table's columns: rows may have more cells, which are ignored.
MORE = "..."
# Cells with a delimiter, a quote or a line break are quoted; or quotes are letters.
QUOTED, UNQUOTED = QUOTINGS = ("double", "none")
# The longer marks first: the mark of UTF-32 begins with that of UTF-16.
_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
# In UTF-16 of any language, at least spaces and ends of lines have zero bytes: one byte in so many.
_ZEROS = 50


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """The user's choices: which files of the sources are read, and how."""

    # The field of a JSON object or the column of a table that holds the text; with commas,
    # alternatives, of which the first that a record has is taken.
    text_field: str = "text"
    # Where a document of plain text ends: at a "blank" line, with each "line", or with the "file".
    document: str = "blank"
    # A paragraph is a "line", or the lines between two "blank" lines.
    paragraph: str = "line"
    # The splits that are read of a folder that has several: TRAIN, HELD_OUT or TESTS.
    splits: str = TRAIN
    # Records that cannot be read are left out and counted.
    skips_records: bool = False
    # The encoding of text without a byte order mark; None is UTF-8.
    encoding: str | None = None
    # Tables: "double" for cells in double quotes, "none" where quotes are letters; None is "none"
    # for a .tsv file and "double" for a .csv file.
    quoting: str | None = None
    # Tables: the character between cells; None is the tab of a .tsv file, and found for a .csv.
    delimiter: str | None = None
    # Tables: the names of the columns, if the first line does not have them. A last `...` ignores
    # further cells.
    columns: tuple[str, ...] = ()
    # The file that standard input was copied to.
    stdin: Path | None = None
    # The directory of the corpus: its own files are not read, although a glob may match them.
    outside: Path | None = None

    def __post_init__(self) -> None:
        if MORE in self.columns[:-1]:
            raise UsageError(f"`columns` {','.join(self.columns)}: only the last may be {MORE}")
        if not self.fields:
            raise UsageError(f"`text_column` {self.text_field!r} names no field")
        require_layout(self.document, self.paragraph, self.quoting)
        require_encoding(self.encoding)

    @property
    def fields(self) -> tuple[str, ...]:
        """Returns the alternatives of `text_column`, composed (NFC)."""
        names = map(str.strip, normalize("NFC", self.text_field).split(","))
        return tuple(dict.fromkeys(name for name in names if name))


@dataclass(kw_only=True)
class Findings:
    """The files and records that the readers left out, by the names of files in messages."""

    # Files that cannot be read to their end, and why.
    files: dict[str, str] = field(default_factory=dict)
    # Records that cannot be read: the first of a file, and how many.
    first_bad: dict[str, str] = field(default_factory=dict)
    records: Counter[str] = field(default_factory=Counter)
    # Records that have no text.
    without_text: int = 0

    def count_bad(self, name: str, error: UsageError) -> None:
        """Counts a record of the file or data set `name` that is left out, and keeps why."""
        self.first_bad.setdefault(name, str(error))
        self.records[name] += 1

    def add(self, other: "Findings") -> None:
        """Adds the findings of files that were read after these."""
        self.files |= other.files
        self.first_bad = other.first_bad | self.first_bad
        self.records += other.records
        self.without_text += other.without_text


class Records:
    """The records of one file or data set, called `path` in messages: which are left out."""

    def __init__(self, path: AnyFile | str, reading: SourceOptions, findings: Findings | None):
        self.reading = reading
        self.findings = Findings() if findings is None else findings
        self._path = path

    def document(self, text: str | None) -> Document | None:
        """Returns the paragraphs of a record's text; None, and counts it, if it has none."""
        found = paragraphs_of(text, self.reading.paragraph) if text else None
        if not found:
            self.findings.without_text += 1
        return found or None

    def refuse(self, error: UsageError) -> None:
        """Raises the error of one record, or counts the record if `reading.skips_records`."""
        if not self.reading.skips_records:
            raise error
        self.findings.count_bad(str(self._path), error)


class SourceStream(io.BufferedReader, Records):
    """An unpacked file: `read`, `readline` and `peek` give its bytes, `lines` its text.

    The reader of a format gets one with the file's path, for messages; `ending` is the ending of
    the file's name, such as ".csv". What it finds wrong with a record it gives to `refuse`.
    """

    def __init__(
        self,
        raw: Any,
        path: AnyFile,
        *,
        ending: str = "",
        reading: SourceOptions,
        findings: Findings | None = None,
    ):
        super().__init__(raw, buffer_size=1 << 20)
        Records.__init__(self, path, reading, findings)
        self.ending = ending
        # The number of the last line that `lines` gave.
        self.line = 0

    def lines(self, longest: int = sys.maxsize) -> Iterator[tuple[int, str]]:
        """Yields the lines of the text with their numbers, from 1; each ends in one newline.

        A line of more than `longest` characters comes in parts, of which only the last one ends in
        a newline. A byte order mark decides the encoding, else `reading.encoding`, else it is
        UTF-8. Bytes outside of the encoding become half surrogates: `require_decoded` finds them.
        Raises UsageError for UTF-16 or UTF-32 without a mark that no option names.
        """
        # Kept: the end of a wrapper's life would close this stream.
        self._text = io.TextIOWrapper(self, self._encoding(), errors="surrogateescape")
        begins = True
        while line := self._text.readline(longest):
            self.line += begins
            begins = line[-1] == "\n"
            if not begins and len(line) < longest:  # the last one
                line, begins = line + "\n", True
            yield self.line, line
        if not begins:
            yield self.line, "\n"

    def _encoding(self) -> str:
        head = self.peek(1)
        name = next((name for mark, name in _MARKS.items() if head.startswith(mark)), None)
        asked = self.reading.encoding
        is_narrow = asked is None or not codecs.lookup(asked).name.startswith("utf-")
        if name is None and is_narrow and _ZEROS * head.count(0) > len(head):
            raise UsageError(
                f"{self._path}: not {asked or 'UTF-8'}: it has the zero bytes of UTF-16 or UTF-32, "
                "and no byte order mark; name the encoding, such as `encoding` utf-16-le, or "
                "convert the file to UTF-8"
            )
        return name or asked or "utf-8"

    def require_decoded(self, where: str, text: str) -> None:
        """Raises UsageError if some bytes of a text, which is at `where`, were not of the file's
        encoding.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise self.not_decoded(where) from error

    def not_decoded(self, where: str) -> UsageError:
        """Returns the error of text at `where` that is not in the file's encoding."""
        name = self._text.encoding
        if name.startswith("utf-8"):
            return UsageError(
                f"{where}: not UTF-8; if Windows wrote it in a western language, `encoding` cp1252 "
                "reads it"
            )
        return UsageError(f"{where}: not {name}; name another `encoding`, or convert it to UTF-8")


def require_layout(document: str, paragraph: str, quoting: str | None = None) -> None:
    """Raises UsageError for a layout that `SourceOptions` does not have."""
    for name, value, known in (
        ("document_boundary", document, ("blank", "line", "file")),
        ("paragraph_boundary", paragraph, ("line", "blank")),
        ("quoting", quoting or UNQUOTED, QUOTINGS),
    ):
        if value not in known:
            raise UsageError(f"`{name}` {value!r}: choose one of {', '.join(known)}")
    if (document, paragraph) == ("line", "blank"):
        raise UsageError(
            "`document_boundary` line has one paragraph per line: leave `paragraph_boundary` out"
        )


def require_encoding(name: str | None) -> None:
    """Raises UsageError unless `name` is None or an encoding of text that Python has."""
    try:
        io.TextIOWrapper(io.BytesIO(), name or "utf-8", errors="surrogateescape").read()
    except (LookupError, UnicodeError) as error:
        raise UsageError(
            f"`encoding` {name}: no such encoding of text; usual ones are cp1252 (Western European "
            "Windows), cp1251, latin-2, utf-16, gb18030, shift_jis, euc_kr"
        ) from error


@contextmanager
def opened(
    path: AnyFile,
    kind: tuple[str, str],
    *,
    reading: SourceOptions,
    name: AnyFile | None = None,
    findings: Findings | None = None,
) -> Iterator[SourceStream]:
    """Opens a file whose name ends in `kind`: the ending of its format and of its packing, each ""
    if it has none. Messages call it `name`.

    Raises UsageError for a file that cannot be opened or, while it is read, is damaged.
    """
    name, (ending, packing), stream = name or path, kind, None
    try:
        with io.FileIO(path) if isinstance(path, Path) else path.open() as file:
            stream = SourceStream(
                unpacked(file, packing), name, ending=ending, reading=reading, findings=findings
            )
            yield stream
    except UnicodeDecodeError as error:
        # Only UTF-16 and UTF-32 have bytes that become no half surrogate.
        line = stream.line if stream else 0
        raise UsageError(
            f"{name}, after line {line:,}: not {error.encoding} ({error.reason}); fetch it again, "
            "or convert it to UTF-8"
        ) from error
    except (EOFError, zlib.error, lzma.LZMAError) as error:
        if not packing:  # raised by a format
            raise UsageError(f"{name}: damaged ({error}); fetch it again") from error
        raise _damaged(name, packing, error) from error
    except OSError as error:
        # The errors of the operating system have a number, the others are an unpacker's.
        if error.errno is None and packing:
            raise _damaged(name, packing, error) from error
        raise UsageError(f"{name}: {error.strerror or error}") from error


def _damaged(name: AnyFile, packing: str, error: Exception) -> UsageError:
    tool = TOOLS[packing]
    return UsageError(
        f"{name}: damaged {tool} file ({brief(str(error))[1:-1]}); check it with `{tool} -t` and "
        "fetch it again"
    )


# The packages of an ending that are not installed with the rest.
_PACKAGES = {
    ".zst": ("zstandard",),
    ".parquet": ("pyarrow",),
    ".arrow": ("pyarrow",),
    ".warc": ("resiliparse", "fastwarc"),
}


def require_packages(endings: dict[str, AnyFile]) -> None:
    """Raises UsageError if a package is not installed that files of such an ending need.

    `endings` has one file for each ending, to name it.
    """
    missing = [
        (package, file)
        for ending, file in endings.items()
        for package in _PACKAGES.get(ending, ())
        if importlib.util.find_spec(package) is None
    ]
    if missing:
        packages = dict.fromkeys(package for package, _ in missing)
        files = ", ".join(dict.fromkeys(str(file) for _, file in missing))
        raise UsageError(f"{files}: needs {' and '.join(packages)}: {install_command(*packages)}")
