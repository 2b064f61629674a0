"""Atomic file writes, names that stay inside a folder, and checksums of corpora."""

import contextlib
import errno
import json
import os
import re
import shutil
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bert_jax.errors import StorageFailed, UsageError, brief, exit_code_of, reason_of

# `Path` drops one of the two slashes of an address.
ADDRESS = re.compile(r"[a-z][a-z0-9+.-]+:/")


def local(place: str | Path) -> Path:
    """Returns a place on this machine as a path.

    Raises UsageError for an address, which `Path` would take for a local folder.
    """
    if ADDRESS.match(str(place)):
        raise UsageError(f"{place} is an address, but must be a local directory")
    return Path(place)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Adds the file name to a storage error raised inside: a write to a full disk has none."""
    try:
        yield
    except OSError as error:
        is_storage = exit_code_of(error) == StorageFailed.exit_code
        if error.filename is not None or not is_storage:
            raise
        raise OSError(error.errno or errno.ENOSPC, reason_of(error), str(path)) from error


def write_whole(path: Path, text: str) -> None:
    """Writes a text file under another name, then renames it.

    A device or a pipe, such as /dev/stdout, is written to directly, and a link stays a link.
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


def write_json(path: Path, value: Any) -> None:
    """Writes a value as JSON, indented by two."""
    write_whole(path, json.dumps(value, indent=2) + "\n")


def inside(folder: Any, name: object) -> Any:
    """Returns `folder / name`, for a name from a bucket, an archive, a hub or a manifest.

    `folder` is a `Path` or an `epath.Path`. Raises ValueError for a name that leaves the folder
    (absolute, or with `..`), that means the folder itself, or that is not portable (control
    characters, backslashes, components of more than 255 bytes).
    """
    parts = name.split("/") if isinstance(name, str) else []
    if not parts or any(map(_is_no_part, parts)):
        raise ValueError(f"{brief(name)} is not a valid file name inside {folder}")
    return folder / "/".join(parts)


def _is_no_part(part: str) -> bool:
    if part in ("", ".", "..") or "\\" in part or not part.isprintable():
        return True
    return len(part.encode(errors="surrogatepass")) > 255


def measure(path: Path) -> tuple[int, int]:
    """Returns the size and the CRC-32 of a file."""
    size = crc32 = 0
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            size += len(chunk)
            crc32 = zlib.crc32(chunk, crc32)
    return size, crc32


def nearest_directory(path: Path) -> Path:
    """Returns the path if it is a directory, or the nearest existing directory above it."""
    path = path.absolute()
    return next(p for p in (path, *path.parents) if p.is_dir())


def free_space(path: Path) -> int:
    """Returns the free bytes on the disk of a path, which need not exist."""
    return shutil.disk_usage(nearest_directory(path)).free
