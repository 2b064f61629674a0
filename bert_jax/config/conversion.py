"""Turns configs into JSON values and back, with errors that name the field."""

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from bert_jax.config.fields import Kind, OptionField, choices_of, fields_of, is_kind, is_section
from bert_jax.errors import UsageError, brief, did_you_mean


def to_dict(value: Any) -> Any:
    """Returns the JSON form of a section; `from_dict` is its inverse."""
    if isinstance(value, tuple | list):
        return [to_dict(item) for item in value]
    if not is_section(type(value)):
        return value
    tag = {"kind": value.kind} if isinstance(value, Kind) else {}
    return tag | {f.name: to_dict(getattr(value, f.name)) for f in dataclasses.fields(value)}


def flatten(config: Any) -> dict[str, Any]:
    """Returns `{"model.hidden_size": 768, "phases.0.steps": ...}`, one item for each leaf.

    `config` is a section or its JSON form.
    """

    def walk(value: Any, path: str) -> Iterable[tuple[str, Any]]:
        if isinstance(value, dict | list):
            items = value.items() if isinstance(value, dict) else enumerate(value)
            for key, child in items:
                yield from walk(child, join(path, str(key)))
        else:
            yield path, value

    return dict(walk(to_dict(config), ""))


def from_dict(values: Any, cls: Any, path: str = "") -> Any:
    """Returns a section of class `cls` from its JSON form.

    Raises UsageError for an unknown field, a value of another type and a value out of its limits.
    A kind that no registry has is accepted with any options: the run of a file with its own
    entries can be read without the file.
    """
    if is_kind(cls):
        cls, values = _kind_of(values, cls, path)
    if not isinstance(values, dict):
        raise UsageError(
            f"{path or 'the config'}: expected a section of fields, got {brief(values)}"
        )
    declared, found = fields_of(cls), {}
    for name, value in values.items():
        if name not in declared:
            raise UsageError(f"{join(path, brief(name)[1:-1])}: no such field.{_hint(name, cls)}")
        found[name] = _value(value, declared[name], join(path, name))
    return cls(**found)


def _kind_of(value: Any, base: type[Kind], path: str) -> tuple[type[Kind], Any]:
    """Returns the class of a member of a tagged union, and its fields."""
    values = {"kind": value} if isinstance(value, str) else value
    if not isinstance(values, dict):
        raise UsageError(f"{path}: expected a kind or a section of fields, got {brief(value)}")
    rest = {name: each for name, each in values.items() if name != "kind"}
    name = values.get("kind", base.default_kind)
    if not isinstance(name, str) or not name:
        raise UsageError(f"{path}: expected the name of a kind, got {brief(name)}")
    if name in base.table:
        return base.of_kind(name), rest
    options = {n: tuple(v) if isinstance(v, list) else v for n, v in rest.items()}
    return base.unregistered(name, tuple(n for n in options if n not in fields_of(base))), options


def _value(value: Any, field: OptionField, path: str) -> Any:
    if value is None and field.is_optional:
        return None
    is_tuple = field.item is not field.annotation
    if is_section(field.item):
        if not is_tuple:
            return from_dict(value, field.item, path)
        if not isinstance(value, list | tuple):
            raise UsageError(f"{path}: expected a list, got {brief(value)}")
        return tuple(from_dict(v, field.item, f"{path}.{i}") for i, v in enumerate(value))
    return checked(value, field.annotation, path)


def checked(value: Any, annotation: Any, path: str) -> Any:
    """Returns a value as an option of a type. Raises UsageError, which names the path."""
    if annotation is Any:
        return value
    if isinstance(value, float) and value.is_integer() and _is_int(annotation):
        value = int(value)  # 1e6
    try:
        found = msgspec.convert(value, annotation)
    except (msgspec.ValidationError, UnicodeEncodeError) as error:
        text = str(error).replace("`", "").replace("Expected", "expected")
        if names := choices_of(annotation):
            hint = did_you_mean(str(value), names)
            text = f"expected one of {', '.join(names)}, got {brief(value)}.{hint}"
        got = "" if "got" in text else f", got {brief(value)}"
        raise UsageError(f"{path}: {text}{got}") from error
    for item in found if isinstance(found, tuple) else (found,):
        if isinstance(item, int) and abs(item) >= 2**63:
            raise UsageError(f"{path}: {brief(item)} does not fit in 64 bits")
        if isinstance(item, float) and not math.isfinite(item):
            raise UsageError(f"{path} is {item}; it must be finite")
    return found


def _is_int(annotation: Any) -> bool:
    return getattr(annotation, "__origin__", annotation) is int


def unknown_names(section: Any, prefix: str = "") -> Iterable[tuple[str, str]]:
    """Yields the path of each name in a section that its registry does not have, and a message."""
    if isinstance(section, Kind) and section.kind not in section.table:
        yield f"{prefix}kind", section.table.problem(section.kind)
    for name, field in fields_of(type(section)).items():
        value = getattr(section, name)
        for i, item in enumerate(value if isinstance(value, tuple) else (value,)):
            if is_section(type(item)):
                number = f".{i}" if isinstance(value, tuple) else ""
                yield from unknown_names(item, f"{prefix}{name}{number}.")
            elif field.choices and item not in field.choices:
                yield f"{prefix}{name}", field.choices.problem(item)


def _hint(name: str, cls: Any) -> str:
    """Returns what to write for an unknown field: the nearest name, or the kinds that have it."""
    if is_kind(cls):
        kinds = [k for k in cls.table.names() if name in fields_of(cls.of_kind(k))]
        if kinds:
            return f" It is an option of kind {' or '.join(kinds)}, not of {cls.kind}."
    return nearest(name, ["kind", *fields_of(cls)] if is_kind(cls) else fields_of(cls))


def nearest(name: str, names: Iterable[str]) -> str:
    """Returns what to write after an unknown name: the nearest of the names, or all of them."""
    names = list(names)
    return did_you_mean(name, names, cutoff=0.5) or f" Fields here: {', '.join(names)}."


def replaced(config: Any, changes: Mapping[str, Any]) -> Any:
    """Returns a config with other values at dotted paths: `{"model.rope_theta": 160_000.0}`."""
    found: dict[str, Any] = {}
    nested: dict[str, dict[str, Any]] = {}
    for path, value in changes.items():
        name, _, rest = path.partition(".")
        if rest:
            nested.setdefault(name, {})[rest] = value
        else:
            found[name] = value
    for name, inner in nested.items():
        found[name] = replaced(getattr(config, name), inner)
    return dataclasses.replace(config, **found) if found else config


def join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
