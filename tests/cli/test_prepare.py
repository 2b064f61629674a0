"""The help of `prepare` beside the function that it calls."""

import inspect
import re

import pytest

from bert_jax.cli.training.prepare import PrepareOptions
from bert_jax.data.corpus.prepare import prepare
from tests.paths import ROOT

_HELP = (ROOT / "bert_jax" / "cli" / "training" / "prepare.py").read_text(encoding="utf-8")
# What was not typed is None, so that --append can tell; the help has to say what it means then.
_UNTYPED = {
    name: parameter.default
    for name, parameter in inspect.signature(prepare).parameters.items()
    if isinstance(parameter.default, str | int | float)
    and getattr(PrepareOptions, name, parameter.default) is None
}


def test_some_are_checked():
    assert {"tokenizer", "vocab_size", "validation_fraction", "seed"} <= _UNTYPED.keys()


@pytest.mark.parametrize("name", sorted(_UNTYPED))
def test_the_default_that_is_named_is_the_functions(name):
    said = re.search(rf'^    {name}: .*?\(default: ([\w.]+)\)"""', _HELP, re.DOTALL | re.MULTILINE)
    assert said is not None and said[1] == str(_UNTYPED[name])
