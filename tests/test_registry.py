"""Registries: built-in entries, an unknown name, and entries that a file registers."""

import importlib

import pytest

from bert_jax import registry
from bert_jax.config_loader import execute
from bert_jax.errors import UsageError
from bert_jax.registry import OPTIMIZERS, Registry

_TABLES = {name: table for name, table in vars(registry).items() if isinstance(table, Registry)}


def fruit() -> Registry:
    kinds = {"apple": "json:dumps", "cherry": "json:loads"}
    return Registry("fruit.kind", kinds, object_of="builtins:int")


@pytest.fixture
def tables(monkeypatch):
    """Removes the entries that a test registers."""
    for table in _TABLES.values():
        monkeypatch.setattr(table, "_entries", dict(table._entries))


def test_built_in_names_come_before_registered_ones():
    table = fruit()
    table.register("banana", 3)
    assert table.names() == ["apple", "cherry", "banana"]
    assert "apple" in table and "banana" in table and "date" not in table


def test_a_built_in_entry_is_imported_at_its_first_use():
    import json

    table = fruit()
    assert table["apple"] is json.dumps is table["apple"]
    assert table.names() == ["apple", "cherry"]
    later = Registry("fruit.kind", {"elder": "no.such.module:thing"})
    assert later.names() == ["elder"] and "elder" in later
    with pytest.raises(ModuleNotFoundError):
        later["elder"]


@pytest.mark.parametrize(
    ("name", "hint"), [("aple", " Did you mean 'apple'?"), ("durian-9000", ""), ("", "")]
)
def test_an_unknown_name_is_an_error_with_the_nearest(name, hint):
    with pytest.raises(UsageError) as caught:
        fruit()[name]
    assert f"fruit.kind is {name!r}; choose one of apple, cherry.{hint}" in str(caught.value)
    assert ("Did you mean" in str(caught.value)) == bool(hint)


def test_a_built_in_entry_cannot_be_replaced():
    table = fruit()
    with pytest.raises(UsageError, match=r"fruit\.kind 'apple' is built in; register yours by an"):
        table.register("apple", 1)
    # Also not after it was imported.
    table["apple"]
    with pytest.raises(UsageError, match="is built in"):
        table.register("apple", 1)


_MINE = "from bert_jax.registry import OPTIMIZERS\nOPTIMIZERS.register('mine', lambda config: {})\n"


def test_a_file_that_is_executed_again_replaces_its_entries(tables, tmp_path, monkeypatch):
    path = tmp_path / "mine_again.py"
    monkeypatch.syspath_prepend(tmp_path)
    for number, load in enumerate((execute, execute, lambda _: importlib.import_module(path.stem))):
        path.write_text(_MINE.format(number))
        load(path)
        assert OPTIMIZERS["mine"](None) == number


@pytest.mark.parametrize("name", _TABLES)
def test_register_rejects_an_entry_of_another_type(name):
    table = _TABLES[name]
    for wrong in (3, object()):
        with pytest.raises(UsageError, match=r"'mine' must be an? "):
            table.register("mine", wrong)
    if name != "TRACKERS":  # any class
        with pytest.raises(UsageError, match=r"'mine' must be an? .*, not <class"):
            table.register("mine", type("Mine", (), {"__call__": lambda self, *_, **__: 1}))
    assert "mine" not in table


@pytest.mark.parametrize("name", _TABLES)
def test_built_in_entries_have_the_type_that_register_requires(tables, name):
    table = _TABLES[name]
    for number, builtin in enumerate(table.names()):
        if getattr(table[builtin], "kind", None):  # a section has one kind
            continue
        table.register(f"{builtin}-{number}", table[builtin])
        assert f"{builtin}-{number}" in table.names()


@pytest.mark.parametrize("name", _TABLES)
def test_every_built_in_entry_exists(name):
    table = _TABLES[name]
    assert table.names()
    for builtin in table._builtin:
        assert table[builtin] is not None
