"""Files that appear whole, written beside their place and renamed into it; and their checksums."""

import base64
import hashlib
import json
import shutil
import zlib
from pathlib import Path
from typing import Any

from bert_jax.errors import brief


def write_whole(path: Path, text: str) -> None:
    """Writes a text file that is never seen half written."""
    building = path.with_name(f"{path.name}.new")
    building.write_text(text, encoding="utf-8")
    building.replace(path)


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
