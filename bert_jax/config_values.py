"""Values of a config as JSON has them, made into what its fields are declared as."""

import dataclasses
import difflib
import types
import typing
from typing import Any

from bert_jax.errors import UsageError, brief


def convert(value: Any, annotation: Any, path: str) -> Any:
    """Returns `value`, as read from JSON, as an instance of `annotation`."""
    where = path or "the config"
    if dataclasses.is_dataclass(annotation) and isinstance(annotation, type):
        if not isinstance(value, dict):
            raise UsageError(f"{where}: expected a section of fields, got {brief(value)}")
        hints = typing.get_type_hints(annotation)
        for key in value:
            if key not in hints:
                raise UsageError(
                    f"{_join(path, brief(key)[1:-1])}: no such field.{nearest(key, hints)}"
                )
        return annotation(**{k: convert(v, hints[k], _join(path, k)) for k, v in value.items()})
    if typing.get_origin(annotation) is tuple:
        if not isinstance(value, list | tuple):
            raise UsageError(f"{where}: expected a list, got {brief(value)}")
        (item,) = [a for a in typing.get_args(annotation) if a is not Ellipsis]
        return tuple(convert(v, item, _join(path, str(i))) for i, v in enumerate(value))
    if isinstance(annotation, types.UnionType):
        if value is None and type(None) in typing.get_args(annotation):
            return None
        (annotation,) = [a for a in typing.get_args(annotation) if a is not type(None)]
    if annotation is int and isinstance(value, float) and value.is_integer():
        value = int(value)  # 1e6 is how people write a million
    if isinstance(value, int) and abs(value) >= 2**63:
        raise UsageError(f"{where}: {brief(value)} does not fit in 64 bits")
    if annotation is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if type(value) is not annotation:
        name = getattr(annotation, "__name__", annotation)
        raise UsageError(f"{where}: expected {name}, got {brief(value)}")
    return value


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def nearest(key: str, names) -> str:
    """Returns what to say after an unknown `key`: the name it resembles, or all there are."""
    close = difflib.get_close_matches(key, list(names), n=1, cutoff=0.5)
    if close:
        return f" Did you mean {close[0]!r}?"
    return f" Fields here: {', '.join(names)}."
