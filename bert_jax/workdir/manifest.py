"""A step's manifest: what its files must be, so that a damaged checkpoint is never trained on.

Orbax restores flipped bits without a word. So each committed step gets `manifest.json`, written
last: size and checksum of every file, and what the step belongs to. A directory without one is not
a step: either its save was cut off, or it has been tampered with.

On a disk the checksum is a CRC-32, for which every byte is read. A bucket says size, CRC-32C and
MD5 of each object itself, so there nothing is read: neither for writing a manifest nor for
comparing.
"""

import json
import time
from typing import Any

from bert_jax.files import checksum_of, inside, measure, measure_as_bucket
from bert_jax.runtime import network
from bert_jax.workdir import bucket
from bert_jax.workdir.bucket import is_address

MANIFEST = "manifest.json"
_FORMAT = 1


def write(step_directory: Any, **facts: Any) -> None:
    """Describes every file under `step_directory` (an `epath.Path`); `facts` go in as they are."""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    entry = {"format": _FORMAT, "step": int(step_directory.name), "saved_at": now, **facts}
    entry["files"] = _described(step_directory)
    text = json.dumps(entry | {"checksum": checksum_of(entry)}, indent=1)
    # Whole or not at all: on a disk by the rename, in a bucket since objects appear when complete.
    if is_address(step_directory):
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
        text = (step_directory / MANIFEST).read_bytes()
    except OSError as error:
        _raise_if_elsewhere(step_directory, error)
        raise ValueError(f"{MANIFEST} is missing") from error
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{MANIFEST} is damaged") from error
    if not isinstance(values, dict) or values.pop("checksum", None) != checksum_of(values):
        raise ValueError(f"{MANIFEST} is damaged")
    if values.get("format") != _FORMAT:
        raise ValueError(f"{MANIFEST} has format {values.get('format')}, not {_FORMAT}")
    files = values.get("files")
    if not isinstance(files, dict) or not all(map(_is_entry, files.values())):
        raise ValueError(f"{MANIFEST} has invalid file entries")
    for name in files:
        inside(step_directory, name)
    return values


def problem(step_directory: Any) -> str | None:
    """Returns what is wrong with a step, naming the file; None if every byte is as it was written.

    A failure of the network is raised: it is nothing wrong with a step.
    """
    try:
        values = read(step_directory)
    except ValueError as error:
        return str(error)
    if values.get("step") != int(step_directory.name):
        return f"it was saved as step {values.get('step')}"
    there = bucket.objects(step_directory) if is_address(step_directory) else {}
    for name, expected in values["files"].items():
        try:
            known = there.get(name)
            if known is not None and known.checksums.keys() & expected.keys():
                found = {"size": known.size, **known.checksums}
            else:
                kind = "crc32" if "crc32" in expected else "crc32c"
                found = _measured(step_directory / name, kind)
        except OSError as error:
            _raise_if_elsewhere(step_directory, error)
            return f"{name} cannot be read ({error.strerror or type(error).__name__})"
        if found["size"] != expected["size"]:
            return f"{name} has {found['size']} bytes instead of {expected['size']}"
        if any(found[kind] != expected[kind] for kind in found.keys() & expected.keys()):
            return f"{name} is damaged: its checksum is not the manifest's"
    return None


def _raise_if_elsewhere(step_directory: Any, error: OSError) -> None:
    """Raises what a file that is missing or damaged does not explain: the network, a refusal."""
    in_bucket = is_address(step_directory) and not isinstance(error, FileNotFoundError)
    if in_bucket or network.is_transient(error):
        raise error


def _described(step_directory: Any) -> dict[str, dict[str, Any]]:
    """Returns size and checksum of every file, by name."""
    if not is_address(step_directory):
        return {name: _measured(path, "crc32") for name, path in sorted(_files(step_directory))}
    return {
        name: {"size": known.size, **known.checksums}
        if known.checksums
        else _measured(step_directory / name, "crc32c")
        for name, known in sorted(bucket.objects(step_directory).items())
        if not name.startswith(MANIFEST)
    }


def _measured(path: Any, kind: str) -> dict[str, Any]:
    """Returns size and checksums of one file, which is read."""
    if kind == "crc32":
        return dict(zip(("size", kind), measure(path), strict=True))
    size, checksums = measure_as_bucket(path)
    return {"size": size, **checksums}


def _is_entry(entry: Any) -> bool:
    if not isinstance(entry, dict) or type(entry.get("size")) is not int:
        return False
    return not entry.keys().isdisjoint(("crc32", "crc32c"))


def _files(directory: Any, prefix: str = "") -> list[tuple[str, Any]]:
    found = []
    for path in directory.iterdir():
        name = f"{prefix}{path.name}"
        if path.is_dir():
            found += _files(path, f"{name}/")
        elif not name.startswith(MANIFEST):
            found.append((name, path))
    return found
