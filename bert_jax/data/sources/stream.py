"""The bytes of a source file for the reader of its format: unpacked, and optionally as lines."""

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

# The splits of a folder to read: "train"; "validation", or "test" if there is no validation split;
# all but "train".
TRAIN, HELD_OUT, TESTS = "train", "held-out", "tests"
# As the last column name: rows may have more cells, which are ignored.
MORE = "..."
# Cells with a delimiter, a quote or a line break are quoted; or quotes are ordinary characters.
QUOTED, UNQUOTED = ("double", "none")
# Longer marks first: UTF-32's mark begins with UTF-16's mark.
_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
# UTF-16 text of any language has zero bytes in spaces and line ends: at least one byte in 50.
_ZEROS = 50


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """The user's choices: which files of the sources to read, and how."""

    # The field of a JSON object or the column of a table that contains the text. With commas, the
    # first of these fields that a record has.
    text_field: str = "text"
    # Where a document of plain text ends: at a "blank" line, with each "line", or with the "file".
    document: str = "blank"
    # A paragraph is a "line", or the lines between two "blank" lines.
    paragraph: str = "line"
    # The splits to read from a folder with several: TRAIN, HELD_OUT or TESTS.
    splits: str = TRAIN
    # Whether records that cannot be read are skipped and counted.
    skips_records: bool = False
    # The encoding of text without a byte order mark; None is UTF-8.
    encoding: str | None = None
    # Tables: "double" for cells in double quotes, "none" if quotes are ordinary characters; None is
    # "none" for a .tsv file and "double" for a .csv file.
    quoting: str | None = None
    # Tables: the character between cells; None is tab for a .tsv file, and detected for a .csv.
    delimiter: str | None = None
    # Tables: the names of the columns, if the first line does not contain them. A last `...`
    # ignores further cells.
    columns: tuple[str, ...] = ()
    # The directory of the corpus: its files are not read, even if a glob matches them.
    outside: Path | None = None

    def __post_init__(self) -> None:
        if MORE in self.columns[:-1]:
            raise UsageError(f"`columns` {','.join(self.columns)}: only the last may be {MORE}")
        if not self.fields:
            raise UsageError(f"`text_column` {self.text_field!r} names no field")
        for name, value, known in (
            ("document_boundary", self.document, ("blank", "line", "file")),
            ("paragraph_boundary", self.paragraph, ("line", "blank")),
            ("quoting", self.quoting or UNQUOTED, (QUOTED, UNQUOTED)),
        ):
            if value not in known:
                raise UsageError(f"`{name}` {value!r}: choose one of {', '.join(known)}")
        if (self.document, self.paragraph) == ("line", "blank"):
            raise UsageError(
                "`document_boundary` line has one paragraph per line: leave `paragraph_boundary` "
                "out"
            )
        _require_encoding(self.encoding)

    @property
    def fields(self) -> tuple[str, ...]:
        """Returns the alternatives of `text_column`, composed (NFC)."""
        names = map(str.strip, normalize("NFC", self.text_field).split(","))
        return tuple(dict.fromkeys(name for name in names if name))


@dataclass(kw_only=True)
class Findings:
    """The files and records that the readers skipped, by file name."""

    # Files that cannot be read completely, and the reason.
    files: dict[str, str] = field(default_factory=dict)
    # Records that cannot be read: the first one per file, and their number.
    first_bad: dict[str, str] = field(default_factory=dict)
    records: Counter[str] = field(default_factory=Counter)
    # Records without text.
    without_text: int = 0

    def count_bad(self, name: str, error: UsageError) -> None:
        """Counts a skipped record of the file or data set `name`, and keeps the first reason."""
        self.first_bad.setdefault(name, str(error))
        self.records[name] += 1

    def add(self, other: "Findings") -> None:
        """Adds the findings of files that were read after these."""
        self.files |= other.files
        self.first_bad = other.first_bad | self.first_bad
        self.records += other.records
        self.without_text += other.without_text


class Records:
    """Handles bad records of one file or data set, which messages name `path`."""

    def __init__(self, path: AnyFile | str, reading: SourceOptions, findings: Findings | None):
        self.reading = reading
        self.findings = Findings() if findings is None else findings
        self._path = path

    def document(self, text: str | None) -> Document | None:
        """Returns the paragraphs of a record's text; counts it and returns None if empty."""
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
    """An unpacked file: `read`, `readline` and `peek` return its bytes, `lines` its text.

    The reader of a format gets the stream with the file's path, for messages; `ending` is the
    suffix of the file's name, such as ".csv". The reader passes bad records to `refuse`.
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
        # The number of the last line that `lines` returned.
        self.line = 0

    def lines(self, longest: int = sys.maxsize) -> Iterator[tuple[int, str]]:
        """Yields the lines of the text with their numbers, from 1; each ends in one newline.

        A line of more than `longest` characters is split into parts, and only the last part ends in
        a newline. The encoding is that of the byte order mark, else `reading.encoding`, else UTF-8.
        Undecodable bytes become half surrogates, which `require_decoded` detects. Raises UsageError
        for UTF-16 or UTF-32 without a mark or the option `encoding`.
        """
        # Kept as an attribute: destroying the wrapper would close this stream.
        self._text = io.TextIOWrapper(self, self._encoding(), errors="surrogateescape")
        begins = True
        while line := self._text.readline(longest):
            self.line += begins
            begins = line[-1] == "\n"
            if not begins and len(line) < longest:  # the last part
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
                "but no byte order mark; name the encoding, such as `encoding` utf-16-le, or "
                "convert the file to UTF-8"
            )
        return name or asked or "utf-8"

    def require_decoded(self, where: str, text: str) -> None:
        """Raises UsageError if some bytes of a text, which is at `where`, could not be decoded with
        the file's encoding.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise self.not_decoded(where) from error

    def not_decoded(self, where: str) -> UsageError:
        """Returns the error for text at `where` that is not in the file's encoding."""
        name = self._text.encoding
        if name.startswith("utf-8"):
            return UsageError(
                f"{where}: not UTF-8; if Windows wrote it in a western language, `encoding` cp1252 "
                "reads it"
            )
        return UsageError(f"{where}: not {name}; name another `encoding`, or convert it to UTF-8")


def _require_encoding(name: str | None) -> None:
    """Raises UsageError unless `name` is None or a text encoding of Python."""
    try:
        io.TextIOWrapper(io.BytesIO(), name or "utf-8", errors="surrogateescape").read()
    except (LookupError, UnicodeError) as error:
        raise UsageError(
            f"`encoding` {name} is not a text encoding; common ones are cp1252 (Western European "
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
    """Opens a file with the suffixes `kind`: of its format and of its compression, each "" if it
    has none. Messages name it `name`.

    Raises UsageError for a file that cannot be opened, or is found damaged while it is read, and
    for missing packages.
    """
    name, (ending, packing), stream = name or path, kind, None
    require_packages(dict.fromkeys(kind, name))
    try:
        with io.FileIO(path) if isinstance(path, Path) else path.open() as file:
            stream = SourceStream(
                unpacked(file, packing), name, ending=ending, reading=reading, findings=findings
            )
            yield stream
    except UnicodeDecodeError as error:
        # Only in UTF-16 and UTF-32 some bytes cannot become half surrogates.
        line = stream.line if stream else 0
        raise UsageError(
            f"{name}, after line {line:,}: not {error.encoding} ({error.reason}); download it "
            "again, or convert it to UTF-8"
        ) from error
    except (EOFError, zlib.error, lzma.LZMAError) as error:
        if not packing:  # raised by a format
            raise UsageError(f"{name}: damaged ({error}); download it again") from error
        raise _damaged(name, packing, error) from error
    except OSError as error:
        # Errors of the operating system have a number, errors of decompressors do not.
        if error.errno is None and packing:
            raise _damaged(name, packing, error) from error
        raise UsageError(f"{name}: {error.strerror or error}") from error


def _damaged(name: AnyFile, packing: str, error: Exception) -> UsageError:
    tool = TOOLS[packing]
    return UsageError(
        f"{name}: damaged {tool} file ({brief(str(error))[1:-1]}); check it with `{tool} -t` and "
        "download it again"
    )


# The packages for suffixes that the base installation does not include.
_PACKAGES = {
    ".zst": ("zstandard",),
    ".parquet": ("pyarrow",),
    ".arrow": ("pyarrow",),
    ".warc": ("resiliparse", "fastwarc"),
}


def require_packages(endings: dict[str, AnyFile]) -> None:
    """Raises UsageError if files with one of these suffixes need a package that is not installed.

    `endings` maps each suffix to a file, which the error names.
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
