"""Reads documents and texts from sources.

A document is a tuple of paragraphs. Sources are streamed one after the other, with a few megabytes
in memory regardless of their size. A document that exceeds the limit is split (document.py).
"""

import contextlib
import functools
import io
import itertools
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bert_jax.data.sources.address import AnyFile, is_address
from bert_jax.data.sources.address import find as find_at
from bert_jax.data.sources.document import Document, bounded
from bert_jax.data.sources.files import describe, find_files, kind_of, packing_of
from bert_jax.data.sources.rows import read_tfds
from bert_jax.data.sources.stream import (
    TRAIN,
    Findings,
    Records,
    SourceOptions,
    SourceStream,
    opened,
    require_packages,
)
from bert_jax.data.sources.unpacking import PACKED
from bert_jax.errors import UsageError
from bert_jax.progress import note
from bert_jax.registry import FORMATS

STDIN = "-"


@dataclass(frozen=True)
class Reader:
    """A file or data set of the sources. Can be pickled: another process may read it."""

    name: str  # in messages
    read: Callable[..., Iterable[Document]]
    size: int = 0  # bytes of the file, 0 if unknown

    def documents(self, findings: Findings | None = None) -> Iterator[Document]:
        """Yields the documents. Raises UsageError if the file cannot be read; with `findings`,
        records the file and the reason there instead.
        """
        try:
            yield from bounded(self.read(findings=findings))
        except UsageError as error:
            if findings is None:
                raise
            findings.files[self.name] = str(error)


def read_documents(
    sources: Sequence[str],
    reading: SourceOptions | None = None,
    *,
    findings: Findings | None = None,
) -> Iterator[Document]:
    """Returns the documents of all sources, in the given order; the files of a folder or glob are
    sorted by name.

    A source is a file, a folder (including subfolders) or a glob of any kind of file that
    `registry.FORMATS` lists, compressed or not, local or at an address (`address.py`);
    `tfds:NAME[/CONFIG][:SPLIT]`; or `docs:`. Documents without text are skipped.

    Raises UsageError, naming file and line, for missing, damaged or undecodable text. Missing
    sources and packages are reported before the first document is read. With `findings`, a file
    that cannot be read is recorded there with the reason, and reading continues with the next file.
    """
    found = readers_of(sources, reading)
    return itertools.chain.from_iterable(reader.documents(findings) for reader in found)


def readers_of(sources: Sequence[str], reading: SourceOptions | None = None) -> list[Reader]:
    """Returns the readers of the files and data sets of sources, in the order of `read_documents`.

    Prints a note about skipped files. Raises UsageError for missing sources and packages.
    """
    reading = reading or SourceOptions()
    readers: list[Reader] = []
    endings: dict[str, AnyFile] = {}
    own = None if reading.outside is None else reading.outside.resolve()
    for source in sources:
        if source == "docs:":
            readers.append(Reader(source, _read_documentation))
        elif source.startswith("tfds:"):
            readers.append(Reader(source, functools.partial(_read_tfds, source, reading)))
        else:
            files, skipped = find_files(source, splits=reading.splits)
            if skipped:
                note(f"{source}: {describe(source, skipped)}")
            for path in files:
                is_local = isinstance(path, Path)
                if own is not None and is_local and path.resolve().is_relative_to(own):
                    continue
                kind = kind_of(path.name)
                assert kind is not None
                endings.update(dict.fromkeys(kind, path))
                # Another process may have another working directory.
                place = path.absolute() if is_local else path
                read = functools.partial(_read_file, place, path, kind, reading)
                size = _size(path) if is_local else 0
                readers.append(Reader(str(path), read, size))
    require_packages(endings)
    return readers


def read_text(source: Path | str, reading: SourceOptions | None = None) -> str:
    """Returns the text of one file, compressed or not, local or at an address, or of standard input
    (`-`). Each line ends in a newline.

    Raises UsageError for a missing or damaged file and, with the line, for text that cannot be
    decoded.
    """
    reading, lines = reading or SourceOptions(), []
    with opened_source(source, reading) as (path, stream):
        for number, line in stream.lines():
            stream.require_decoded(f"{path}, line {number}", line)
            lines.append(line)
    return "".join(lines)


@contextlib.contextmanager
def opened_source(
    source: Path | str, reading: SourceOptions, findings: Findings | None = None
) -> Iterator[tuple[AnyFile, SourceStream]]:
    """Opens one file of any name, at a path or an address, or standard input, which is held in
    memory.
    """
    if str(source) == STDIN:
        name = Path("standard input")
        held = io.BytesIO(sys.stdin.buffer.read())
        yield name, SourceStream(held, name, reading=reading, findings=findings)
        return
    path: AnyFile = Path(source)
    if is_address(str(source)) and not path.exists():
        found = find_at(str(source))[1]
        if len(found) != 1:
            raise UsageError(f"{source}: {len(found):,} files; name one of them")
        path = found[0]
    with opened(path, ("", packing_of(path.name)), reading=reading, findings=findings) as stream:
        yield path, stream


def opened_files(
    source: str, endings: Collection[str], reading: SourceOptions, findings: Findings
) -> Iterator[tuple[AnyFile, SourceStream]]:
    """Opens the files of a source, one after the other. Raises UsageError for a file with a suffix
    that is not in `endings`.
    """
    for path in find_files(source, splits=reading.splits)[0]:
        kind = kind_of(path.name)
        if kind is None or kind[0] not in endings:
            raise UsageError(
                f"{path}: the name must end in {', '.join(endings)} (or these and "
                f"{', '.join(PACKED)})"
            )
        with opened(path, kind, reading=reading, findings=findings) as stream:
            yield path, stream


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # reading reports the reason
        return 0


def _read_documentation(findings: Findings | None = None) -> Iterable[Document]:
    from bert_jax.data.sources.documentation import documentation

    return documentation()


def _read_file(
    path: AnyFile,
    name: AnyFile,
    kind: tuple[str, str],
    reading: SourceOptions,
    findings: Findings | None = None,
) -> Iterator[Document]:
    """Yields the documents of a file; messages name it `name`."""
    with opened(path, kind, name=name, reading=reading, findings=findings) as stream:
        yield from FORMATS[kind[0]](name, stream)


def _read_tfds(
    source: str, reading: SourceOptions, findings: Findings | None = None
) -> Iterator[Document]:
    """Yields the documents of `tfds:NAME[/CONFIG][:SPLIT]`: the text of each record."""
    if reading.splits != TRAIN and ":" not in source.removeprefix("tfds:"):
        raise UsageError(f"{source}: name its split, for example {source}:test")
    yield from read_tfds(source, Records(source, reading, findings))
