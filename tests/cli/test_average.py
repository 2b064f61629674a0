"""The mean of checkpoints: by number, by name, and what is refused."""

import json
import shutil

import numpy as np
import pytest

from bert_jax.__main__ import main
from bert_jax.config_loader import load_config_json
from bert_jax.pretrained.load import load_checkpoint
from bert_jax.workdir import checkpoint
from tests.states import arrays_of


def average(output, *sources, last=None) -> int:
    command = ["average", "--output-dir", str(output)]
    for source in sources:
        command += [str(source)]
    return main(command + ([] if last is None else ["--last", str(last)]))


def params_of(workdir, step: int) -> dict[str, np.ndarray]:
    return {n: a for n, a in arrays_of(workdir, step).items() if n.startswith("['params']")}


def test_it_is_the_mean_of_the_newest_steps(trained, tmp_path, capsys):
    steps = checkpoint.steps(trained)
    assert len(steps) >= 3
    assert average(tmp_path / "mean", trained, last=2) == 0
    said = capsys.readouterr().out
    assert f"the mean of 2 checkpoints, step {steps[-1]}" in said
    assert f"{checkpoint.DIRECTORY}/{steps[-2]}\n" in said
    found = params_of(tmp_path / "mean", steps[-1])
    before, after = (params_of(trained, step) for step in steps[-2:])
    assert found.keys() == before.keys() and len(found) > 20
    for name, mean in found.items():
        exact = (before[name].astype(np.float64) + after[name]) / 2
        np.testing.assert_allclose(mean, exact, rtol=1e-6, atol=1e-8, err_msg=name)
    assert any((found[name] != after[name]).any() for name in found)

    exported = ["export", str(tmp_path / "mean"), "--output-dir", str(tmp_path / "hf")]
    assert main(exported) == 0
    card = (tmp_path / "hf" / "README.md").read_text()
    names = ", ".join(f"{trained.name}/{step}" for step in steps[-2:])
    assert f"- mean of: {names}" in card
    # It is scored on the rows and masks that the run was scored on.
    of_run, of_mean = (
        load_config_json(directory / "config.json") for directory in (trained, tmp_path / "mean")
    )
    for name in ("objective", "data", "evaluation", "phases", "compute"):
        assert getattr(of_mean, name) == getattr(of_run, name), name
    # Checkpoints by name; all that are kept; a result among the sources.
    named = [trained / checkpoint.DIRECTORY / str(step) for step in steps]
    assert average(tmp_path / "named", *named) == 0
    assert average(tmp_path / "all", trained) == 0
    of_all, of_named = (params_of(tmp_path / name, steps[-1]) for name in ("all", "named"))
    for name, mean in of_all.items():
        np.testing.assert_array_equal(mean, of_named[name])
    assert average(tmp_path / "again", tmp_path / "mean", trained) == 0


def test_a_mean_of_phases_that_change_the_run_is_read(trained, tmp_path):
    """A phase with an option of a schedule, and packed rows."""
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    stored = json.loads((run / "config.json").read_text())
    config = stored["config"]
    schedule = {"kind": "warmup_stable_decay", "decay_steps": 20}
    config["optimizer"]["schedule"] = schedule
    config["data"]["packing"] = "best_fit"
    for phase in config["phases"]:
        phase |= {"max_sequences": 3, "max_predictions": 20}
    config["phases"][1]["schedule"] = schedule | {"decay_steps": 10}
    (run / "config.json").write_text(json.dumps(stored))
    assert average(tmp_path / "mean", run, last=2) == 0
    found = load_checkpoint(tmp_path / "mean")
    last = found.config.phases[-1]
    # The rows are those that the run was scored on.
    assert found.is_run and (last.max_sequences, not last.overrides) == (-1, True)
    assert last.sequence_length == config["phases"][1]["sequence_length"]


@pytest.mark.parametrize(
    ("last", "said"), [(1, "from 2 to as many"), (9, "checkpoint.keep_last is")]
)
def test_a_number_of_steps_that_is_not_there(trained, tmp_path, capsys, last, said):
    assert average(tmp_path / "mean", trained, last=last) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "mean").exists()


def test_what_has_no_mean(trained, exported, tmp_path, capsys):
    step = checkpoint.steps(trained)[-1]
    one = trained / checkpoint.DIRECTORY / str(step)
    assert average(tmp_path / "mean", exported, one, last=2) == 2
    assert "--last chooses among the steps of one" in capsys.readouterr().err
    (tmp_path / "mean").mkdir()
    (tmp_path / "mean" / "other").touch()
    assert average(tmp_path / "mean", trained) == 2
    assert "mean" in capsys.readouterr().err
