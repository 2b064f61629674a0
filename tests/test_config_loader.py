"""Config files of users: they may load other configs, and their errors have a line number."""

import pytest

from bert_jax.config_loader import load_config
from bert_jax.errors import UsageError


@pytest.mark.parametrize(
    "lines",
    [
        "def config():\n    return load_config('tiny_docs_cpu')\n",
        "_BASE = load_config('tiny_docs_cpu', checked=False)\ndef config():\n    return _BASE\n",
    ],
)
@pytest.mark.parametrize(
    "changes",
    [
        ["data.masked_lm_prob=0.3"],
        ["phases.1.sequence_length=96"],
        ["data.packing=best_fit"],
        ["objective=mlm"],
    ],
)
def test_derived_fields_follow_in_a_file_that_loads_another_config(tmp_path, lines, changes):
    inner, outer = tmp_path / "inner.py", tmp_path / "outer.py"
    inner.write_text("from bert_jax.config_loader import load_config\n" + lines)
    outer.write_text(
        "from bert_jax.config_loader import load_config\n"
        f"def config():\n    return load_config({str(inner)!r})\n"
    )
    expected = load_config("tiny_docs_cpu", changes)
    assert load_config(str(inner), changes) == load_config(str(outer), changes) == expected
    if "objective=mlm" not in changes:
        inner.write_text(inner.read_text().replace("_cpu'", "_cpu', ['objective=mlm']"))
        assert load_config(str(inner), ["objective=mlm+nsp", *changes]) == expected


def test_an_inner_config_is_checked_and_an_error_leaves_no_trace(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "from bert_jax.config_loader import load_config\n"
        "def config():\n    return load_config('tiny_docs_cpu', ['data.masked_lm_prob=2'])\n"
    )
    with pytest.raises(UsageError, match=r"data.masked_lm_prob: expected float <= 1"):
        load_config(str(path), ["data.masked_lm_prob=0.3"])
    assert load_config("tiny_docs_cpu").phases[0].max_predictions > 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "from bert_jax import OPTIMIZERS\nOPTIMIZERS.register('muon', print)\n",
            "line 2: optimizer.kind 'muon' is built in; register yours by another name",
        ),
        (
            "from bert_jax.config_loader import load_config\ndef config():\n"
            "    return load_config('bert_base', ['seed=x'])\n",
            "line 3: override seed: expected int, got str",
        ),
        ("import sys\nsys.exit(0)\n", "line 2: SystemExit: 0"),
        ("import no_helper", "line 1: ModuleNotFoundError: No module named 'no_helper'"),
    ],
)
def test_an_error_in_a_file_names_file_and_line(tmp_path, text, said):
    path = tmp_path / "mine.py"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        load_config(str(path))
    assert str(caught.value) == f"{path}, {said}"
