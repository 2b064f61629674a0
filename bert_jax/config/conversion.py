"""Turns configs into JSON values and back, with errors that name the field."""

import dataclasses
import keyword
import math
from collections.abc import Iterator, Mapping
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


def from_dict(values: Any, cls: Any, path: str = "", *, base: Any = None) -> Any:
    """Returns a section of class `cls` from its JSON form.

    Options that it does not name have their defaults, or the values of the section `base`. With a
    base, a dict of numbers replaces items of a tuple. Raises UsageError for an unknown field, a
    value of another type and a value out of its limits. A kind that no registry has is accepted
    with any options: the run of a file with its own entries can be read without the file.
    """
    if is_kind(cls):
        cls, values = _kind_of(values, cls, path, base)
    if not isinstance(values, dict):
        raise UsageError(
            f"{path or 'the config'}: expected a section of fields, got {brief(values)}"
        )
    declared, found = fields_of(cls), {}
    if base is not None:
        found = {name: getattr(base, name) for name in fields_of(type(base)) if name in declared}
    for name, value in values.items():
        if name not in declared:
            raise UsageError(f"{join(path, brief(name)[1:-1])}: no such field.{_hint(name, cls)}")
        found[name] = _value(value, declared[name], join(path, name), found.get(name))
    return cls(**found)


def _kind_of(value: Any, union: type[Kind], path: str, base: Any) -> tuple[type[Kind], Any]:
    """Returns the class of a member of a tagged union, and its fields."""
    values = {"kind": value} if isinstance(value, str) else value
    if not isinstance(values, dict):
        raise UsageError(f"{path}: expected a kind or a section of fields, got {brief(value)}")
    rest = {name: each for name, each in values.items() if name != "kind"}
    name = values.get("kind", union.default_kind if base is None else base.kind)
    if not isinstance(name, str) or not name:
        raise UsageError(f"{path}: expected the name of a kind, got {brief(name)}")
    if base is not None and name == base.kind:
        return type(base), rest
    if name in union.table:
        return union.of_kind(name), rest
    for option in rest:
        if not option.isidentifier() or keyword.iskeyword(option):
            raise UsageError(f"{join(path, brief(option)[1:-1])}: not the name of an option")
    options = {n: tuple(v) if isinstance(v, list) else v for n, v in rest.items()}
    return union.made(name, tuple(n for n in options if n not in fields_of(union))), options


def _value(value: Any, field: OptionField, path: str, base: Any) -> Any:
    if value is None and field.is_optional:
        return None
    is_tuple = field.item is not field.annotation
    if is_tuple and isinstance(base, tuple) and isinstance(value, dict):
        return _with_items(base, value, field.item, path)
    if not is_section(field.item):
        return _checked(value, field.annotation, path)
    if not is_tuple:
        return from_dict(value, field.item, path, base=base)
    if not isinstance(value, list | tuple):
        raise UsageError(f"{path}: expected a list, got {brief(value)}")
    return tuple(from_dict(v, field.item, f"{path}.{i}") for i, v in enumerate(value))


def _with_items(old: tuple[Any, ...], values: dict[str, Any], cls: Any, path: str) -> Any:
    """Returns a tuple of `cls` with other values of the items that `values` numbers."""
    fields = fields_of(cls) if is_section(cls) else {}
    if named := [name for name in values if name in fields]:
        if len(old) != 1:
            raise UsageError(
                f"{path}.{named[0]}: the config has {len(old)} {path}, so write "
                f"{path}.0.{named[0]}=VALUE, one for each"
            )
        values = {"0": values}
    known, items = [str(number) for number in range(len(old))], [*old]
    for number, value in values.items():
        if number not in known:
            there = f"items 0 to {len(old) - 1}" if old else "no items"
            near = did_you_mean(number, fields)
            raise UsageError(f"{path} has {there}, not {brief(number)}.{near}".rstrip("."))
        at, item = int(number), OptionField(cls, cls)
        items[at] = _value(value, item, f"{path}.{number}", old[at])
    return tuple(items)


def _checked(value: Any, annotation: Any, path: str) -> Any:
    """Returns a value as an option of a type."""
    if annotation is Any:
        return value
    is_int = getattr(annotation, "__origin__", annotation) is int
    if is_int and isinstance(value, float) and value.is_integer():
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


def _hint(name: str, cls: Any) -> str:
    """Returns what to write for an unknown field: the kinds that have it, the nearest name, or all
    names.
    """
    names = [*fields_of(cls)]
    if is_kind(cls):
        names = ["kind", *names]
        kinds = [k for k in cls.table.names() if name in fields_of(cls.of_kind(k))]
        if kinds:
            return f" It is an option of kind {' or '.join(kinds)}, not of {cls.kind}."
    return did_you_mean(name, names, cutoff=0.5) or f" Fields here: {', '.join(names)}."


def leaves(section: Any, path: str = "") -> Iterator[tuple[str, Any, OptionField]]:
    """Yields path, value and field of each option in a section.

    The field of a tag (`optimizer.kind`) is the field of its section (`optimizer`).
    """
    for name, field in fields_of(type(section)).items():
        value, at = getattr(section, name), join(path, name)
        items = [(at, value)]
        if isinstance(value, tuple):
            items = [(f"{at}.{number}", item) for number, item in enumerate(value)]
        for at, item in items:
            if isinstance(item, Kind):
                yield f"{at}.kind", item.kind, field
            if is_section(type(item)):
                yield from leaves(item, at)
            else:
                yield at, item, field


def flatten(section: Any) -> dict[str, Any]:
    """Returns `{"model.hidden_size": 768, "phases.0.steps": ...}`, one item for each option."""
    return {path: value for path, value, _ in leaves(section)}


def flat_values(values: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the dotted path and the value of each leaf of nested JSON values."""
    if isinstance(values, dict | list | tuple):
        for name, value in values.items() if isinstance(values, dict) else enumerate(values):
            yield from flat_values(value, join(path, str(name)))
    else:
        yield path, values


def paths_of(section: Any, name: str) -> list[str]:
    """Returns the paths of the options with a name."""
    return [path for path in flatten(section) if path.rpartition(".")[2] == name]


def unknown_names(section: Any) -> Iterator[tuple[str, str]]:
    """Yields the path of each name in a section that its registry does not have, and a message."""
    for path, value, field in leaves(section):
        if field.choices and value is not None and value not in field.choices:
            yield path.rstrip(".0123456789"), field.choices.problem(value)


def replaced(config: Any, changes: Mapping[str, Any]) -> Any:
    """Returns a config with other values at dotted paths: `{"model.rope_theta": 160_000.0}`."""
    for path, value in changes.items():
        name, _, rest = path.partition(".")
        inner = replaced(getattr(config, name), {rest: value}) if rest else value
        config = dataclasses.replace(config, **{name: inner})
    return config


def join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
