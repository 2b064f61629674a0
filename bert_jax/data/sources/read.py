"""Text in, documents and sentences out.

A document is a tuple of paragraphs. Sources are read one after the other, as a stream: however
large they are, a few megabytes are held. What is too long to be held is cut, and where is reported
at the limits below.
"""

import functools
import itertools
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from glob import has_magic
from pathlib import Path
from typing import Any, cast

from bert_jax.data.sources.address import AnyFile, RemoteFile
from bert_jax.data.sources.document import Document, bounded, paragraphs_of
from bert_jax.data.sources.files import describe, find_files, folders_of_split, kind_of, kinds
from bert_jax.data.sources.stream import (
    HELD_OUT,
    TESTS,
    TRAIN,
    Findings,
    SourceOptions,
    opened,
    require_packages,
)
from bert_jax.errors import UsageError, install_command, some
from bert_jax.registry import FORMATS

_TFDS = re.compile(r"tfds:(?P<name>[^:]+(:\d+\.\d+\.\d+)?)(:(?P<split>.+))?")


STDIN = "-"
_STDIN_OF_KIND = "stdin:"


@dataclass(frozen=True)
class Reader:
    """A file or data set of the sources. Can be pickled: another process may read it."""

    name: str  # that messages give it
    read: Callable[..., Iterable[Document]]
    size: int = 0  # bytes of the file, 0 where that is not known
    is_here: bool = False  # no other process has what it reads, or as soon

    def documents(self, findings: Findings | None = None) -> Iterator[Document]:
        """Yields its documents. Raises UsageError where it cannot be read; with `findings`, a file
        that cannot goes in there, with the reason.
        """
        try:
            yield from bounded(self.read(findings=findings))
        except UsageError as error:
            # A data set that cannot be loaded is no file among many.
            if findings is None or self.name.startswith("tfds:"):
                raise
            findings.files[self.name] = error


def read_documents(
    sources: Sequence[str],
    reading: SourceOptions | None = None,
    *,
    findings: Findings | None = None,
) -> Iterator[Document]:
    """Returns the documents of all sources, in the order given; the files of a folder or glob by
    name.

    A source is a file, a folder (read with its subfolders) or a glob of any kind of file that
    `registry.FORMATS` lists, packed or not, here or at an address (`address.py`); `-` is standard
    input, plain text, and `stdin:.jsonl` standard input of another kind;
    `tfds:NAME[/CONFIG][:SPLIT]`; or `docs:`. Documents without text are passed over. What is too
    long is cut (see the limits above).

    Raises UsageError, naming file and line, for what is missing, damaged or no text. Sources that
    are not there, and packages that are not installed, are found before the first document is read.
    With `findings`, a file that cannot be read goes in there, with the reason, and the next one is
    read.
    """
    found = readers_of(sources, reading)
    return itertools.chain.from_iterable(reader.documents(findings) for reader in found)


def readers_of(sources: Sequence[str], reading: SourceOptions | None = None) -> list[Reader]:
    """Returns what reads the files and data sets of sources, in the order of `read_documents`.

    Raises UsageError as that does before the first document is read.
    """
    reading = reading or SourceOptions()
    readers: list[Reader] = []
    endings: dict[str, AnyFile] = {}
    own = None if reading.outside is None else reading.outside.resolve()
    for source in sources:
        if source == "docs:":
            # Here it is read once for all readings.
            readers.append(Reader(source, _read_documentation, is_here=is_here(source)))
        elif source.startswith("tfds:"):
            readers.append(Reader(source, functools.partial(_read_tfds, source, reading)))
        elif is_stdin(source):
            name, kind = Path("standard input"), _kind_of_stdin(source)
            endings.update(dict.fromkeys(kind, name))
            if reading.stdin is None:
                raise UsageError(f"{source}: standard input cannot be read here")
            read = functools.partial(
                _read_file, reading.stdin, name, kind, reading, is_guarded=source == STDIN
            )
            readers.append(Reader(source, read))
        else:
            for path in find_files(source, splits=reading.splits)[0]:
                is_local = isinstance(path, Path)
                if own is not None and is_local and path.resolve().is_relative_to(own):
                    continue
                kind = kind_of(path.name)
                assert kind is not None
                endings.update(dict.fromkeys(kind, path))
                # Another process may be in another folder.
                place = path.absolute() if is_local else path
                read = functools.partial(_read_file, place, path, kind, reading)
                size = _size(path) if is_local else 0
                readers.append(Reader(str(path), read, size, is_here(source)))
    require_packages(endings)
    return readers


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # reading it says why
        return 0


def is_stdin(source: str) -> bool:
    """Returns whether a source is standard input."""
    return source == STDIN or source.startswith(_STDIN_OF_KIND)


def is_here(source: str) -> bool:
    """Returns whether this process has what a source reads, and no other has, or as soon."""
    return source == "docs:" or source.startswith("memory://")


def _kind_of_stdin(source: str) -> tuple[str, str]:
    kind = (".txt", "") if source == STDIN else kind_of(source)
    if kind is None:
        raise UsageError(f"{source}: write {_STDIN_OF_KIND} and one of {kinds()}")
    return kind


def left_out(
    sources: Sequence[str], held_out: Sequence[str] = (), tests: Sequence[str] = ()
) -> list[str]:
    """Returns a line for each source that holds files which are not read, with the reasons, and for
    each that may be several data sets. Those of `sources` that `held_out` reads do not count.
    """
    lines, read = [], set()
    asked = ((HELD_OUT, held_out), (TRAIN, sources), (TESTS, tests))
    for splits, source in [(splits, source) for splits, named in asked for source in named]:
        if not (source == "docs:" or source.startswith("tfds:") or is_stdin(source)):
            files, skipped = find_files(source, splits=splits)
            read |= set(map(_resolved, files)) if splits == HELD_OUT else set()
            skipped = {
                reason: left
                for reason, found in skipped.items()
                if (left := [file for file in found if _resolved(file) not in read])
            }
            if skipped:
                lines.append(f"{source}: {describe(source, skipped)}")
            is_one = splits == TESTS or has_magic(source)
            folders = [] if is_one else folders_of_split(files)
            if len(folders) > 1:
                lines.append(
                    f"{source}: splits of {len(folders)} folders are read together; to read one, "
                    f"name it: {some(folders)}"
                )
    return [*dict.fromkeys(lines)]


def _resolved(file: AnyFile) -> AnyFile:
    return file if isinstance(file, RemoteFile) else file.resolve()


def _read_documentation(findings: Findings | None = None) -> Iterable[Document]:
    from bert_jax.data.sources.documentation import documentation

    return documentation()


def _read_file(
    path: AnyFile,
    name: AnyFile,
    kind: tuple[str, str],
    reading: SourceOptions,
    findings: Findings | None = None,
    is_guarded: bool = False,
) -> Iterator[Document]:
    """Yields the documents of a file, which messages call `name`.

    Raises UsageError for JSON where it `is_guarded`: plain text is expected.
    """
    ending, packing = kind
    with opened(path, name=name, suffix=packing, reading=reading, findings=findings) as stream:
        if is_guarded and stream.peek(64).lstrip().startswith(b'{"'):
            raise UsageError(
                f"{name}: looks like JSON lines; write `source` {_STDIN_OF_KIND}.jsonl for them, "
                f"or {_STDIN_OF_KIND}.txt if it is text"
            )
        yield from FORMATS[ending](name, stream)


def load_tfds(source: str, name: str, split: str) -> tuple[Any, Any]:
    """Returns a split of a TensorFlow data set, in a fixed order, and what is known of it.

    Its data directory is tfds's own (TFDS_DATA_DIR). Raises UsageError if it cannot be loaded.
    """
    try:
        import tensorflow_datasets as tfds
    except ImportError as error:
        install = install_command("tensorflow-datasets", "importlib-resources")
        raise UsageError(f"{source} needs tensorflow-datasets: {install}") from error
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


def _read_tfds(
    source: str, reading: SourceOptions, findings: Findings | None = None
) -> Iterator[Document]:
    """Yields the documents of `tfds:NAME[/CONFIG][:SPLIT]`: the text of each record."""
    match = _TFDS.fullmatch(source)
    if match is None:
        raise UsageError(f"{source}: expected tfds:NAME[/CONFIG][:SPLIT]")
    if not match["split"] and reading.splits != TRAIN:
        raise UsageError(f"{source}: it is not to be trained on: name its split, as {source}:test")
    data, info = load_tfds(source, match["name"], match["split"] or "train")
    field = _tfds_text_field(source, info.features, reading.fields)
    findings = Findings() if findings is None else findings
    for number, record in enumerate(data.as_numpy_iterator(), 1):
        try:
            text = record[field].decode()
        except UnicodeDecodeError as error:
            refused = UsageError(f"{source}, record {number}: {field!r} is not UTF-8")
            if not reading.skips_records:
                raise refused from error
            findings.count_bad(source, refused)
            continue
        if found := paragraphs_of(text, reading.paragraph):
            yield found
        else:
            findings.without_text += 1


def _tfds_text_field(source: str, features: Any, wanted: tuple[str, ...]) -> str:
    """Returns the first of the features wanted that is text; where no others than `text` are
    wanted, the only text feature there is will do.
    """
    import tensorflow_datasets as tfds

    fields = sorted(key for key, kind in features.items() if isinstance(kind, tfds.features.Text))
    found = [name for name in wanted if name in fields]
    if not found and wanted == SourceOptions().fields:
        found = fields if len(fields) == 1 else []
    if not found:
        raise UsageError(
            f"{source}: no text feature {' or '.join(map(repr, wanted))}, and {len(fields)} text "
            f"features: {fields or list(features)}; `text_field` names one"
        )
    return found[0]
