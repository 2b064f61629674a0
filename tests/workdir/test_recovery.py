"""Manifests, the step that a run resumes from, rollback, and the verb for all of them."""

import json
import random
import re
import shutil

import jax
import numpy as np
import pytest

from bert_jax.__main__ import main
from bert_jax.config import CheckpointConfig
from bert_jax.config_loader import override
from bert_jax.errors import (
    DataDamaged,
    NoUsableCheckpoint,
    ResumeRefused,
    Unreachable,
    UsageError,
)
from bert_jax.workdir import (
    checkpoint,
    location,
    log_reader,
    manifest,
    metrics_log,
    recovery,
    run_directory,
)
from bert_jax.workdir.checkpoint import Checkpoints
from tests.workdir.test_checkpoint import _CONFIG, mesh_of, numbers

pytestmark = pytest.mark.core


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("three")
    saved = Checkpoints(
        workdir,
        CheckpointConfig(keep_last=5),
        on_saved=lambda step, seconds: metrics_log.append_event(
            workdir, "save", step=step, seconds=seconds
        ),
    )
    for step in (4, 8, 12):
        saved.save(numbers(_CONFIG, step=step).to_mesh(mesh_of(8)), step=step)
    saved.close()
    return workdir


@pytest.fixture
def saved(tmp_path, three):
    return shutil.copytree(three, tmp_path / "run")


def step_of(workdir, step):
    return workdir / "checkpoints" / str(step)


def test_a_manifest_describes_every_file(saved):
    values = json.loads((step_of(saved, 8) / "manifest.json").read_text())
    files = {
        str(p.relative_to(step_of(saved, 8))): p.stat().st_size
        for p in step_of(saved, 8).rglob("*")
        if p.is_file() and p.name != "manifest.json"
    }
    assert {name: entry["size"] for name, entry in values["files"].items()} == files
    assert values["step"] == 8
    assert checkpoint.problem(saved, 8) is None


@pytest.mark.parametrize(
    "text", ["", "[]", "nul", '{"checksum": 0}', "\x00\xff", '{"format": 2, "files": {}}']
)
def test_a_damaged_manifest_is_a_damaged_step(saved, text):
    path = step_of(saved, 8) / "manifest.json"
    good = path.read_text()
    path.write_text(text)
    assert checkpoint.problem(saved, 8) == "manifest.json is damaged"
    path.write_text(good.replace('"step": 8', '"step": 4'))
    assert checkpoint.problem(saved, 8) == "manifest.json is damaged"
    path.write_text((step_of(saved, 4) / "manifest.json").read_text())
    assert checkpoint.problem(saved, 8) == "it was saved as step 4"


def _flip(file, other, draw):
    data = bytearray(file.read_bytes())
    data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    file.write_bytes(data)


def _swap(file, other, draw):
    """Each file is well-formed, and one of another step."""
    file.write_bytes(other.read_bytes())


_DAMAGE = {
    "flip": _flip,
    "truncate": lambda file, other, draw: file.write_bytes(file.read_bytes()[:-1]),
    "delete": lambda file, other, draw: file.unlink(),
    "zero": lambda file, other, draw: file.write_bytes(bytes(file.stat().st_size)),
    "swap": _swap,
}


@pytest.mark.parametrize("how", _DAMAGE)
def test_damage_to_any_file_is_found(saved, how, caplog):
    draw, newest, before = random.Random(0), step_of(saved, 12), step_of(saved, 8)
    names = [path.relative_to(newest) for path in newest.rglob("*") if path.is_file()]
    names = [name for name in names if (newest / name).stat().st_size]
    assert len(names) > 5
    for name in names:
        good = (newest / name).read_bytes()
        # Orbax gives data files random names.
        others = sorted((before / name).parent.iterdir(), key=lambda path: path.name != name.name)
        if how == "swap" and others[0].read_bytes() == good:
            continue
        _DAMAGE[how](newest / name, others[0], draw)
        caplog.clear()
        with caplog.at_level("INFO", "bert_jax"):
            assert recovery.newest_good_step(saved) == 8, name
        # Without a manifest there is no step to name.
        is_gone = how == "delete" and name.name == "manifest.json"
        assert is_gone or "step 12 of" in caplog.text, name
        (newest / name).write_bytes(good)
    assert recovery.newest_good_step(saved) == 12


def test_the_newest_good_step(saved, capsys):
    assert recovery.prepare_resume(saved) == 12
    largest = max(step_of(saved, 12).rglob("*"), key=lambda p: p.is_file() and p.stat().st_size)
    largest.write_bytes(largest.read_bytes()[:-1])
    assert recovery.newest_good_step(saved) == 8 and checkpoint.steps(saved) == [4, 8, 12]
    assert recovery.prepare_resume(saved) == 8
    assert "step 12 of" in capsys.readouterr().err and checkpoint.steps(saved) == [4, 8]
    assert [p.name.split("-")[0] for p in (saved / "set_aside").iterdir()] == ["12"]


def test_a_step_without_a_manifest_is_removed(saved):
    """A kill between the commit of Orbax and the manifest leaves such a step."""
    (step_of(saved, 12) / "manifest.json").unlink()
    # A reader writes nothing.
    assert recovery.newest_good_step(saved) == 8 and checkpoint.incomplete_steps(saved) == [12]
    assert recovery.prepare_resume(saved) == 8
    assert checkpoint.steps(saved) == [4, 8] and checkpoint.incomplete_steps(saved) == []
    assert not (saved / "set_aside").exists()


def test_a_save_without_a_manifest_is_removed_after_the_next(tmp_path, monkeypatch):
    write = manifest.write
    checkpoints = Checkpoints(tmp_path, CheckpointConfig())

    def fail(*_, **__):
        raise TimeoutError("timed out")

    state = numbers(_CONFIG, step=2).to_mesh(mesh_of(1))
    monkeypatch.setattr(manifest, "write", fail)
    for _ in range(2):  # the second time, over the files of the first
        checkpoints.save(state, step=2)
        with pytest.raises(Unreachable):
            checkpoints.wait()
    assert checkpoint.steps(tmp_path) == [] and checkpoint.incomplete_steps(tmp_path) == [2]
    monkeypatch.setattr(manifest, "write", write)
    checkpoints.save(state, step=3)
    checkpoints.close()
    assert checkpoint.steps(tmp_path) == [3] and checkpoint.incomplete_steps(tmp_path) == []


def test_a_removal_that_was_cut_short_is_completed(saved, monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(type(location.at(saved).root), "rmtree", _interrupted)
        checkpoint.remove(saved, 4)
    assert step_of(saved, 4).is_dir() and checkpoint.steps(saved) == [8, 12]
    assert recovery.prepare_resume(saved) == 12
    assert not step_of(saved, 4).exists() and not (saved / "set_aside").exists()


def _interrupted(*_, **__):
    raise KeyboardInterrupt


def test_no_step_verifies(saved):
    for step in (4, 8, 12):
        (step_of(saved, step) / "_CHECKPOINT_METADATA").write_text("{}")
    with pytest.raises(NoUsableCheckpoint, match=r"step 12: .*step 8: .*step 4: _CHECKPOINT"):
        recovery.prepare_resume(saved)
    assert checkpoint.steps(saved) == [4, 8, 12], "nothing is removed"
    shutil.rmtree(saved / "checkpoints")
    with pytest.raises(NoUsableCheckpoint, match="its checkpoints are missing"):
        recovery.prepare_resume(saved)


@pytest.mark.parametrize("is_branch", [True, False])
def test_a_lost_first_step_is_an_error(saved, tmp_path, is_branch):
    """A branch or an average without its step would start at step 0 with new parameters."""
    home = tmp_path / "home"
    (saved / "tokenizer").mkdir()
    if is_branch:
        recovery.branch_off(saved, home, step=8)
        (step_of(home, 8) / "manifest.json").unlink()
        # It had a manifest: its files may be other ones now.
        with pytest.raises(NoUsableCheckpoint, match="its checkpoints are missing"):
            recovery.prepare_resume(home)
    else:
        home.mkdir()
        run_directory.write_config(home, _CONFIG, mean_of=["elsewhere"])
    shutil.rmtree(home / "checkpoints", ignore_errors=True)
    with pytest.raises(NoUsableCheckpoint, match="its checkpoints are missing"):
        recovery.prepare_resume(home)


def test_roll_back(saved):
    assert recovery.roll_back(saved, 4) == 4
    assert checkpoint.steps(saved) == [4]
    aside = sorted(p.name.split("-")[0] for p in (saved / "set_aside").iterdir())
    assert aside == ["12", "8"]
    again = Checkpoints(saved, CheckpointConfig(keep_last=5))
    again.save(numbers(_CONFIG, step=8).to_mesh(mesh_of(1)), step=8)
    again.close()
    assert recovery.prepare_resume(saved) == 8
    with pytest.raises(UsageError, match="no step 5; available: 4, 8"):
        recovery.roll_back(saved, 5)
    assert recovery.roll_back(saved, 4) == 4
    assert len(list((saved / "set_aside").iterdir())) == 3
    loaded = checkpoint.load_state(saved, step=4, config=_CONFIG, mesh=mesh_of(1))
    jax.tree.map(np.testing.assert_array_equal, loaded, numbers(_CONFIG, step=4))


def test_a_run_beyond_its_end(tmp_path, trained, corpus, capsys):
    workdir = shutil.copytree(trained, tmp_path / "run")
    before = (workdir / "config.json").read_bytes()
    command = ["pretrain", str(workdir / "config.json"), "--corpus", str(corpus)]
    command += ["--workdir", str(workdir), "--set", "phases.0.steps=20", "--set"]
    command += ["phases.1.steps=20", "--set", "optimizer.warmup_steps=10"]
    for field in ("phases.0.steps", "phases.1.steps", "optimizer.warmup_steps"):
        command += ["--allow-change", field]
    assert main(command) == 2
    assert "is at step 200, beyond the 40 of this config" in capsys.readouterr().err
    assert (workdir / "config.json").read_bytes() == before


def test_a_run_without_a_checkpoint_takes_another_config(tmp_path):
    """The result of a fine-tuning run that diverged before its first save stays the run's."""
    run_directory.write_config(tmp_path, _CONFIG)
    other = override(_CONFIG, ["model.hidden_size=48"])
    assert run_directory.holds(tmp_path, other, lambda _: [])[1][0][0] == "model.hidden_size"
    (tmp_path / run_directory.RESULT).write_text("{}")
    with pytest.raises(ResumeRefused):
        run_directory.holds(tmp_path, other, lambda _: [])


def test_a_workdir_of_an_interrupted_start_is_free(tmp_path):
    """A folder of the user with the same files is not."""
    (tmp_path / "tokenizer").mkdir()
    assert not run_directory.is_free(tmp_path)
    (tmp_path / "config.json.new").touch()
    assert run_directory.is_free(tmp_path)
    (tmp_path / "cat.jpg").touch()
    assert not run_directory.is_free(tmp_path)


def test_the_verb_checkpoints(saved, capsys, trained):
    workdir = shutil.copytree(trained, saved.parent / "trained")
    assert main(["checkpoints", "list", str(workdir)]) == 0
    said = capsys.readouterr().out
    assert all(str(step) in said for step in (120, 160, 200))
    assert main(["checkpoints", "verify", str(workdir)]) == 0
    assert capsys.readouterr().out.count("all bytes match the manifest") == 3
    (workdir / "checkpoints/160/_CHECKPOINT_METADATA").write_text("{}")
    assert main(["checkpoints", "verify", str(workdir)]) == 5
    assert "_CHECKPOINT_METADATA has 2 bytes" in capsys.readouterr().out
    assert main(["checkpoints", "rollback", str(workdir)]) == 2
    assert main(["checkpoints", "rollback", str(workdir), "--step", "120"]) == 0
    assert checkpoint.steps(workdir) == [120]
    # The log has the rows of the run as it is now.
    rows = log_reader.read_rows(trained)
    assert log_reader.read_rows(workdir) == [row for row in rows if row["step"] <= 120]
    abandoned = log_reader.read_lines(workdir / location.ASIDE)
    assert len(abandoned) == sum(row["step"] > 120 for row in rows) > 0
    assert main(["checkpoints", "list", str(workdir / "none")]) == 2


@pytest.mark.parametrize("text", ["5", "[1]", "[" * 100_000, "x", '{"step": 1.5}', '{"loss": 1}'])
def test_a_damaged_log_is_an_error(tmp_path, text):
    (tmp_path / "metrics.jsonl").write_text(f'{{"step": 1, "loss": 2}}\n{text}\n{{"step": 2}}\n')
    with pytest.raises(DataDamaged, match=r"metrics\.jsonl"):
        log_reader.read_rows(tmp_path)


@pytest.mark.parametrize("name", ["config.json", "result.json"])
def test_a_damaged_document_is_an_error(tmp_path, name):
    read = {"config.json": run_directory.stored, "result.json": run_directory.result_of}[name]
    assert read(tmp_path) == {}
    for text in ("", "[1]", "{"):
        (tmp_path / name).write_text(text)
        with pytest.raises(UsageError, match=re.escape(name)):
            read(tmp_path)
