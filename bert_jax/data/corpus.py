"""Text in, documents and sentences out.

A document is a tuple of paragraphs. Sources are read one after the other, as a stream: however
large they are, a few megabytes are held. What is too long to be held is cut, and where is said at
the four limits below.
"""

import functools
import glob
import gzip
import io
import json
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, cast

from bert_jax.errors import UsageError

# Paragraphs, stripped, none of them empty, none with a newline inside.
Document = tuple[str, ...]

# A longer line of a .txt file goes on as a new paragraph, cut at the last space before that.
LONGEST_LINE_BYTES = 1 << 20
# A longer .txt document goes on as a new document at a paragraph boundary.
LONGEST_DOCUMENT_BYTES = 16 << 20
# A longer line of a .jsonl file is refused: half a JSON record cannot be read.
LONGEST_RECORD_BYTES = 64 << 20
# A longer sentence is cut at a space, so that one sentence is never most of a training example.
LONGEST_SENTENCE = 1000

# White space beyond ASCII between a capital and a full stop, as in "J\u00a0. Smith": on its way
# back from the stop sentencex takes it for a single byte, and panics (1.0.32).
_INITIAL = re.compile(r"(?<=[A-Z])\s*[^\S\x00-\x7f]\s*(?=\.)")

_SUFFIXES = (".txt", ".txt.gz", ".jsonl", ".jsonl.gz")
_TFDS = re.compile(r"tfds:(?P<name>[^:]+(:\d+\.\d+\.\d+)?)(:(?P<split>.+))?")


def read_documents(sources: Sequence[str]) -> Iterator[Document]:
    """The documents of all sources, in the order given; the files of a folder or glob by name.

    A source is a file, a folder (read with its subfolders) or a glob of `.txt[.gz]` (a blank line
    between documents, a line is a paragraph) and `.jsonl[.gz]` (one object a line, its `text` field
    is a document, newlines in it separate paragraphs); `tfds:NAME[/CONFIG][:SPLIT]`; or `docs:`.
    Documents without text are passed over.

    Raises UsageError, naming file and line, for what is missing, damaged or not UTF-8. Sources that
    are not there are found before the first document is read.
    """
    readers: list[Callable[[], Iterable[Document]]] = []
    for source in sources:
        if source == "docs:":
            from bert_jax.data.documentation import documentation

            readers.append(documentation)
        elif source.startswith("tfds:"):
            readers.append(functools.partial(_read_tfds, source))
        else:
            readers.extend(functools.partial(_read_file, path) for path in _find_files(source))
    return (document for read in readers for document in read())


def split_sentences(paragraph: str) -> list[str]:
    """The sentences of a paragraph, stripped; joined by spaces they are its text again.

    A sentence of more than LONGEST_SENTENCE characters is cut at its last space before that, and
    where there is none, at the limit.
    """
    import sentencex

    sentences = []
    # The stub leaves it out.
    segment = sentencex.segment  # pyright: ignore[reportAttributeAccessIssue]
    for sentence in segment("en", _INITIAL.sub(" ", paragraph)):
        sentence = sentence.strip()
        while len(sentence) > LONGEST_SENTENCE:
            cut = sentence.rfind(" ", 1, LONGEST_SENTENCE + 1)
            head = sentence[: cut if cut > 0 else LONGEST_SENTENCE]
            sentences.append(head.rstrip())
            sentence = sentence[len(head) :].lstrip()
        if sentence:
            sentences.append(sentence)
    return sentences


def paragraphs_of(text: str) -> Document:
    """The non-empty lines of a text, without half characters."""
    text = whole_characters(text)
    return tuple(line for line in map(str.strip, text.split("\n")) if line)


def whole_characters(text: str) -> str:
    """`text`, each half of a surrogate pair as U+FFFD: JSON can write it, UTF-8 cannot.

    An emoji that something has cut in two. The text keeps its length.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def _find_files(source: str) -> list[Path]:
    kinds = ", ".join(_SUFFIXES)
    path = Path(source)
    if path.is_dir():
        files = [
            Path(folder, name)
            for folder, _, names in os.walk(path, onerror=_refuse_folder)
            for name in names
            if name.endswith(_SUFFIXES) and not name.startswith(".")
        ]
        if not files:
            raise UsageError(f"{source}: no {kinds} file in this folder")
        return sorted(files)
    if path.exists():
        files = [path]
    else:
        files = sorted(Path(name) for name in glob.glob(source, recursive=True))
        files = [file for file in files if not file.is_dir()]
        if not files:
            what = "no file matches" if glob.has_magic(source) else "no such file or folder"
            raise UsageError(
                f"{source}: {what}; a source is a file, folder or glob of {kinds}, "
                "tfds:NAME[/CONFIG][:SPLIT], or docs:"
            )
    for file in files:
        if not file.name.endswith(_SUFFIXES):
            raise UsageError(f"{file}: not one of {kinds}; rename or convert it")
    return files


def _refuse_folder(error: OSError) -> None:
    raise UsageError(f"{error.filename}: {error.strerror}") from error


def _read_file(path: Path) -> Iterator[Document]:
    read = _read_jsonl if path.name.endswith((".jsonl", ".jsonl.gz")) else _read_text
    try:
        with _open(path) as stream:
            yield from read(path, stream)
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise UsageError(
            f"{path}: damaged gzip file ({error}); check it with `gzip -t` and fetch it again"
        ) from error
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from error


def _open(path: Path) -> IO[bytes]:
    """A stream of bytes past the byte order mark, if there is one."""
    raw = gzip.GzipFile(path) if path.name.endswith(".gz") else io.FileIO(path)
    stream = io.BufferedReader(raw, buffer_size=1 << 20)  # type: ignore[arg-type]
    if stream.peek(3)[:3] == b"\xef\xbb\xbf":
        stream.read(3)
    return stream


def _read_text(path: Path, stream: IO[bytes]) -> Iterator[Document]:
    paragraphs: list[str] = []
    size = line_number = 0
    rest, goes_on = b"", False  # of a line that was cut: what is left of it, and that it was
    while piece := stream.readline(LONGEST_LINE_BYTES - len(rest)):
        line = rest + piece
        begins, goes_on = not goes_on, len(line) == LONGEST_LINE_BYTES and line[-1:] != b"\n"
        line_number += begins
        line, rest = _cut(line) if goes_on else (line, b"")
        paragraph = _decode(line, path, line_number).strip()
        if paragraph:
            paragraphs.append(paragraph)
            size += len(line)
        blank = begins and not goes_on and not paragraph
        if paragraphs and (blank or size >= LONGEST_DOCUMENT_BYTES):
            yield tuple(paragraphs)
            paragraphs, size = [], 0
    if last := _decode(rest, path, line_number).strip():
        paragraphs.append(last)
    if paragraphs:
        yield tuple(paragraphs)


def _cut(line: bytes) -> tuple[bytes, bytes]:
    """Cut in two after the last space, or, without one, between two characters."""
    cut = line.rfind(b" ") + 1
    if cut < len(line) // 2:
        cut = len(line)
        # Bytes 10xxxxxx continue a character, which has at most three of them.
        while cut > len(line) - 4 and line[cut - 1] & 0xC0 == 0x80:
            cut -= 1
        if line[cut - 1] >= 0xC0:
            cut -= 1
    return line[:cut], line[cut:]


def _decode(line: bytes, path: Path, line_number: int) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{path}, line {line_number}: not UTF-8 (byte 0x{line[error.start]:02x} at position "
            f"{error.start + 1} of the line); convert the file, for example with "
            "`iconv -f latin1 -t utf-8`"
        ) from error


def _read_jsonl(path: Path, stream: IO[bytes]) -> Iterator[Document]:
    line_number = 0
    while line := stream.readline(LONGEST_RECORD_BYTES):
        line_number += 1
        if len(line) == LONGEST_RECORD_BYTES and not line.endswith(b"\n"):
            raise UsageError(
                f"{path}, line {line_number}: longer than {LONGEST_RECORD_BYTES >> 20} MiB; "
                "a line holds one document: split this one"
            )
        text = _decode(line, path, line_number)
        if not text.strip():
            continue
        try:
            record = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{path}, line {line_number}: not JSON ({error})") from error
        if not isinstance(record, dict) or not isinstance(record.get("text"), str):
            found = sorted(record) if isinstance(record, dict) else type(record).__name__
            raise UsageError(
                f"{path}, line {line_number}: needs an object with a string field `text`, "
                f"found {found}"
            )
        if paragraphs := paragraphs_of(record["text"]):
            yield paragraphs


def _read_tfds(source: str) -> Iterator[Document]:
    """The records of a TensorFlow data set; its data directory is tfds's own (TFDS_DATA_DIR)."""
    match = _TFDS.fullmatch(source)
    if match is None:
        raise UsageError(f"{source}: expected tfds:NAME[/CONFIG][:SPLIT]")
    try:
        import tensorflow_datasets as tfds
    except ImportError as error:
        raise UsageError(
            f"{source} needs tensorflow-datasets: pip install 'bert-jax[tfds]'"
        ) from error

    name, split = match["name"], match["split"] or "train"
    try:
        loaded = tfds.load(
            name,
            split=split,
            data_dir=os.environ.get("TFDS_DATA_DIR"),
            with_info=True,
            # One file after the other, in order: a fixed order of documents.
            read_config=tfds.ReadConfig(interleave_cycle_length=1),
        )
        data, info = cast("tuple[Any, Any]", loaded)
    except Exception as error:  # whatever a data set's own download and build code raises
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise UsageError(f"{source}: tensorflow_datasets cannot load it: {reason}") from error
    field = _tfds_text_field(source, info.features)
    for number, record in enumerate(data.as_numpy_iterator(), 1):
        try:
            text = record[field].decode()
        except UnicodeDecodeError as error:
            raise UsageError(f"{source}, record {number}: `{field}` is not UTF-8") from error
        if paragraphs := paragraphs_of(text):
            yield paragraphs


def _tfds_text_field(source: str, features) -> str:
    """`text`, or the only text feature there is."""
    import tensorflow_datasets as tfds

    fields = sorted(key for key, kind in features.items() if isinstance(kind, tfds.features.Text))
    if "text" in fields:
        return "text"
    if len(fields) == 1:
        return fields[0]
    raise UsageError(
        f"{source}: no feature `text`, and {len(fields)} text features: {fields or list(features)}"
    )
