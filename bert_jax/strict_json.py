"""JSON documents: whatever is wrong with a text is one line that names the file."""

import json
from pathlib import Path
from typing import Any

from bert_jax.errors import UsageError, brief
from bert_jax.files import read_plain

_REQUIRED: Any = object()


def parse(text: str | bytes) -> Any:
    """Returns the value of a JSON text.

    Raises ValueError for a text that is not JSON, and for an object with a key twice: Python would
    keep the last value without an error.
    """
    try:
        return json.loads(text, object_pairs_hook=_without_repeats)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {brief(repeated)} occurs twice in an object")
    return fields


def load(path: Path, *, default: Any = _REQUIRED) -> Any:
    """Returns the value of a file, or `default`, if given, if there is no file.

    Raises UsageError, which names the file, for a text that is not JSON.
    """
    try:
        text = read_plain(path)
    except FileNotFoundError:
        if default is _REQUIRED:
            raise
        return default
    return parse_file(path, text)


def load_object(path: Path, *, default: Any = _REQUIRED) -> dict[str, Any]:
    """Does as `load`, and raises UsageError for a value that is not an object."""
    found = load(path, default=default)
    if not isinstance(found, dict):
        raise UsageError(f"{path} is damaged: it holds no JSON object")
    return found


def parse_file(path: object, text: str | bytes) -> Any:
    """Returns the value of a text. Raises UsageError, which names the file or the line."""
    try:
        return parse(text)
    except ValueError as error:
        raise UsageError(f"{path} is not JSON: {error}") from error


def parse_record(location: str, line: str) -> Any:
    """Returns the value of a line of data, which may have a key twice.

    Raises UsageError, which names the location.
    """
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{location}: not JSON ({error})") from error
