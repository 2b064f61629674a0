"""The help of `prepare` beside the function that it calls, and what is typed wrong."""

import inspect
import re

import pytest

from bert_jax.__main__ import main
from bert_jax.cli.training.prepare import PrepareOptions
from bert_jax.data.corpus.prepare import VOCAB_SIZE, prepare
from tests.paths import ROOT

_HELP = (ROOT / "bert_jax" / "cli" / "training" / "prepare.py").read_text(encoding="utf-8")
# What was not typed is None, so that --append can tell; the help has to say what it means then.
_UNTYPED = {
    name: parameter.default
    for name, parameter in inspect.signature(prepare).parameters.items()
    if isinstance(parameter.default, str | int | float)
    and getattr(PrepareOptions, name, parameter.default) is None
} | {"vocab_size": VOCAB_SIZE}


def test_some_are_checked():
    assert {"tokenizer", "vocab_size", "validation_fraction", "seed"} <= _UNTYPED.keys()


@pytest.mark.parametrize("name", sorted(_UNTYPED))
def test_the_default_that_is_named_is_the_functions(name):
    said = re.search(rf'^    {name}: .*?\(default: ([\w.]+)\)"""', _HELP, re.DOTALL | re.MULTILINE)
    assert said is not None and said[1] == str(_UNTYPED[name])


def test_options_of_a_runner_without_the_dashes_before_them(capsys):
    words = [
        "--source",
        "gs://b/t",
        "--output",
        "gs://b/c",
        "--project",
        "mine",
        "--region",
        "here",
    ]
    with pytest.raises(SystemExit) as ended:
        main(["prepare", "--runner", "DataflowRunner", *words])
    error = capsys.readouterr().err
    assert ended.value.code == 2
    assert "unrecognized arguments: --project mine --region here" in error
    assert "those of the runner come after --: ... -- --project mine --region here" in error
    with pytest.raises(SystemExit):
        main(["prepare", *words])
    assert "come after" not in capsys.readouterr().err
