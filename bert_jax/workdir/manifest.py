"""A step's manifest: what its files must be, so that a damaged checkpoint is never trained on.

Orbax restores flipped bits without a word. So each committed step gets `manifest.json`, written
last: size and CRC-32 of every file, and what the step belongs to. A directory without one is not a
step: either its save was cut off, or it has been tampered with.
"""

import json
import time
import zlib
from typing import Any

from bert_jax.files import measure

MANIFEST = "manifest.json"
_FORMAT = 1


def write(step_directory: Any, **facts: Any) -> None:
    """Describes every file under `step_directory` (an `epath.Path`); `facts` go in as they are."""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    entry = {"format": _FORMAT, "step": int(step_directory.name), "saved_at": now, **facts}
    entry["files"] = {
        name: dict(zip(("size", "crc32"), measure(path), strict=True))
        for name, path in sorted(_files(step_directory))
    }
    text = json.dumps(entry | {"checksum": _checksum(entry)}, indent=1)
    # Whole or not at all: on a disk by the rename, in a bucket since objects appear when complete.
    if "://" in str(step_directory):
        (step_directory / MANIFEST).write_text(text)
        return
    building = step_directory / f"{MANIFEST}.new"
    building.write_text(text)
    building.rename(step_directory / MANIFEST)


def exists(step_directory: Any) -> bool:
    return (step_directory / MANIFEST).exists()


def read(step_directory: Any) -> dict[str, Any]:
    """Returns the manifest's values. Raises ValueError that says what is wrong with it."""
    try:
        values = json.loads((step_directory / MANIFEST).read_bytes())
    except OSError as error:
        raise ValueError(f"{MANIFEST} is missing") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{MANIFEST} is damaged") from error
    if not isinstance(values, dict) or values.pop("checksum", None) != _checksum(values):
        raise ValueError(f"{MANIFEST} is damaged")
    if values.get("format") != _FORMAT:
        raise ValueError(f"{MANIFEST} has format {values.get('format')}, not {_FORMAT}")
    files = values.get("files")
    if not isinstance(files, dict) or not all(_is_entry(n, entry) for n, entry in files.items()):
        raise ValueError(f"{MANIFEST} lists its files in a way that nobody writes")
    return values


def problem(step_directory: Any) -> str | None:
    """Returns what is wrong with a step, naming the file; None if every byte is as it was
    written.
    """
    try:
        values = read(step_directory)
    except ValueError as error:
        return str(error)
    if values.get("step") != int(step_directory.name):
        return f"it was saved as step {values.get('step')}"
    for name, expected in values["files"].items():
        try:
            size, crc32 = measure(step_directory / name)
        except OSError as error:
            return f"{name} cannot be read ({error.strerror or type(error).__name__})"
        if size != expected["size"]:
            return f"{name} has {size} bytes instead of {expected['size']}"
        if crc32 != expected["crc32"]:
            return f"{name} is damaged: its checksum is not the manifest's"
    return None


def _is_entry(name: str, entry: Any) -> bool:
    inside = not name.startswith("/") and ".." not in name.split("/")
    return inside and isinstance(entry, dict) and {"size", "crc32"} <= entry.keys()


def _files(directory: Any, prefix: str = "") -> list[tuple[str, Any]]:
    found = []
    for path in directory.iterdir():
        name = f"{prefix}{path.name}"
        if path.is_dir():
            found += _files(path, f"{name}/")
        elif not name.startswith(MANIFEST):
            found.append((name, path))
    return found


def _checksum(values: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(values, sort_keys=True).encode())
