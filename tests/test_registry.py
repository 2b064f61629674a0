"""Tables of what configs name: their names, a wrong name, and entries of one's own."""

import subprocess
import sys

import pytest

from bert_jax import registry
from bert_jax.config.entries import entry
from bert_jax.config.fields import RECIPE, SHAPE, setting
from bert_jax.errors import UsageError
from bert_jax.model.positions import Position
from bert_jax.registry import MASKS, OPTIMIZERS, POSITIONS, SCHEDULES, Registry
from bert_jax.update.schedules import PolynomialDecay

_TABLES = {name: table for name, table in vars(registry).items() if isinstance(table, Registry)}


def fruit() -> Registry:
    return Registry("fruit.kind", {"apple": "json:dumps", "cherry": "json:loads"})


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


def test_a_built_in_entry_cannot_be_replaced_and_a_files_own_can():
    table = fruit()
    with pytest.raises(UsageError, match=r"fruit\.kind 'apple' is built in; register yours by an"):
        table.register("apple", 1)
    # Also not after it was imported.
    table["apple"]
    with pytest.raises(UsageError, match="is built in"):
        table.register("apple", 1)
    # A file that is executed again.
    for number in (1, 2):
        table.register("banana", number)
        assert table["banana"] == number
    assert table.names() == ["apple", "cherry", "banana"]


@entry
class Powered:
    power: float = setting(0.9, RECIPE, "Not that of a schedule.", below=1)

    def __call__(self, *_, **__):
        return self


class Sized(Position):
    @entry
    class Options:
        conv_kernel_size: int = setting(3, SHAPE, "Not that of the mixer.", least=1)


@pytest.mark.parametrize(
    ("table", "of_ones_own", "other"),
    [
        (OPTIMIZERS, Powered, "optimizer.schedule 'polynomial'"),
        (SCHEDULES, Powered, "optimizer.schedule 'polynomial'"),
        (OPTIMIZERS, PolynomialDecay, "optimizer.schedule 'linear'"),
        (POSITIONS, Sized, "model.mixer 'convolution'"),
    ],
)
def test_an_option_of_another_entry_is_refused(tables, table, of_ones_own, other):
    """One value would be both's, and its limits those of either."""
    with pytest.raises(UsageError, match=rf"'mine' has an option \w+, and {other} has another one"):
        table.register("mine", of_ones_own)
    assert "mine" not in table


def test_an_option_that_is_the_same_or_of_another_section_is_accepted(tables):
    MASKS.register("mine", Powered)
    for _ in range(2):  # it is not compared with what it replaces
        SCHEDULES.register("mine", type("Mine", (PolynomialDecay,), {}))


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
