"""Text in, documents and sentences out.

A document is a tuple of paragraphs. Sources are read one after the other, as a stream: however
large they are, a few megabytes are held. What is too long to be held is cut, and where is said at
the limits below.
"""

import functools
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

from bert_jax.data.corpus.source_files import describe, find_files, kind_of, kinds
from bert_jax.data.corpus.source_stream import Reading, SourceStream, opened, require_packages
from bert_jax.errors import UsageError
from bert_jax.registry import FORMATS

# Paragraphs, stripped, none of them empty, none with a newline inside.
Document = tuple[str, ...]


class Continuation(tuple[str, ...]):
    """The document that goes on with the one before it, which was too long to be held."""


# A longer line or paragraph goes on as a new paragraph, cut at the last space before that.
LONGEST_LINE_BYTES = 1 << 20
# A longer document goes on as a new document at a paragraph boundary.
LONGEST_DOCUMENT_BYTES = 16 << 20

_TFDS = re.compile(r"tfds:(?P<name>[^:]+(:\d+\.\d+\.\d+)?)(:(?P<split>.+))?")


STDIN = "-"
_STDIN_OF_KIND = "stdin:"


def read_documents(
    sources: Sequence[str],
    reading: Reading | None = None,
    *,
    bad: dict[str, UsageError] | None = None,
) -> Iterator[Document]:
    """Returns the documents of all sources, in the order given; the files of a folder or glob by
    name.

    A source is a file, a folder (read with its subfolders) or a glob of any kind of file that
    `registry.FORMATS` lists, packed or not; `-` is standard input, plain text, and `stdin:.jsonl`
    standard input of another kind; `tfds:NAME[/CONFIG][:SPLIT]`; or `docs:`. Documents without text
    are passed over. What is too long is cut (see the limits above).

    Raises UsageError, naming file and line, for what is missing, damaged or no text. Sources that
    are not there, and packages that are not installed, are found before the first document is read.
    With `bad`, a file that cannot be read goes in there, with the reason, and the next one is read.
    """
    reading = reading or Reading()
    readers: list[tuple[str, Callable[[], Iterable[Document]]]] = []
    endings: dict[str, Path] = {}
    own = None if reading.outside is None else reading.outside.resolve()
    for source in sources:
        if source == "docs:":
            from bert_jax.data.corpus.documentation import documentation

            readers.append((source, documentation))
        elif source.startswith("tfds:"):
            readers.append((source, functools.partial(_read_tfds, source)))
        elif is_stdin(source):
            name, kind = Path("standard input"), _kind_of_stdin(source)
            endings.update(dict.fromkeys(kind, name))
            if reading.stdin is None:
                raise UsageError(f"{source}: standard input cannot be read here")
            read = functools.partial(_read_file, reading.stdin, name, kind, reading)
            readers.append((source, functools.partial(read, is_guarded=source == STDIN)))
        else:
            for path in find_files(source)[0]:
                if own is not None and path.resolve().is_relative_to(own):
                    continue
                kind = kind_of(path.name)
                assert kind is not None
                endings.update(dict.fromkeys(kind, path))
                read = functools.partial(_read_file, path, path, kind, reading)
                readers.append((str(path), read))
    require_packages(endings)
    return bounded(_read_all(readers, reading.without, bad))


def is_stdin(source: str) -> bool:
    """Returns whether a source is standard input."""
    return source == STDIN or source.startswith(_STDIN_OF_KIND)


def _kind_of_stdin(source: str) -> tuple[str, str]:
    kind = (".txt", "") if source == STDIN else kind_of(source)
    if kind is None:
        raise UsageError(f"{source}: write {_STDIN_OF_KIND} and one of {kinds()}")
    return kind


def left_out(sources: Sequence[str]) -> list[str]:
    """Returns a line for each source that holds files which are not read, with the reasons."""
    lines = []
    for source in sources:
        if not (source == "docs:" or source.startswith("tfds:") or is_stdin(source)):
            skipped = find_files(source)[1]
            if skipped:
                lines.append(f"{source}: {describe(source, skipped)}")
    return lines


def _read_all(
    readers: Sequence[tuple[str, Callable[[], Iterable[Document]]]],
    without: frozenset[str],
    bad: dict[str, UsageError] | None,
) -> Iterator[Document]:
    for name, read in readers:
        if name in without:
            continue
        try:
            yield from read()
        except UsageError as error:
            # A data set that cannot be loaded is no file among many.
            if bad is None or name.startswith("tfds:"):
                raise
            bad[name] = error


def bounded(documents: Iterable[Document]) -> Iterator[Document]:
    """Yields documents with their long paragraphs cut, and long ones as several."""
    for document in documents:
        # No character has more than four bytes.
        if 4 * sum(map(len, document)) <= LONGEST_LINE_BYTES:
            yield document
            continue
        paragraphs: list[str] = []
        size, kind = 0, type(document)
        for paragraph in document:
            for piece, length in _pieces(paragraph):
                paragraphs.append(piece)
                size += length
                if size >= LONGEST_DOCUMENT_BYTES:
                    yield kind(paragraphs)
                    paragraphs, size, kind = [], 0, Continuation
        if paragraphs:
            yield kind(paragraphs)


def _pieces(paragraph: str) -> Iterator[tuple[str, int]]:
    """Yields the parts of a paragraph, and how many bytes each has."""
    text = paragraph.encode()
    at = 0
    while len(text) - at > LONGEST_LINE_BYTES:
        head = _cut(text[at : at + LONGEST_LINE_BYTES])[0]
        at += len(head)
        if piece := head.decode().strip():
            yield piece, len(head)
    if piece := text[at:].decode().strip():
        yield piece, len(text) - at


def paragraphs_of(text: str) -> Document:
    """Returns the non-empty lines of a text, without half characters."""
    text = whole_characters(text)
    return tuple(line for line in map(str.strip, text.split("\n")) if line)


def whole_characters(text: str) -> str:
    """Returns `text`, each half of a surrogate pair as U+FFFD: JSON can write it, UTF-8 cannot.

    An emoji that something has cut in two. The text keeps its length.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def _read_file(
    path: Path, name: Path, kind: tuple[str, str], reading: Reading, is_guarded: bool = False
) -> Iterator[Document]:
    """Yields the documents of a file, which messages call `name`.

    Raises UsageError for JSON where it `is_guarded`: plain text is expected.
    """
    ending, packing = kind
    with opened(path, name=name, suffix=packing, reading=reading) as stream:
        if is_guarded and stream.peek(64).lstrip().startswith(b'{"'):
            raise UsageError(
                f"{name}: looks like JSON lines; write `source` {_STDIN_OF_KIND}.jsonl for them, "
                f"or {_STDIN_OF_KIND}.txt if it is text"
            )
        yield from FORMATS[ending](name, stream)


def read_paragraphs(path: Path, stream: SourceStream) -> Iterator[Document]:
    """Yields the documents of plain text: a paragraph a line, a blank line between documents."""
    text = stream.text()
    paragraphs: list[str] = []
    size, kind = 0, tuple
    rest, goes_on = b"", False  # of a line that was cut: what is left of it, and that it was
    while piece := text.readline(LONGEST_LINE_BYTES - len(rest)):
        line = rest + piece
        begins, goes_on = not goes_on, len(line) == LONGEST_LINE_BYTES and line[-1:] != b"\n"
        line, rest = _cut(line) if goes_on else (line, b"")
        paragraph = line.decode().strip()
        if paragraph:
            paragraphs.append(paragraph)
            size += len(line)
        blank = begins and not goes_on and not paragraph
        if paragraphs and (blank or size >= LONGEST_DOCUMENT_BYTES):
            yield kind(paragraphs)
            paragraphs, size, kind = [], 0, Continuation
        if blank:
            kind = tuple
    if last := rest.decode().strip():
        paragraphs.append(last)
    if paragraphs:
        yield kind(paragraphs)


def _cut(line: bytes) -> tuple[bytes, bytes]:
    """Cuts in two after the last space, or, without one, between two characters."""
    cut = line.rfind(b" ") + 1
    if cut < len(line) // 2:
        cut = len(line)
        # Bytes 10xxxxxx continue a character, which has at most three of them.
        while cut > len(line) - 4 and line[cut - 1] & 0xC0 == 0x80:
            cut -= 1
        if line[cut - 1] >= 0xC0:
            cut -= 1
    return line[:cut], line[cut:]


def load_tfds(source: str, name: str, split: str) -> tuple[Any, Any]:
    """Returns a split of a TensorFlow data set, in a fixed order, and what is known of it.

    Its data directory is tfds's own (TFDS_DATA_DIR). Raises UsageError if it cannot be loaded.
    """
    try:
        import tensorflow_datasets as tfds
    except ImportError as error:
        raise UsageError(
            f"{source} needs tensorflow-datasets: pip install 'bert-jax[tfds]'"
        ) from error
    try:
        loaded = tfds.load(
            name,
            split=split,
            data_dir=os.environ.get("TFDS_DATA_DIR"),
            with_info=True,
            # One file after the other, in order: a fixed order of records.
            read_config=tfds.ReadConfig(interleave_cycle_length=1),
        )
    except Exception as error:  # whatever a data set's own download and build code raises
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise UsageError(f"{source}: tensorflow_datasets cannot load {split}: {reason}") from error
    return cast("tuple[Any, Any]", loaded)


def _read_tfds(source: str) -> Iterator[Document]:
    """Yields the documents of `tfds:NAME[/CONFIG][:SPLIT]`: the text of each record."""
    match = _TFDS.fullmatch(source)
    if match is None:
        raise UsageError(f"{source}: expected tfds:NAME[/CONFIG][:SPLIT]")
    data, info = load_tfds(source, match["name"], match["split"] or "train")
    field = _tfds_text_field(source, info.features)
    for number, record in enumerate(data.as_numpy_iterator(), 1):
        try:
            text = record[field].decode()
        except UnicodeDecodeError as error:
            raise UsageError(f"{source}, record {number}: {field!r} is not UTF-8") from error
        if paragraphs := paragraphs_of(text):
            yield paragraphs


def _tfds_text_field(source: str, features) -> str:
    """Returns `text`, or the only text feature there is."""
    import tensorflow_datasets as tfds

    fields = sorted(key for key, kind in features.items() if isinstance(kind, tfds.features.Text))
    if "text" in fields:
        return "text"
    if len(fields) == 1:
        return fields[0]
    raise UsageError(
        f"{source}: no feature 'text', and {len(fields)} text features: {fields or list(features)}"
    )
