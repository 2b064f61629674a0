"""Sources at remote addresses, through fsspec: finds their files and reads the bytes.

Remote file names are not trusted: a name that leads out of the requested folder is rejected. fsspec
lists and downloads; `unpacking.py` decompresses and detects damage.
"""

import contextlib
import functools
import io
import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from bert_jax import files
from bert_jax.errors import BertJaxError, UsageError, brief, install_command
from bert_jax.runtime import network

# Kind of address -> the package that reads it.
# `memory` is fsspec's store in this process, for tests.
KINDS = {
    "gs": "gcsfs", "s3": "s3fs", "https": "aiohttp", "http": "aiohttp", "hf": "huggingface-hub",
    "memory": "fsspec",
}  # fmt: skip
_ADDRESS = re.compile(r"([a-z][a-z0-9+.-]*)://(.*)", re.DOTALL)
_SHORT = re.compile(r"hf:(?!//)(.+)", re.DOTALL)
_DATA_SET = re.compile(r"[\w.-]+/[\w.-]+(?=[@/]|$)")
# An address of a web server is one file: it cannot be listed, and `?` begins a query.
_WEB = ("https", "http")
_MAGIC = re.compile(r"[*?[]")
_AT_ONCE = 1 << 20  # bytes


@dataclass(frozen=True)
class RemoteFile:
    """A file or a folder at an address; readers use it like a `Path`."""

    kind: str
    path: str  # in its file system

    def __str__(self) -> str:
        if self.path.startswith(f"{self.kind}://"):
            return self.path
        return f"{self.kind}://{self.path.lstrip('/')}"

    def __lt__(self, other: "RemoteFile") -> bool:
        return self._pure < other._pure

    @property
    def _pure(self) -> PurePosixPath:
        # A query is not part of the name, whose suffix is the kind of file.
        path = re.split("[?#]", self.path)[0] if self.kind in _WEB else self.path
        return PurePosixPath(path)

    @property
    def name(self) -> str:
        return self._pure.name

    def relative_to(self, folder: "RemoteFile") -> PurePosixPath:
        return self._pure.relative_to(folder._pure)

    def open(self) -> io.BufferedReader:
        """Opens the file. Reading raises UsageError or Unreachable for all errors."""
        with failures(str(self)):
            file = file_system(self.kind).open(self.path, "rb")
        # Unpackers request a few kilobytes at a time, which is slow in fsspec.
        return io.BufferedReader(_Remote(file, str(self)), buffer_size=_AT_ONCE)


AnyFile = Path | RemoteFile


def is_address(source: str) -> bool:
    """Returns whether a source is an address, or `hf:NAME`."""
    return bool(_ADDRESS.fullmatch(source) or _SHORT.fullmatch(source))


def find(source: str) -> tuple[RemoteFile | None, list[RemoteFile]]:
    """Returns the folder at an address, or None for a file or a glob; and its files, including
    subfolders, sorted by name.

    Raises UsageError for an unsupported kind of address, an address that does not exist or cannot
    be read, and for a missing package; Unreachable if the network fails.
    """
    kind, place = _parts(source)
    with failures(source):
        system = file_system(kind)
        path = system._strip_protocol(f"{kind}://{place}")
        if kind in _WEB:
            return None, [RemoteFile(kind, path)]
        if _MAGIC.search(path):
            root, found = _MAGIC.split(path)[0].rpartition("/")[0], system.glob(path, detail=True)
            found = [name for name, entry in found.items() if entry["type"] == "file"]
        elif system.isfile(path):
            return None, [RemoteFile(kind, path)]
        else:
            root, found = path.rstrip("/"), system.find(path)
    if not found:
        what = "no file matches" if _MAGIC.search(path) else "no such file or folder"
        raise UsageError(f"{source}: {what} at this address")
    for name in found:
        try:
            files.inside(Path(), name.removeprefix(f"{root}/"))
        except ValueError:
            raise UsageError(
                f"{source}: {brief(name)} is not a valid file name inside it: remove the file, or "
                "name files one by one"
            ) from None
    folder = None if _MAGIC.search(path) else RemoteFile(kind, root)
    return folder, sorted(RemoteFile(kind, name) for name in found)


def _parts(source: str) -> tuple[str, str]:
    """Splits an address into its kind and the rest."""
    if short := _SHORT.fullmatch(source):
        name = short[1].removeprefix("datasets/")
        if not _DATA_SET.match(name):
            raise UsageError(
                f"{source} is not a data set: write hf:OWNER/NAME, optionally with @REVISION or "
                "/PATH after it"
            )
        return "hf", f"datasets/{name}"
    found = _ADDRESS.fullmatch(source)
    assert found is not None, source
    kind, place = found[1], found[2]
    if kind not in KINDS:
        known = ", ".join(f"{name}://" for name in KINDS)
        raise UsageError(
            f"{source}: addresses of the kind {kind}:// are not supported, but {known} are; copy "
            "the files, and name the copy"
        )
    if kind in _WEB and "@" in place.partition("/")[0]:
        raise UsageError(
            f"{source.rpartition('@')[2]}: the address contains a password, which corpus.json "
            "would store: download the file, and name the copy"
        )
    if not place.strip("/"):
        raise UsageError(f"{source}: the address is empty; name a file, a folder or a glob there")
    return kind, place


@functools.cache
def file_system(kind: str) -> Any:
    """Returns fsspec's file system of a kind of address. Raises UsageError without its package."""
    import fsspec

    # They warn that they cannot determine the kind of each bucket, and print errors they raise.
    for name in ("gcsfs", "fsspec"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        return fsspec.filesystem(kind)
    except ImportError as error:
        package = KINDS[kind]
        install = install_command(package)
        raise UsageError(f"{kind}:// needs {package}: {install}") from error


@contextlib.contextmanager
def failures(place: str) -> Iterator[None]:
    """Raises UsageError or Unreachable for every error that occurs inside at an address."""
    try:
        yield
    except UsageError as error:
        if place in str(error):
            raise
        raise UsageError(f"{place}: {error}") from error
    except BertJaxError:
        raise
    except Exception as error:
        # For a server that does not answer, fsspec raises FileNotFoundError with the cause.
        causes = [each for each in (error, error.__cause__) if each is not None]
        if any(type(each).__name__ == "OfflineModeIsEnabled" for each in causes):
            raise UsageError(
                f"{place}: HF_HUB_OFFLINE is set, so the hub is not accessed: unset it, or name a "
                "local copy"
            ) from error
        if any(map(network.is_transient, causes)):
            raise network.unreachable(place, error) from error
        is_missing = isinstance(error, FileNotFoundError)
        reason = "no such file or folder" if is_missing else network.described(error)
        raise UsageError(
            f"{place}: {reason}; check the address and your read permission"
        ) from error


class _Remote(io.RawIOBase):
    """The bytes of a remote file. Errors become UsageError or Unreachable."""

    def __init__(self, file: Any, address: str):
        self._file, self._address = file, address

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self._file.seekable()

    def seek(self, offset: int, whence: int = 0) -> int:
        with failures(self._address):
            return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def readinto(self, buffer: Any) -> int:
        with failures(self._address):
            data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()
