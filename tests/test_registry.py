"""Tables of what configs name: their names, a wrong name, and entries of one's own."""

import subprocess
import sys

import pytest

from bert_jax import registry
from bert_jax.errors import UsageError
from bert_jax.registry import Registry

_TABLES = {name: table for name, table in vars(registry).items() if isinstance(table, Registry)}


def fruit() -> Registry:
    return Registry("fruit.kind", {"apple": "json:dumps", "cherry": "json:loads"})


def test_names_are_the_built_in_ones_and_then_those_of_files():
    table = fruit()
    table.register("banana", 3)
    assert table.names() == ["apple", "cherry", "banana"]
    assert "apple" in table and "banana" in table and "date" not in table


def test_a_built_in_entry_is_imported_when_it_is_asked_for():
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


def test_the_nearest_may_be_a_files_own():
    table = fruit()
    table.register("banana", 3)
    with pytest.raises(UsageError, match="Did you mean 'banana'"):
        table["bananas"]


def test_a_built_in_entry_cannot_be_replaced_and_a_files_own_can():
    table = fruit()
    with pytest.raises(UsageError, match=r"fruit\.kind 'apple' is built in; register yours by an"):
        table.register("apple", 1)
    # Also not after it was imported.
    table["apple"]
    with pytest.raises(UsageError, match="is built in"):
        table.register("apple", 1)
    # A file that is executed again.
    for entry in (1, 2):
        table.register("banana", entry)
        assert table["banana"] == entry
    assert table.names() == ["apple", "cherry", "banana"]


@pytest.mark.parametrize("name", _TABLES)
def test_every_built_in_entry_is_there(name):
    table = _TABLES[name]
    assert table.names()
    for entry in table._builtin:
        assert table[entry] is not None


def test_the_tables_cost_nothing():
    """A config is read in an instant: nothing of what they list is imported."""
    code = (
        "import sys, bert_jax.registry, bert_jax.config\n"
        "found = {'jax', 'flax', 'numpy', 'optax'} & set(sys.modules)\n"
        "assert not found, found"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
