"""JSON documents: an error is one line that names the file."""

import json
from pathlib import Path
from typing import Any

from bert_jax.errors import UsageError

_REQUIRED: Any = object()


def parse(text: str | bytes) -> Any:
    """Returns the value of a JSON text. Raises ValueError for a text that is not JSON."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def load(path: Path, *, default: Any = _REQUIRED) -> Any:
    """Returns the value in a file, or `default`, if given, if the file does not exist.

    Raises UsageError, which names the file, if it is not JSON.
    """
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        if default is _REQUIRED:
            raise
        return default
    return parse_file(path, text)


def load_object(path: Path, *, default: Any = _REQUIRED) -> dict[str, Any]:
    """Like `load`, but also raises UsageError for a value that is not an object."""
    found = load(path, default=default)
    if not isinstance(found, dict):
        raise UsageError(f"{path} is damaged: expected a JSON object")
    return found


def parse_file(path: object, text: str | bytes) -> Any:
    """Returns the value of a text. Raises UsageError, which names the file or the line."""
    try:
        return parse(text)
    except ValueError as error:
        raise UsageError(f"{path} is not JSON: {error}") from error
