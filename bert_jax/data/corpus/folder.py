"""The folder of a corpus while it is made, on disk or in a bucket: its files, which all processes
of a job access, its lock, and checks that nothing else is overwritten.
"""

import contextlib
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from bert_jax import file_lock, files
from bert_jax.data.corpus.store import MANIFEST
from bert_jax.data.sources import address
from bert_jax.errors import StorageFailed, UsageError, reason_of

# The entries of the folder that exist only while a corpus is made.
PARTS, LOCK = ".parts", ".lock"
# The suffix of files on disk that are being written.
_UNFINISHED = ".unfinished"
_AT_ONCE = 32


@dataclass(frozen=True)
class Folder:
    """A folder at an address or path. A file in it is complete or absent; writing a file again
    replaces it.

    Raises UsageError or Unreachable for failures at an address, OSError for failures on disk.
    """

    place: str

    def __truediv__(self, name: str) -> "Folder":
        return Folder(f"{self.place.rstrip('/')}/{name}")

    def __str__(self) -> str:
        return self.place

    @property
    def is_address(self) -> bool:
        return address.is_address(self.place)

    @property
    def path(self) -> Path:
        """Returns the path of a folder on disk."""
        return Path(self.place)

    def has(self, name: str) -> bool:
        """Returns whether a file with this name exists."""
        with self._reached(name) as (system, path):
            try:
                system.info(path)  # `exists` is false for every error
            except (FileNotFoundError, NotADirectoryError):
                return False
            return True

    def names(self) -> set[str]:
        """Returns the names of the folders and of the complete files in the folder."""
        with self._reached() as (system, root):
            try:
                listed = [name.rstrip("/") for name in system.ls(root, detail=False)]
            except FileNotFoundError:
                return set()
        # An empty object may stand for the folder itself.
        names = {name.rpartition("/")[2] for name in listed if name != root}
        return {name for name in names if not name.endswith(_UNFINISHED)}

    def read(self, name: str) -> bytes:
        """Returns the content of a file."""
        with self._reached(name) as (system, path):
            return system.cat_file(path)

    def read_several(self, names: Sequence[str]) -> Iterator[bytes]:
        """Yields the contents of files, reading several at the same time."""
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for start in range(0, len(names), _AT_ONCE):
                yield from pool.map(self.read, names[start : start + _AT_ONCE])

    def write(self, name: str, data: bytes, *, is_synced: bool = False) -> None:
        """Writes a file; with `is_synced`, waits until it is on disk."""
        with self.writing(name) as stream:
            stream.write(data)
            if is_synced:
                stream.flush()
                os.fsync(stream.fileno())

    @contextlib.contextmanager
    def writing(self, name: str) -> Iterator[IO[bytes]]:
        """Yields a local file; its content becomes the file at the end of the block."""
        if self.is_address:
            with tempfile.NamedTemporaryFile() as stream:
                yield stream
                stream.flush()
                with self._reached(name) as (system, path):
                    system.put_file(stream.name, path)
            return
        file = self.path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        # Two processes may write the file at the same time.
        own = f"{socket.gethostname()}.{os.getpid()}.{time.monotonic_ns()}"
        unfinished = file.with_name(f"{file.name}.{own}{_UNFINISHED}")
        try:
            with files.writing(file), unfinished.open("wb") as stream:
                yield stream
            unfinished.replace(file)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise

    @contextlib.contextmanager
    def here(self) -> Iterator[Path]:
        """Yields the path of the folder, or of a copy of its files if it is in a bucket."""
        if not self.is_address:
            yield self.path
            return
        with tempfile.TemporaryDirectory() as folder:
            for name in self.names():
                files.inside(Path(folder), name).write_bytes(self.read(name))
            yield Path(folder)

    def remove(self, names: Sequence[str]) -> None:
        """Removes files, some of which may be absent."""
        for name in names:
            with self._reached(name) as (system, path), contextlib.suppress(FileNotFoundError):
                system.rm_file(path)

    def remove_all(self) -> None:
        """Removes the folder with everything in it."""
        if not self.is_address:
            shutil.rmtree(self.place, ignore_errors=True)
            return
        with self._reached() as (system, path):
            if system.exists(path):
                system.rm(path, recursive=True)

    def remove_unfinished(self) -> None:
        """Removes incomplete files on disk, which remain if a process is killed."""
        if not self.is_address:
            for file in self.path.rglob(f"*{_UNFINISHED}"):
                file.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _reached(self, name: str = "") -> Iterator[tuple[Any, str]]:
        """Yields the file system, and the path of a file in it, or of the folder."""
        system = address.file_system(self.place.partition("://")[0] if self.is_address else "file")
        system.invalidate_cache()  # other machines write to the folder
        # The local file system of fsspec expands a ~ at the start.
        root = system._strip_protocol(self.place if self.is_address else str(self.path.absolute()))
        path = f"{root.rstrip('/')}/{name}".rstrip("/")
        named = f"{self.place}/{name}".rstrip("/")
        with address.failures(named) if self.is_address else contextlib.nullcontext():
            yield system, path


# --- the folder that `prepare` writes to ----------------------------------------------------------


@contextlib.contextmanager
def storage_failures(output: Folder) -> Iterator[None]:
    """Raises StorageFailed for each OSError inside, which only a folder on disk raises."""
    try:
        yield
    except OSError as error:
        raise StorageFailed(f"{error.filename or output}: {reason_of(error)}") from error


@contextlib.contextmanager
def only_writer(output: Folder) -> Iterator[None]:
    """Holds the lock of a corpus directory on disk; an OSError inside becomes StorageFailed.

    If nothing is written to a directory that was created for the lock, it is removed. Raises
    UsageError if another process holds the lock.
    """
    if output.is_address:
        yield
        return
    folder, remedy = output.path, "wait until it has finished, or choose another `output`"
    with storage_failures(output):
        was_there = folder.exists()
        try:
            with file_lock.hold_or_refuse(folder / LOCK, f"is writing {output}", remedy):
                try:
                    yield
                finally:
                    # The error inside the block is the one to report.
                    with contextlib.suppress(OSError):
                        # If the directory contains more, the parts folder marks it as a corpus.
                        if output.names() <= {PARTS, LOCK}:
                            (folder / PARTS).rmdir()
        finally:
            if not was_there:
                with contextlib.suppress(OSError):  # it is not empty
                    folder.rmdir()


def require_outside(sources: Sequence[str], output: Folder) -> None:
    """Raises UsageError if the corpus directory is inside a source folder."""
    for source in sources:
        if output.is_address:
            folder = source.partition("**")[0].rstrip("/")
            is_inside = f"{output.place.rstrip('/')}/".startswith(f"{folder}/")
        else:
            place = output.path.resolve()
            is_inside = Path(source).is_dir() and place.is_relative_to(Path(source).resolve())
        if is_inside:
            raise UsageError(
                f"`output` {output} is inside `source` {source}, and would be read as text; choose "
                "an output folder outside the source"
            )


def require_own(output: Folder) -> None:
    """Raises UsageError if the output contains something that `prepare` did not make."""
    is_file = not output.is_address and output.path.is_file()
    found = set() if is_file else output.names() - {LOCK}
    if is_file or (found and not found & {MANIFEST, PARTS}):
        raise UsageError(f"{output} exists and is not a corpus: choose another `output`")
