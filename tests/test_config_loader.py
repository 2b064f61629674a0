"""Files of users that were written for modules and classes by other names."""

import importlib.util

import pytest

from bert_jax.config_loader import MOVED, execute
from bert_jax.errors import UsageError
from bert_jax_lab.probes.probe import ProbeResult
from bert_jax_lab.studies.study import StudyTask, load_study


@pytest.mark.parametrize("old", MOVED)
def test_an_old_module_is_answered_with_its_new_name(tmp_path, old):
    new, (folder, _, last) = MOVED[old], old.rpartition(".")
    assert importlib.util.find_spec(new) is not None
    for statement in (f"import {old}", f"import {old}.x", f"from {folder} import {last}"):
        path = tmp_path / "mine.py"
        path.write_text(f'"""Mine."""\n\n{statement}\n')
        with pytest.raises(UsageError) as caught:
            execute(path)
        assert str(caught.value).startswith(f"{path}, line 3: ")
        assert str(caught.value).endswith(f". {old} is {new} now")


def test_classes_of_studies_and_probes_are_found_by_their_old_names(tmp_path, caplog):
    path = tmp_path / "mine.py"
    path.write_text(
        "from bert_jax_lab.probes.probe import Finding\n"
        "from bert_jax_lab.studies.study import Study, Task, Variant\n"
        "def study():\n"
        "    return Study(title='Mine', base='tiny_docs_cpu', variants=(Variant('a'),),\n"
        "                 tasks=(Task('word_order', rule='word_order'),))\n"
    )
    with caplog.at_level("INFO", logger="bert_jax"):
        found = load_study(str(path))
    assert found.tasks == (StudyTask("word_order", rule="word_order"),)
    assert execute(path)["Finding"] is ProbeResult
    assert "named `StudyTask` now" in caplog.text and "named `ProbeResult` now" in caplog.text
    path.write_text("from bert_jax_lab.studies.study import Taks\n")
    with pytest.raises(UsageError, match="cannot import name 'Taks'"):
        execute(path)
