"""Options of entries: what an entry of a table reads beside the fields of its section.

An entry that has options is a frozen dataclass (`entry`), whose fields are settings like those of a
section; a kind of position, which is a module, has such a class inside it, by the name `Options`.
In JSON, and for `--set`, an option lies beside the field that chooses the entry: of
`{"kind": "muon", "momentum": 0.95}` the momentum is Muon's. In Python it is in `options` of the
section: `OptimizerConfig(kind="muon", options={"momentum": 0.95})`.
"""

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from typing import Any

from bert_jax.config.fields import Setting, WithOptions, section, settings_of
from bert_jax.registry import Registry, declared, is_made

entry = section


def entry_of(config: WithOptions, name: str) -> Any:
    """Returns the entry that a field of a section names, made with its options if it has any.

    Raises UsageError if no table has it.
    """
    found = _tables(type(config))[name][getattr(config, name)]
    return options_of(config, found) if is_made(found) else found


def options_of(config: WithOptions, found: Any) -> Any:
    """Returns the options of an entry, as its class declares them: those that `config` has, the
    others by default.
    """
    cls = declared(found)
    names = settings_of(cls)
    return cls(**{name: value for name, value in config.options.items() if name in names})


def own_options(config: WithOptions, name: str) -> dict[str, Any]:
    """Returns the options of the entry that a field names; none for a field that names none. If no
    table has the entry, they are the stored ones that no other entry has.
    """
    table, value = _tables(type(config)).get(name), getattr(config, name, "")
    if table is not None and value not in table:
        known = {option for option, *_ in settings_chosen(type(config), vars(config))}
        return {n: option for n, option in config.options.items() if n not in known}
    if table is None or declared(table[value]) is None:
        return {}
    return dataclasses.asdict(options_of(config, table[value]))


def all_options(cls: type) -> Iterator[tuple[str, str, str, Setting]]:
    """Yields the options of all entries that a section may choose: field, entry, name, setting. All
    entries are imported for it.
    """
    for field, table in _tables(cls).items():
        for value in table.names():
            for name, each, _ in _settings(table[value]):
                yield field, value, name, each


def settings_chosen(cls: type, values: Mapping[str, Any]) -> Iterator[tuple[str, Setting, type]]:
    """Yields the options of the entries that a section with such `values` chooses: the name, what
    it says about itself, and the class that declares it.

    A built-in default has none: it is not looked up, with all that it imports.
    """
    for name, table in _tables(cls).items():
        value = values.get(name)
        if value is not None and value != getattr(cls, name) and value in table:
            yield from _settings(table[value])


def owners(cls: type, option: str) -> tuple[Setting | None, str, list[str]]:
    """Returns what an option says about itself, the field that chooses its entries, and these; none
    for no option. All entries are imported for it.
    """
    found = [(s, field, value) for field, value, name, s in all_options(cls) if name == option]
    if not found:
        return None, "", []
    setting, field, _ = found[0]
    return setting, field, [value for _, by, value in found if by == field]


def is_open(cls: type, values: Mapping[str, Any]) -> bool:
    """Returns whether a section with such `values` chooses an entry that no table has yet."""
    chosen = ((values.get(name), table) for name, table in _tables(cls).items())
    return any(value is not None and value not in table for value, table in chosen)


@functools.cache
def _tables(cls: type) -> Mapping[str, Registry]:
    """Returns the fields of a section that name one entry of a table, with the table."""
    return {
        name: each.choices
        for name, each in settings_of(cls).items()
        if each is not None and isinstance(each.choices, Registry) and isinstance(each.default, str)
    }


def _settings(found: Any) -> Iterator[tuple[str, Setting, type]]:
    cls = declared(found)
    for name, each in settings_of(cls).items() if cls else ():
        if each is not None:
            yield name, each, cls
