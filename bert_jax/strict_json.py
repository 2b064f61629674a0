"""JSON from outside. Whatever is wrong with a text is a ValueError of one line."""

import json
from pathlib import Path
from typing import Any

from bert_jax.errors import UsageError, brief
from bert_jax.files import read_plain

_REQUIRED: Any = object()


def parse(text: str | bytes) -> Any:
    """Returns the value of a JSON text.

    Raises ValueError for what is no JSON, is nested too deeply or has a number of thousands of
    digits; and for an object with a key twice, of which Python keeps the last without a word.
    """
    try:
        return json.loads(text, object_pairs_hook=_without_repeats)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def load(path: Path, *, default: Any = _REQUIRED) -> Any:
    """Returns the value of a file, or `default` where there is none and that is given.

    Raises UsageError, which names the file, for what is no JSON.
    """
    try:
        text = read_plain(path)
    except FileNotFoundError:
        if default is _REQUIRED:
            raise
        return default
    return parse_file(path, text)


def load_object(path: Path, *, default: Any = _REQUIRED) -> dict[str, Any]:
    """Does as `load`, and raises UsageError for what is no object."""
    found = load(path, default=default)
    if not isinstance(found, dict):
        raise UsageError(f"{path} is damaged: it holds no JSON object")
    return found


def parse_file(path: object, text: str | bytes) -> Any:
    """Returns the value of a file's text. Raises UsageError, which names the file."""
    try:
        return parse(text)
    except ValueError as error:
        raise UsageError(f"{path} is not JSON: {error}") from error


def parse_record(location: str, line: str) -> Any:
    """Returns the value of a line of data, whose keys may be repeated.

    Raises UsageError, which names the location.
    """
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{location}: not JSON ({error})") from error


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        seen: set[str] = set()
        repeated = next(key for key, _ in pairs if key in seen or seen.add(key))
        raise ValueError(f"the key {brief(repeated)} occurs twice in an object")
    return fields
