"""Tables of what configs name: their names, a wrong name, and entries of one's own."""

import importlib
import subprocess
import sys

import pytest

from bert_jax import registry
from bert_jax.config_loader import execute
from bert_jax.errors import UsageError
from bert_jax.registry import OPTIMIZERS, SCHEDULES, Registry

_TABLES = {name: table for name, table in vars(registry).items() if isinstance(table, Registry)}


def fruit() -> Registry:
    kinds = {"apple": "json:dumps", "cherry": "json:loads"}
    return Registry("fruit.kind", kinds, object_of="builtins:int")


@pytest.fixture
def tables(monkeypatch):
    """The tables, which are as they were when the test has ended."""
    for table in _TABLES.values():
        monkeypatch.setattr(table, "_entries", dict(table._entries))


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


def test_a_built_in_entry_cannot_be_replaced():
    table = fruit()
    with pytest.raises(UsageError, match=r"fruit\.kind 'apple' is built in; register yours by an"):
        table.register("apple", 1)
    # Also not after it was imported.
    table["apple"]
    with pytest.raises(UsageError, match="is built in"):
        table.register("apple", 1)


_MINE = "from bert_jax.registry import OPTIMIZERS\nOPTIMIZERS.register('mine', lambda config: {})\n"


def test_a_file_that_is_executed_again_replaces_its_own(tables, tmp_path, monkeypatch):
    path = tmp_path / "mine_again.py"
    monkeypatch.syspath_prepend(tmp_path)
    for number, load in enumerate(
        (
            lambda: execute(path),
            lambda: execute(path),
            lambda: execute(tmp_path / ".." / tmp_path.name / path.name),
            lambda: importlib.import_module(path.stem),
            lambda: importlib.reload(sys.modules[path.stem]),
        )
    ):
        path.write_text("\n" * number + _MINE.format(number))
        load()
        assert OPTIMIZERS["mine"](None) == number
    # A cell of a notebook, and a statement that is executed again.
    notebook = {}
    for number in (1, 2):
        exec("\n" * number + _MINE.format(number).replace("mine", "cell"), notebook)
        SCHEDULES.register("mine", lambda step, number=number: number)
        assert SCHEDULES["mine"](0) == OPTIMIZERS["cell"](None) == number


def test_a_name_of_another_file_is_refused(tables, tmp_path):
    first, second = tmp_path / "first.py", tmp_path / "second.py"
    first.write_text(_MINE)
    second.write_text("\n" + _MINE)
    execute(first)
    taken = rf"optimizer.kind 'mine' is registered by {first}; register yours by another"
    with pytest.raises(UsageError, match=taken):
        execute(second)


@pytest.mark.parametrize("name", _TABLES)
def test_an_entry_of_another_kind_is_refused_where_it_is_registered(name):
    table = _TABLES[name]
    for wrong in (3, object()):
        with pytest.raises(UsageError, match=r"'mine' must be an? "):
            table.register("mine", wrong)
    if name != "TRACKERS":  # any class
        with pytest.raises(UsageError, match=r"'mine' must be an? .*, not <class"):
            table.register("mine", type("Mine", (), {"__call__": lambda self, *_, **__: 1}))
    assert "mine" not in table


@pytest.mark.parametrize("name", _TABLES)
def test_the_built_in_entries_are_of_the_kind_that_is_asked_for(tables, name):
    table = _TABLES[name]
    for number, builtin in enumerate(table.names()):
        if getattr(table[builtin], "kind", None):  # a section has one kind
            continue
        table.register(f"{builtin}-{number}", table[builtin])
        assert f"{builtin}-{number}" in table.names()


@pytest.mark.parametrize("name", _TABLES)
def test_every_built_in_entry_is_there(name):
    table = _TABLES[name]
    assert table.names()
    for builtin in table._builtin:
        assert table[builtin] is not None


def test_the_tables_cost_nothing():
    """A config is read in an instant: nothing of what they list is imported."""
    code = (
        "import sys, bert_jax.registry, bert_jax.config\n"
        "found = {'jax', 'flax', 'numpy', 'optax'} & set(sys.modules)\n"
        "assert not found, found"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
