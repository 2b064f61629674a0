"""The folder that all machines of a job see: in a bucket, or on a disk that they share."""

import contextlib
import os
import shutil
import socket
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_jax import files
from bert_jax.data.sources import address

# Files on a disk that are being written.
_UNFINISHED = ".new"
_AT_ONCE = 32


@dataclass(frozen=True)
class Shared:
    """A folder by its address or path. A file there is whole or is not there; one that is written
    again replaces it.

    Raises UsageError, or Unreachable, for what goes wrong at an address, OSError on a disk.
    """

    place: str

    def __truediv__(self, name: str) -> "Shared":
        return Shared(f"{self.place.rstrip('/')}/{name}")

    def __str__(self) -> str:
        return self.place

    @property
    def is_address(self) -> bool:
        return address.is_address(self.place)

    def has(self, name: str) -> bool:
        """Returns whether there is a file of this name."""
        if not self.is_address:
            return self._local(name).is_file()
        with address.failures(self.place):
            return self._system.exists(self._remote(name))

    def names(self) -> dict[str, Any]:
        """Returns the names of the files in the folder, and of each what changes when it is
        written.
        """
        if not self.is_address:
            folder = Path(self.place)
            if not folder.is_dir():
                return {}
            found: dict[str, Any] = {}
            for entry in os.scandir(folder):
                with contextlib.suppress(FileNotFoundError):  # it went meanwhile
                    if entry.is_file() and not entry.name.endswith(_UNFINISHED):
                        found[entry.name] = entry.stat().st_mtime_ns
            return found
        with address.failures(self.place):
            try:
                listed = self._system.ls(self._remote(""), detail=True)
            except FileNotFoundError:
                return {}
        entries = {entry["name"].rpartition("/")[2]: entry for entry in listed}
        changes = ("generation", "ETag", "etag", "LastModified", "updated", "mtime", "created")
        return {
            name: [str(entry[key]) for key in changes if key in entry]
            for name, entry in entries.items()
            if name and entry["type"] == "file"
        }

    def read(self, name: str) -> bytes:
        """Returns the content of a file."""
        if not self.is_address:
            return self._local(name).read_bytes()
        with address.failures(f"{self.place}/{name}"):
            return self._system.cat_file(self._remote(name))

    def read_several(self, names: Sequence[str]) -> Iterator[bytes]:
        """Yields the content of files, of which some are read at once."""
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for start in range(0, len(names), _AT_ONCE):
                yield from pool.map(self.read, names[start : start + _AT_ONCE])

    def write(self, name: str, data: bytes) -> None:
        """Writes a file."""
        if self.is_address:
            with address.failures(f"{self.place}/{name}"):
                self._system.pipe_file(self._remote(name), data)
        else:
            self._place(name, lambda unfinished: unfinished.write_bytes(data))

    def _place(self, name: str, write: Callable[[Path], object]) -> None:
        file = self._local(name)
        file.parent.mkdir(parents=True, exist_ok=True)
        # Two machines may write it at once.
        own = f"{socket.gethostname()}.{os.getpid()}.{time.monotonic_ns()}"
        unfinished = file.with_name(f"{file.name}.{own}{_UNFINISHED}")
        write(unfinished)
        unfinished.replace(file)

    def remove_unfinished(self) -> None:
        """Removes what a process has left on a disk that ended while it wrote."""
        if not self.is_address:
            for file in Path(self.place).rglob(f"*{_UNFINISHED}"):
                file.unlink(missing_ok=True)

    def is_foreign(self, own: Collection[str]) -> bool:
        """Returns whether there is something at an address, and nothing of these names."""
        with address.failures(self.place):
            try:
                found = self._system.ls(self._remote(""), detail=False)
            except FileNotFoundError:
                return False
        return bool(found) and not {name.rstrip("/").rpartition("/")[2] for name in found} & {*own}

    def fetch(self, name: str, folder: Path) -> Path:
        """Copies a file to a folder of this machine. Returns its place there."""
        file: Path = files.inside(folder, name.rpartition("/")[2])
        file.write_bytes(self.read(name))
        return file

    def keep(self, name: str, file: Path) -> None:
        """Copies a file of this machine there."""
        if self.is_address:
            with address.failures(f"{self.place}/{name}"):
                self._system.put_file(str(file), self._remote(name))
        else:
            self._place(name, lambda unfinished: shutil.copyfile(file, unfinished))

    def remove(self, names: list[str]) -> None:
        """Removes files, of which some may be gone."""
        for name in names:
            if not self.is_address:
                self._local(name).unlink(missing_ok=True)
            elif self.has(name):
                with address.failures(self.place):
                    self._system.rm_file(self._remote(name))

    def remove_all(self) -> None:
        """Removes the folder with all that is in it."""
        if not self.is_address:
            shutil.rmtree(self.place, ignore_errors=True)
            return
        with address.failures(self.place):
            if self._system.exists(self._remote("")):
                self._system.rm(self._remote(""), recursive=True)

    def _local(self, name: str) -> Path:
        return Path(self.place) / name

    def _remote(self, name: str) -> str:
        return f"{self._system._strip_protocol(self.place).rstrip('/')}/{name}".rstrip("/")

    @property
    def _system(self) -> Any:
        system = address.file_system(self.place.partition("://")[0])
        system.invalidate_cache()  # other machines write there, too
        return system
