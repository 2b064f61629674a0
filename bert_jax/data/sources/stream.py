"""The bytes of a source file as a format's reader gets them: unpacked, and as UTF-8 on demand."""

import codecs
import importlib.util
import io
import itertools
import lzma
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any
from unicodedata import normalize

from bert_jax.data.sources.address import AnyFile
from bert_jax.data.sources.beginnings import marked, misnamed, wide_text
from bert_jax.data.sources.document import (
    Document,
    paragraphs_of,
    whole_characters,
    with_newlines,
)
from bert_jax.data.sources.unpacking import TOOLS, unpacked
from bert_jax.errors import UsageError, brief, install_command

# `train`; `validation`, or `test` where there is none; and all but `train`.
TRAIN, HELD_OUT, TESTS = "train", "held-out", "tests"


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """The user's choices of how the files of sources are read, and which are not."""

    # The field of a JSON object, or the column of a table, that holds the text; of several, with
    # commas, the first that a record has.
    text_field: str = "text"
    # Where a document of plain text ends: at a "blank" line, with each "line", or with the "file".
    document: str = "blank"
    # A paragraph is a "line", or the lines between two "blank" ones.
    paragraph: str = "line"
    # Of a folder that has splits, those that are read: TRAIN, HELD_OUT or TESTS.
    splits: str = TRAIN
    # A record that cannot be read is left out and counted, not refused.
    skips_records: bool = False
    # Of text without a byte order mark; None is UTF-8.
    encoding: str | None = None
    # Of tables: "double" for cells in double quotes, "none" where quotes are letters; None is
    # "none" for a .tsv file and "double" for a .csv file.
    quoting: str | None = None
    # The file that standard input was copied to.
    stdin: Path | None = None
    # The directory of the corpus, whose own files a glob may match.
    outside: Path | None = None

    @property
    def fields(self) -> tuple[str, ...]:
        """Returns the names that are looked for: each as it was typed, and with its letters
        composed and decomposed, since either form may be that of the file.
        """
        names = [name for name in map(str.strip, self.text_field.split(",")) if name]
        forms = ((name, normalize("NFC", name), normalize("NFD", name)) for name in names)
        return tuple(dict.fromkeys(itertools.chain.from_iterable(forms)))


@dataclass(kw_only=True)
class Findings:
    """The readers' notes of what they left out, or doubt; by the names that messages give files."""

    # Files that cannot be read to their end.
    files: dict[str, UsageError] = field(default_factory=dict)
    # Records that cannot be read: the first of a file, and how many.
    first_bad: dict[str, str] = field(default_factory=dict)
    records: Counter[str] = field(default_factory=Counter)
    # Records that have no text.
    without_text: int = 0
    # Files whose lines end in mid-sentence, and the share that does.
    wrapped: dict[str, float] = field(default_factory=dict)

    def count_bad(self, name: str, error: UsageError) -> None:
        """Notes a record of the file or data set `name` that is left out, and why."""
        self.first_bad.setdefault(name, str(error))
        self.records[name] += 1

    def add(self, other: "Findings") -> None:
        """Adds those of files that were read after these."""
        self.files |= other.files
        self.first_bad = other.first_bad | self.first_bad
        self.records += other.records
        self.without_text += other.without_text
        self.wrapped |= other.wrapped


class SourceStream(io.BufferedReader):
    """A file's bytes, unpacked, past a UTF-8 byte order mark.

    `reading` says what was asked for; a reader of text takes `text()`, one of anything else the
    bytes themselves.
    """

    def __init__(
        self, raw: Any, path: AnyFile, reading: SourceOptions, findings: Findings | None = None
    ):
        """`path` names the file in messages."""
        super().__init__(raw, buffer_size=1 << 20)
        self.reading = reading
        self.findings = Findings() if findings is None else findings
        self._path = path
        self._head = self.peek(8)[:8]
        self._skipped = 3 if self._head.startswith(codecs.BOM_UTF8) else 0
        self.read(self._skipped)

    def text(self) -> IO[bytes]:
        """Returns the text as UTF-8, whatever it is written in.

        A byte order mark says what that is, else `reading.encoding`. Reading from it raises
        UsageError, with line and offset, at the first bytes that are none.
        """
        name, asked = marked(self._head), self.reading.encoding
        is_other = asked is not None and not codecs.lookup(asked).name.startswith("utf-8")
        if name is None and is_other and self._is_utf8():
            raise UsageError(
                f"{self._path}: it is UTF-8 by its bytes, and not {asked}, which `encoding` says "
                "of all text without a byte order mark; prepare such files without it, and "
                f"`append` the others with `encoding` {asked}"
            )
        if name is None and self._head:
            self._require_narrow(None if asked is None else codecs.lookup(asked).name)
        name = name or asked or "utf-8"
        self.encoding = "UTF-8" if name == "utf-8" else name
        errors = "surrogateescape" if self.reading.skips_records else "strict"
        decoded = _Decoded(self, name, self._explain, errors=errors)
        return io.BufferedReader(decoded, buffer_size=1 << 20)

    def _require_narrow(self, asked: str | None) -> None:
        """Raises UsageError for text without a mark that has two bytes a letter, or four, unless
        that is `asked` for: it would be read as letters and zero bytes.
        """
        if (wide := wide_text(self.peek(1))) is not None and asked != wide:
            raise UsageError(
                f"{self._path}: it looks like {wide} without a byte order mark; `encoding` {wide} "
                "reads it; where files beside it are UTF-8, a second command adds it: `append`"
            )
        if asked in ("utf-16", "utf-32"):
            raise UsageError(
                f"{self._path}: it has no byte order mark; `encoding` {asked}-le or {asked}-be "
                "says how its bytes are ordered"
            )

    def _is_utf8(self) -> bool:
        """Returns whether the file begins with UTF-8, of which some is beyond ASCII: that much of
        another encoding is not UTF-8 by chance.
        """
        try:
            text, _ = codecs.utf_8_decode(self.peek(1), "strict", False)
        except UnicodeDecodeError:
            return False
        return len(text) - len(text.encode("ascii", "ignore")) >= _BEYOND_ASCII

    def document(self, text: str | None) -> Document | None:
        """Returns the paragraphs of a record's text; None, and counts it, where there are none."""
        found = paragraphs_of(text, self.reading.paragraph) if text else None
        if not found:
            self.findings.without_text += 1
        return found or None

    def refuse(self, error: UsageError) -> None:
        """Raises the error of one record, or counts it where `reading.skips_records`."""
        if not self.reading.skips_records:
            raise error
        self.findings.count_bad(str(self._path), error)

    def _explain(
        self, encoding: str, line: int, byte: int, offset: int, is_cut: bool
    ) -> UsageError:
        name = self.encoding
        if is_cut:
            return UsageError(
                f"{self._path}, line {line}: the file ends in the middle of a character of {name} "
                f"(offset {offset + self._skipped}): it was cut; fetch it again, or delete its end"
            )
        other = "give it another `encoding`, or convert the file to UTF-8"
        remedy = misnamed(self._head) or (OF_WINDOWS if encoding == "utf-8" else other)
        return UsageError(
            f"{self._path}, line {line}: not {name} (byte 0x{byte:02x} at offset "
            f"{offset + self._skipped}); {remedy}"
        )


# The remedy of text that is not UTF-8.
OF_WINDOWS = "if Windows wrote it in a western language, `encoding` cp1252 reads it"
# Letters beyond ASCII, by which UTF-8 is known.
_BEYOND_ASCII = 10


class _Decoded(io.RawIOBase):
    """Text of any encoding as UTF-8, in lines that end in newlines."""

    def __init__(
        self,
        source: IO[bytes],
        encoding: str,
        explain: Callable[..., UsageError],
        *,
        errors: str,
    ):
        """With `errors` "surrogateescape", bytes that are none are passed on, as what is no UTF-8
        either.
        """
        self._source, self._encoding, self._explain = source, encoding, explain
        self._errors = errors
        self._decoder = codecs.getincrementaldecoder(encoding)(errors)
        self._waiting = memoryview(b"")
        self._lines = self._read = 0
        self._has_other = False
        self._is_over = False
        self._returns = ""  # the last carriage returns, until it is known what follows

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._waiting and not self._is_over:
            data = self._source.read(1 << 18)
            self._is_over = not data
            self._read += len(data)
            try:
                text = self._decoder.decode(data, final=self._is_over)
            except UnicodeDecodeError as error:
                # Of UTF-16 and UTF-32, that says the order of the bytes as the mark did.
                said = error.encoding if error.encoding.startswith("utf-") else self._encoding
                before = self._returns + error.object[: error.start].decode(said, "ignore")
                raise self._explain(
                    self._encoding,
                    1 + self._lines + with_newlines(before).count("\n"),
                    error.object[error.start],
                    self._read - len(error.object) + error.start,
                    # Else the one letter beyond ASCII may be of another encoding.
                    self._is_over
                    and error.end == len(error.object)
                    and (self._has_other or not error.object[: error.start].isascii()),
                ) from error
            text = self._returns + text
            whole = text if self._is_over else text.rstrip("\r")
            self._returns = text[len(whole) :]
            text = with_newlines(whole)
            self._lines += text.count("\n")
            self._has_other = self._has_other or not text.isascii()
            self._waiting = memoryview(self._encoded(text))
        size = min(len(buffer), len(self._waiting))
        buffer[:size] = self._waiting[:size]
        self._waiting = self._waiting[size:]
        return size

    def _encoded(self, text: str) -> bytes:
        try:
            return text.encode()
        except UnicodeEncodeError:
            if self._errors == "strict":  # of UTF-7, say, which can write half a character
                return whole_characters(text).encode()
            # Not as they were: two bytes of another encoding may be a letter of this one.
            return text.encode(errors="surrogatepass")


def require_layout(document: str, paragraph: str, quoting: str | None = None) -> None:
    """Raises UsageError for a layout that `SourceOptions` does not know."""
    for name, value, known in (
        ("document", document, ("blank", "line", "file")),
        ("paragraph", paragraph, ("line", "blank")),
        ("quoting", quoting or "none", ("double", "none")),
    ):
        if value not in known:
            raise UsageError(f"`{name}` {value!r}: choose one of {', '.join(known)}")
    if (document, paragraph) == ("line", "blank"):
        raise UsageError("`document` line has a paragraph a line: `paragraph` blank joins lines")


def require_encoding(name: str | None) -> None:
    """Raises UsageError unless `name` is None or an encoding of text that Python knows."""
    try:
        # Those of names of hosts decode no stream.
        others = ("idna", "punycode", "undefined")
        is_text = name is None or (
            codecs.lookup(name)._is_text_encoding and codecs.lookup(name).name not in others
        )
        if is_text and name is not None:
            codecs.getincrementaldecoder(name)()
    except LookupError:
        is_text = False
    if not is_text:
        raise UsageError(
            f"`encoding` {name}: no such encoding of text; usual ones are cp1252 (Western European "
            "Windows), cp1251, latin-2, utf-16, gb18030, shift_jis, euc_kr"
        )


@contextmanager
def opened(
    path: AnyFile,
    *,
    name: AnyFile,
    suffix: str,
    reading: SourceOptions,
    findings: Findings | None = None,
) -> Iterator[SourceStream]:
    """Opens a file that is packed as `suffix` says ("" is not at all); messages call it `name`.

    Raises UsageError for one that cannot be opened or, also while it is being read, is damaged.
    """
    try:
        with io.FileIO(path) if isinstance(path, Path) else path.open() as file:
            yield SourceStream(unpacked(file, suffix), name, reading, findings)
    except (EOFError, zlib.error, lzma.LZMAError) as error:
        if not suffix:  # a format's own
            raise UsageError(f"{name}: damaged ({error}); fetch it again") from error
        raise _damaged(name, suffix, error) from error
    except OSError as error:
        # Those of the operating system have a number; the others are an unpacker's.
        if error.errno is None and suffix:
            raise _damaged(name, suffix, error) from error
        raise UsageError(f"{name}: {error.strerror or error}") from error


def _damaged(name: AnyFile, suffix: str, error: Exception) -> UsageError:
    tool = TOOLS[suffix]
    return UsageError(
        f"{name}: damaged {tool} file ({brief(str(error))[1:-1]}); check it with `{tool} -t` and "
        "fetch it again"
    )


# What an ending needs that is not installed with the rest.
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
