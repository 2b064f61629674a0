"""A branch goes on from a step of another run: to the same bits, or with what is changed there."""

import json
import shutil

import jax
import numpy as np
import pytest

from bert_jax.__main__ import main
from bert_jax.config import to_dict
from bert_jax.config_loader import load_config_json
from bert_jax.errors import NoUsableCheckpoint, UsageError
from bert_jax.model import sharding
from bert_jax.workdir import checkpoint, log_reader, metrics_log, recovery
from bert_jax_lab.reports import goodput


def branch(trained, output, *options: object) -> int:
    command = ["checkpoints", "branch", trained, "--output-dir", output, *options]
    return main([str(word) for word in command])


def go_on(workdir, corpus, *options: str) -> int:
    command = ["pretrain", workdir / "config.json", "--corpus", corpus, "--workdir", workdir]
    return main([*map(str, command), *options])


def state_of(workdir, step):
    config = load_config_json(workdir / "config.json")
    mesh = sharding.make_mesh(fsdp=-1, tensor=1)
    with jax.set_mesh(mesh):
        state = checkpoint.load_state(workdir, step=step, config=config, mesh=mesh)
    return jax.tree.map(np.asarray, {"params": state.params, "moments": state.opt_state})


def test_a_branch_in_which_nothing_changes_has_the_same_bits(tmp_path, trained, corpus, capsys):
    new = tmp_path / "deep" / "new"
    assert branch(trained, new, "--step", 160) == 0
    assert f"--corpus {corpus} --workdir {new}" in capsys.readouterr().out
    assert checkpoint.steps(new) == [160] and checkpoint.problem(new, 160) is None
    assert [row["step"] for row in log_reader.read_rows(new)][-1] == 160
    stored = json.loads((new / "config.json").read_text())
    assert stored["branched_from"] == {"workdir": str(trained), "step": 160}
    assert go_on(new, corpus) == 0
    jax.tree.map(np.testing.assert_array_equal, state_of(new, 200), state_of(trained, 200))
    ours, theirs = (
        [(r["step"], r["loss"]) for r in log_reader.read_rows(workdir)]
        for workdir in (new, trained)
    )
    assert ours == theirs
    # Its time is its own: that of the rows before is the other run's.
    account = goodput.account(new)
    later = [r for r in log_reader.read_rows(new) if r["step"] > 160 and "split" not in r]
    spent = sum(r["step_seconds"] * r["steps"] for r in later)
    parts = account["seconds"]
    assert parts["training"] + parts["data_wait"] == pytest.approx(spent)
    assert 0 < account["goodput"] < 1 and account["step"] == 200
    assert [e["event"] for e in log_reader.read_events(new)][:2] == ["branch", "start"]


def test_a_branch_with_another_rate_and_batch(tmp_path, trained, corpus, capsys):
    new = tmp_path / "new"
    assert branch(trained, new) == 0
    assert checkpoint.steps(new) == [200], "the newest"
    assert branch(trained, tmp_path / "other", "--step", "160") == 0
    new = tmp_path / "other"
    changed = ["--set", "optimizer.learning_rate=1e-3"]
    first, second = map(to_dict, load_config_json(trained / "config.json").phases)
    longer = [first, second | {"steps": 2, "global_batch_size": 16, "max_predictions": 6}]
    changed += ["--set", f"phases={json.dumps(longer)}"]
    assert go_on(new, corpus, *changed) == 3
    said = capsys.readouterr().err
    assert "--allow-change optimizer.learning_rate --allow-change phases;" in said
    assert go_on(new, corpus, *changed, "--set", "seed=1", "--allow-change", "phases") == 3
    assert "--allow-change seed" in capsys.readouterr().err
    allowed = ["--allow-change", "optimizer", "--allow-change", "phases*"]
    assert go_on(new, corpus, *changed, *allowed) == 0
    assert max(checkpoint.steps(new)) == 162
    (change,) = [e for e in log_reader.read_events(new) if e["event"] == "change"]
    assert ["optimizer.learning_rate", 5e-3, 1e-3] in change["fields"]
    assert json.loads((new / "config.json").read_text())["branched_from"]["step"] == 160
    (row,) = [r for r in log_reader.read_rows(new) if r["step"] == 161]
    (old,) = [r for r in log_reader.read_rows(trained) if r["step"] == 161]
    assert row["learning_rate"] < old["learning_rate"] and row["loss"] != old["loss"]


def test_what_no_branch_can_begin_from(tmp_path, trained, monkeypatch, capsys):
    new = tmp_path / "new"
    with pytest.raises(UsageError, match="has no step 7; available: 120, 160, 200"):
        recovery.branch_off(trained, new, step=7)
    (new / "photos").mkdir(parents=True)
    with pytest.raises(UsageError, match="is not empty"):
        recovery.branch_off(trained, new)
    shutil.rmtree(new)
    assert main(["checkpoints", "branch", str(trained)]) == 2
    assert "--output-dir" in capsys.readouterr().err
    # A copy that is not what was saved is none.
    monkeypatch.setattr(
        checkpoint, "problem", lambda home, step: "cut" if home.name.endswith(".new") else None
    )
    with pytest.raises(NoUsableCheckpoint, match="changed while it was copied: cut"):
        recovery.branch_off(trained, new)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.undo()

    ended = tmp_path / "ended"
    shutil.copytree(trained, ended)
    stored = json.loads((ended / "config.json").read_text())
    next((ended / "checkpoints" / "160").rglob("manifest.json")).unlink()
    with pytest.raises(UsageError, match="has no step 160"):
        recovery.branch_off(ended, new, step=160)
    (ended / "config.json").write_text(json.dumps(stored | {"task": {"name": "cola"}}))
    with pytest.raises(UsageError, match="is a fine-tuned model"):
        recovery.branch_off(ended, new)


def test_updates_that_were_left_out_still_count(tmp_path, trained):
    old = shutil.copytree(trained, tmp_path / "old")
    for step in (30, 130, 170):
        metrics_log.append_event(old, "skip", step=step, loss="nan", grad_norm="nan")
    recovery.branch_off(old, tmp_path / "new", step=160)
    assert len(log_reader.skips(log_reader.read_events(tmp_path / "new"), 160)) == 2
