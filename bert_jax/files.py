"""Files that appear whole, written beside their place and renamed into it; one that is replaced
only as it was read; and checksums.
"""

import base64
import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import stat
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from bert_jax.errors import StorageFailed, UsageError, brief, exit_code_of, reason_of

# `Path` drops one of an address's two slashes.
ADDRESS = re.compile(r"[a-z][a-z0-9+.-]+:/")


def local(place: str | Path) -> Path:
    """Returns a place on this machine as a path.

    Raises UsageError for an address, which `Path` takes for a folder here.
    """
    if ADDRESS.match(str(place)):
        raise UsageError(f"{place} is an address, and this has to be a directory of this machine")
    return Path(place)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Names the file in what the storage refuses inside: a write that finds the disk full knows no
    name.
    """
    try:
        yield
    except OSError as error:
        is_storage = exit_code_of(error) == StorageFailed.exit_code
        if error.filename is not None or not is_storage:
            raise
        raise OSError(error.errno or errno.ENOSPC, reason_of(error), str(path)) from error


def write_whole(path: Path, text: str) -> None:
    """Writes a text file that is whole, and on the disk, before it has its name.

    A device or a pipe, such as /dev/stdout, is written to as it is, and a link stays one.
    """
    if path.exists() and not path.is_file():
        with writing(path):
            path.write_text(text, encoding="utf-8")
        return
    place = path.resolve()
    building = place.with_name(f"{place.name}.new")
    try:
        with writing(path), building.open("w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        building.replace(place)
    except BaseException:
        building.unlink(missing_ok=True)
        raise


# Bytes. No settings, manifest or tokenizer is longer.
LONGEST_DOCUMENT = 256 << 20


def read_plain(path: Path) -> bytes:
    """Returns the content of a document that somebody else may have written.

    Raises UsageError for what is no plain file, which may never end, and for what is longer than
    any of its kind; OSError as opening it does.
    """
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb", buffering=0) as file:
        status = os.fstat(file.fileno())
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(status.st_mode):
            raise UsageError(f"{path} is no plain file; put the file itself there")
        if status.st_size > LONGEST_DOCUMENT:
            raise UsageError(
                f"{path} has {status.st_size:,} bytes, of at most {LONGEST_DOCUMENT:,}; is it "
                "another file?"
            )
        return file.readall()


def copy_files(source: Path, target: Path) -> None:
    """Copies the files of a folder into another one, which may be there; raises as `copy_file`."""
    target.mkdir(parents=True, exist_ok=True)
    for path in sorted(source.iterdir()):
        copy_file(path, target / path.name)


def copy_file(source: Path, target: Path) -> None:
    """Copies a file. Raises UsageError for what is no file of its own: a link may lead anywhere,
    and a pipe has no end.
    """
    if not stat.S_ISREG(source.lstat().st_mode):
        raise UsageError(f"{brief(str(source))[1:-1]} is no plain file; take it away")
    shutil.copyfile(source, target)


class Version(NamedTuple):
    """The text of a small file, what names this version of it, and the seconds that it is old at
    least.
    """

    text: str
    tag: str
    age: float


# Bytes. Whatever is longer was written by somebody else.
LONGEST_VERSION = 4096
# Seconds by which the clocks of two machines may differ.
_CLOCK_SKEW = 60.0


class VersionedFile:
    """A small file in a folder that is replaced only as the version that was read.

    Processes of one machine hold a lock meanwhile (file_lock.py). Two of other machines that
    replace one version at the same time both succeed, and read afterwards who was the last.
    """

    def __init__(self, path: Path):
        self._path = path

    def read(self) -> Version | None:
        try:
            with self._path.open("rb") as file:
                text = file.read(LONGEST_VERSION).decode(errors="replace")
                age = time.time() - os.fstat(file.fileno()).st_mtime
        except FileNotFoundError:
            return None
        return Version(text, text, max(0.0, age - _CLOCK_SKEW))

    def replace(self, text: str, tag: str | None) -> str | None:
        """Writes the file over the version `tag`, or where None was; returns the new tag.

        None if another process has changed it.
        """
        if tag is None:
            try:
                with self._path.open("x", encoding="utf-8") as file:
                    file.write(text)
            except FileExistsError:
                return None
            return text
        with contextlib.suppress(FileNotFoundError), self._path.open("r+b") as file:
            if file.read(LONGEST_VERSION) == tag.encode():
                file.seek(0)
                file.write(text.encode())
                file.truncate()
                return text
        return None

    def remove(self, tag: str) -> None:
        """Removes the file, if it is that version."""
        found = self.read()
        if found is not None and found.tag == tag:
            self._path.unlink(missing_ok=True)


def inside(folder: Any, name: object) -> Any:
    """Returns `folder / name`, for a name from outside: of a bucket, of a manifest.

    `folder` is a `Path` or an `epath.Path`. Raises ValueError for a name that leaves it (absolute,
    or with `..`), that means the folder itself, or that no file has everywhere (control characters,
    backslashes, parts of more than 255 bytes).
    """
    parts = name.split("/") if isinstance(name, str) else []
    if not parts or any(map(_is_no_part, parts)):
        raise ValueError(f"{brief(name)} is no name of a file inside of {folder}")
    return folder / "/".join(parts)


def _is_no_part(part: str) -> bool:
    if part in ("", ".", "..") or "\\" in part or not part.isprintable():
        return True
    return len(part.encode(errors="surrogatepass")) > 255


def write_json(path: Path, value: Any) -> None:
    """Writes a value as JSON, indented by two."""
    write_whole(path, json.dumps(value, indent=2) + "\n")


def checksum_of(values: dict[str, Any]) -> int:
    """Returns the CRC-32 of values of JSON, whatever the order of their keys."""
    return zlib.crc32(json.dumps(values, sort_keys=True).encode())


def measure(path: Any) -> tuple[int, int]:
    """Returns size and CRC-32 of a file, at about 3 GB a second where it is in memory.

    `path` is a `Path`, or an `epath.Path` in a bucket.
    """
    size = crc32 = 0
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            size += len(chunk)
            crc32 = zlib.crc32(chunk, crc32)
    return size, crc32


def measure_as_bucket(path: Any) -> tuple[int, dict[str, str]]:
    """Returns size, CRC-32C and MD5 of a file, as Cloud Storage writes them: in base64."""
    import google_crc32c

    size, crc32c, md5 = 0, google_crc32c.Checksum(), hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            size += len(chunk)
            crc32c.update(chunk)
            md5.update(chunk)
    sums = {"crc32c": crc32c.digest(), "md5": md5.digest()}
    return size, {name: base64.b64encode(value).decode("ascii") for name, value in sums.items()}


def nearest_directory(path: Path) -> Path:
    """Returns the nearest directory above a path, or the path, that is there."""
    path = path.absolute()
    return next(p for p in (path, *path.parents) if p.is_dir())


def free_space(path: Path) -> int:
    """Returns how many bytes are free where a path is, or would be."""
    return shutil.disk_usage(nearest_directory(path)).free
