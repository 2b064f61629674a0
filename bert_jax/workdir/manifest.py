"""A step's manifest: the size and MD5 of each file, so that no run resumes from damaged bytes.

Orbax restores flipped bits without an error. Therefore each committed step gets `manifest.json`,
written last. A directory without a manifest is not a step: its save was interrupted, or it was
changed.

MD5, because a bucket reports it for each object, so that neither writing nor verifying a manifest
reads a file there. CRC-32C, which a bucket also reports, cannot distinguish files of tensorstore:
they end with their own CRC-32C, which makes the CRC-32C of the whole file constant.
"""

import hashlib
import json
import time
from pathlib import Path
from typing import Any

from bert_jax.files import inside
from bert_jax.runtime import network
from bert_jax.workdir import storage
from bert_jax.workdir.storage import Object, is_address

MANIFEST = "manifest.json"
_FORMAT = 2


def write(step_directory: Any) -> None:
    """Writes the sizes and checksums of all files under `step_directory` (an `epath.Path`)."""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    entry: dict[str, Any] = {"format": _FORMAT, "step": int(step_directory.name), "saved_at": now}
    described = {}
    for name, known in sorted(_files(step_directory).items()):
        if known.md5 is None:
            known = _measured(step_directory / name)
        described[name] = {"size": known.size, "md5": known.md5}
    entry["files"] = described
    text = json.dumps(entry | {"checksum": _checksum(entry)}, indent=1)
    # Atomic: an object appears when it is complete, a file when it is renamed.
    building = step_directory / (MANIFEST if is_address(step_directory) else f"{MANIFEST}.new")
    building.write_text(text)
    if building.name != MANIFEST:
        building.rename(step_directory / MANIFEST)


def exists(step_directory: Any) -> bool:
    return (step_directory / MANIFEST).exists()


def read(step_directory: Any) -> dict[str, Any]:
    """Returns the manifest's values. Raises ValueError if it is missing or damaged."""
    try:
        text = (step_directory / MANIFEST).read_bytes()
    except OSError as error:
        _raise_unless_missing(step_directory, error)
        raise ValueError(f"{MANIFEST} is missing") from error
    try:
        values = json.loads(text)
        checksum = values.pop("checksum")
    except (ValueError, RecursionError, AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"{MANIFEST} is damaged") from error
    if checksum != _checksum(values):
        raise ValueError(f"{MANIFEST} is damaged")
    if values.get("format") != _FORMAT:
        raise ValueError(f"{MANIFEST} has format {values.get('format')}, not {_FORMAT}")
    for name in values["files"]:
        inside(step_directory, name)
    return values


def problem(step_directory: Any) -> str | None:
    """Returns the problem of a step with the file name; None if every byte is unchanged.

    Raises network errors: the step may be good.
    """
    try:
        values = read(step_directory)
    except ValueError as error:
        return str(error)
    if values.get("step") != int(step_directory.name):
        return f"it was saved as step {values.get('step')}"
    reported = storage.objects(step_directory) if is_address(step_directory) else {}
    for name, expected in values["files"].items():
        found = reported.get(name)
        try:
            if found is None or found.md5 is None:
                found = _measured(step_directory / name)
        except OSError as error:
            _raise_unless_missing(step_directory, error)
            return f"{name} cannot be read ({error.strerror or type(error).__name__})"
        if found.size != expected["size"]:
            return f"{name} has {found.size} bytes instead of {expected['size']}"
        if found.md5 != expected["md5"]:
            return f"{name} is damaged: its checksum differs from the manifest"
    return None


def _raise_unless_missing(step_directory: Any, error: OSError) -> None:
    """Raises network and permission errors, which do not mean a missing or damaged file."""
    in_bucket = is_address(step_directory) and not isinstance(error, FileNotFoundError)
    if in_bucket or network.is_transient(error):
        raise error


def _files(step_directory: Any) -> dict[str, Object]:
    """Returns the files of a step except its manifest, with the metadata that a bucket reports."""
    if is_address(step_directory):
        found = storage.objects(step_directory)
    else:
        root = Path(step_directory)
        paths = [path for path in root.rglob("*") if path.is_file()]
        found = {str(path.relative_to(root)): Object(0, None) for path in paths}
    return {name: known for name, known in found.items() if not name.startswith(MANIFEST)}


def _measured(path: Any) -> Object:
    """Returns the size and the MD5 of a file by reading it."""
    size, md5 = 0, hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            size += len(chunk)
            md5.update(chunk)
    return Object(size, md5.hexdigest())


def _checksum(values: dict[str, Any]) -> str:
    text = json.dumps(values, sort_keys=True).encode()
    return hashlib.md5(text, usedforsecurity=False).hexdigest()
