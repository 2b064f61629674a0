"""Turns configs into plain JSON values and back, with errors that name the field."""

import dataclasses
import json
import types
import typing
from collections.abc import Mapping
from typing import Any

from bert_jax.config import entries
from bert_jax.config.fields import (
    CHANGES,
    OPTIONS,
    WithChanges,
    WithOptions,
    is_section,
    item_of,
    settings_of,
)
from bert_jax.errors import UsageError, brief, did_you_mean


def to_dict(config: Any) -> dict[str, Any]:
    """Returns the plain JSON-able form of any config dataclass; `convert` is its inverse."""
    return json.loads(json.dumps(_plain(config)))


def _plain(value: Any) -> Any:
    """Returns the fields of a dataclass as a dict, options of entries among them."""
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return value
    found = {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, WithOptions):
        found |= {name: _plain(option) for name, option in found.pop(OPTIONS).items()}
    if isinstance(value, WithChanges):
        for path, change in found.pop(CHANGES).items():
            section, _, name = path.partition(".")
            found.setdefault(section, {})[name] = _plain(change)
    return found


def flatten(config: Any) -> dict[str, Any]:
    """Returns `{"model.hidden_size": 768, "phases.0.steps": ...}`: one entry for each leaf.

    `config` is a dataclass, or a value as JSON has it.
    """

    def walk(value, path):
        if isinstance(value, dict):
            for key, child in value.items():
                yield from walk(child, f"{path}.{key}" if path else key)
        elif isinstance(value, list):
            for i, child in enumerate(value):
                yield from walk(child, f"{path}.{i}")
        else:
            yield path, value

    return dict(walk(to_dict(config) if dataclasses.is_dataclass(config) else config, ""))


def convert(value: Any, annotation: Any, path: str) -> Any:
    """Returns `value`, as read from JSON, as an instance of `annotation`."""
    where = path or "the config"
    if is_section(annotation):
        if not isinstance(value, dict):
            raise UsageError(f"{where}: expected a section of fields, got {brief(value)}")
        hints = typing.get_type_hints(annotation)
        # Neither is a field: what they hold is.
        others = (OPTIONS, CHANGES)
        hints = {n: h for n, h in hints.items() if n not in others and not _is_of_class(h)}
        known = {k: convert(v, hints[k], _join(path, k)) for k, v in value.items() if k in hints}
        more = {k: v for k, v in value.items() if k not in hints}
        if issubclass(annotation, WithOptions):
            known[OPTIONS] = _options(annotation, known, more, path)
        if issubclass(annotation, WithChanges):
            known[CHANGES] = _changes(annotation, more, path)
            hints |= annotation.sections
        for key in more:
            raise UsageError(
                f"{_join(path, brief(key)[1:-1])}: no such field.{nearest(key, hints)}"
            )
        return annotation(**known)
    if typing.get_origin(annotation) is tuple:
        if not isinstance(value, list | tuple):
            raise UsageError(f"{where}: expected a list, got {brief(value)}")
        item = item_of(annotation)
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


def _options(
    cls: type, values: Mapping[str, Any], more: dict[str, Any], path: str
) -> dict[str, Any]:
    """Takes from `more` the options of the entries that a section with such `values` chooses, and
    returns them with the defaults of those that are not given.

    An option of an entry that is not chosen is dropped if it has its default: `override` may have
    chosen another entry. Raises UsageError if it has another value.
    """
    options: dict[str, Any] = {}
    for name, described, owner in entries.settings_chosen(cls, values):
        if name in settings_of(cls):
            raise UsageError(f"{_join(path, name)}: an option of an entry has the name of a field")
        hint = typing.get_type_hints(owner)[name]
        given = name in more
        options[name] = (
            convert(more.pop(name), hint, _join(path, name)) if given else described.default
        )
    if entries.is_open(cls, values):  # a file that has not been executed may say more
        options |= more
        more.clear()
    for name in list(more):
        described, field, readers = entries.owners(cls, name)
        if described is None:
            continue
        value = more.pop(name)
        if value != described.default:
            chosen = values.get(field, getattr(cls, field))
            raise UsageError(
                f"{_join(path, name)} is {brief(value)}, which {field} {chosen} does not read: "
                f"only {', '.join(readers)}"
            )
    return options


def _changes(cls: type[WithChanges], more: dict[str, Any], path: str) -> dict[str, Any]:
    """Takes from `more` what a section changes of others, and returns it by dotted path.

    What is no field there may be an option, which is known once the section is changed.
    """
    changes: dict[str, Any] = {}
    for name, section in cls.sections.items():
        values, hints = more.pop(name, {}), typing.get_type_hints(section)
        if not isinstance(values, dict):
            raise UsageError(
                f"{_join(path, name)}: expected a section of fields, got {brief(values)}"
            )
        for key, value in values.items():
            where = f"{_join(path, name)}.{key}"
            is_field = key in settings_of(section)
            changes[f"{name}.{key}"] = convert(value, hints[key], where) if is_field else value
    return changes


def changed(config: Any, changes: Mapping[str, Any], where: str = "") -> Any:
    """Returns a config with other values at some paths of two names. An entry that is chosen no
    longer takes its options with it.

    `where` is what errors put before a path. Raises UsageError for no field, and another type.
    """
    sections: dict[str, dict[str, Any]] = {}
    for path, value in changes.items():
        section, _, name = path.partition(".")
        sections.setdefault(section, {})[name] = value
    found = {}
    for name, values in sections.items():
        section = getattr(config, name)
        old = to_dict(section)
        for chooser in values:
            if values[chooser] != getattr(section, chooser, None):
                for option in entries.own_options(section, chooser):
                    old.pop(option, None)
        found[name] = convert(old | values, type(section), _join(where, name))
    return dataclasses.replace(config, **found)


def _is_of_class(annotation: Any) -> bool:
    """Returns whether an annotation is of what a class has, and its objects have not each."""
    return typing.get_origin(annotation) is typing.ClassVar


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def nearest(key: str, names) -> str:
    """Returns what to say after an unknown `key`: the name it resembles, or all there are."""
    return did_you_mean(key, names, cutoff=0.5) or f" Fields here: {', '.join(names)}."
