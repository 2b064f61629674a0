"""Manifests, the step a run goes on from, going back, and the verb that shows them."""

import json
import shutil

import jax
import numpy as np
import pytest

from bert_jax.__main__ import main
from bert_jax.config import CheckpointConfig
from bert_jax.errors import DataDamaged, NoUsableCheckpoint, Unreachable, UsageError
from bert_jax.files import checksum_of
from bert_jax.workdir import (
    checkpoint,
    goodput,
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
        facts={"corpus": "abc"},
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
    assert (values["step"], values["corpus"]) == (8, "abc")
    assert checkpoint.problem(saved, 8) is None


@pytest.mark.parametrize(
    "change",
    [
        {"files": {"../../config.json": {"size": 1, "crc32": 1}}},
        {"files": {"/etc/hostname": {"size": 1, "crc32": 1}}},
        {"files": {"a": 3}},
        {"files": []},
        {"format": 2},
        {"step": 4},
        {"step": None},
    ],
)
def test_a_manifest_that_nobody_wrote(saved, change):
    """With a checksum that is right: what it says is still not believed."""
    path = step_of(saved, 8) / "manifest.json"
    values = json.loads(path.read_text()) | change
    del values["checksum"]
    path.write_text(json.dumps(values | {"checksum": checksum_of(values)}))
    assert checkpoint.problem(saved, 8) is not None


@pytest.mark.parametrize("text", ["", "[]", "nul", "[" * 100_000, '{"checksum": 0}', "\x00\xff"])
def test_a_manifest_that_is_none(saved, text):
    (step_of(saved, 8) / "manifest.json").write_text(text)
    assert checkpoint.problem(saved, 8) == "manifest.json is damaged"


def test_the_newest_good_step(saved, capsys):
    assert recovery.prepare_resume(saved) == 12
    largest = max(step_of(saved, 12).rglob("*"), key=lambda p: p.is_file() and p.stat().st_size)
    largest.write_bytes(largest.read_bytes()[:-1])
    assert recovery.newest_good_step(saved) == 8 and checkpoint.steps(saved) == [4, 8, 12]
    assert recovery.prepare_resume(saved) == 8
    assert "step 12 of" in capsys.readouterr().err and checkpoint.steps(saved) == [4, 8]
    assert [p.name.split("-")[0] for p in (saved / "set_aside").iterdir()] == ["12"]


def test_a_step_that_lost_its_manifest_is_kept_and_one_that_never_had_one_is_not(saved):
    (step_of(saved, 12) / "manifest.json").unlink()
    shutil.copytree(step_of(saved, 8), step_of(saved, 16))
    (step_of(saved, 16) / "manifest.json").unlink()
    assert checkpoint.incomplete_steps(saved) == [12, 16]
    assert recovery.prepare_resume(saved) == 8
    assert checkpoint.incomplete_steps(saved) == []
    assert [p.name.split("-")[0] for p in (saved / "set_aside").iterdir()] == ["12"]


def _forget(workdir, step):
    """As a kill between Orbax's commit and the manifest leaves it: there is no event, either."""
    (step_of(workdir, step) / "manifest.json").unlink()
    events = workdir / metrics_log.EVENTS
    lines = events.read_text().splitlines(keepends=True)
    events.write_text("".join(line for line in lines if f'"step": {step},' not in line))


def test_a_step_without_a_manifest_is_removed(saved):
    """Committed by Orbax, or a save in a bucket that was cut off."""
    shutil.copytree(step_of(saved, 12), step_of(saved, 20))
    for name in ("manifest.json", "commit_success.txt"):
        (step_of(saved, 20) / name).unlink()
    _forget(saved, 12)
    # A reader writes nothing.
    assert recovery.newest_good_step(saved) == 8 and checkpoint.steps(saved) == [4, 8]
    assert recovery.prepare_resume(saved) == 8
    assert checkpoint.steps(saved) == [4, 8] and checkpoint.incomplete_steps(saved) == []
    assert not (saved / "set_aside").exists()


def test_a_manifest_that_the_network_prevented_is_written_with_the_next(tmp_path, monkeypatch):
    """The step is not saved again: that would begin with its removal."""
    write, saves = manifest.write, []
    orbax_save = checkpoint.ocp.save_async
    monkeypatch.setattr(
        checkpoint.ocp, "save_async", lambda *a, **k: saves.append(a[0]) or orbax_save(*a, **k)
    )
    checkpoints = Checkpoints(tmp_path, CheckpointConfig())

    def fail(*_, **__):
        raise TimeoutError("timed out")

    state = numbers(_CONFIG, step=2).to_mesh(mesh_of(1))
    monkeypatch.setattr(manifest, "write", fail)
    for _ in range(2):
        checkpoints.save(state, step=2)
        with pytest.raises(Unreachable):
            checkpoints.wait()
    assert checkpoint.steps(tmp_path) == [] and len(saves) == 1
    monkeypatch.setattr(manifest, "write", write)
    checkpoints.save(state, step=3)
    checkpoints.close()
    assert checkpoint.steps(tmp_path) == [2, 3] and len(saves) == 2


def test_nothing_good(saved):
    for step in (4, 8, 12):
        (step_of(saved, step) / "_CHECKPOINT_METADATA").write_text("{}")
    with pytest.raises(NoUsableCheckpoint, match=r"step 12: .*step 8: .*step 4: _CHECKPOINT"):
        recovery.prepare_resume(saved)
    shutil.rmtree(saved / "checkpoints")
    with pytest.raises(NoUsableCheckpoint, match="no longer there"):
        recovery.prepare_resume(saved)


@pytest.mark.parametrize("is_branch", [True, False])
def test_a_beginning_that_is_lost_is_missed(saved, tmp_path, is_branch):
    """A branch, or an import, without its step began again at step 0, with fresh parameters."""
    home = tmp_path / "home"
    (saved / "tokenizer").mkdir()
    if is_branch:
        recovery.branch_off(saved, home, step=8)
        (step_of(home, 8) / "manifest.json").unlink()
        # It had a manifest: its files may be other ones now.
        with pytest.raises(NoUsableCheckpoint, match="no longer there"):
            recovery.prepare_resume(home)
    else:
        home.mkdir()
        run_directory.write_config(home, _CONFIG, imported_from="elsewhere")
    shutil.rmtree(home / "checkpoints", ignore_errors=True)
    with pytest.raises(NoUsableCheckpoint, match="no longer there"):
        recovery.prepare_resume(home)


def test_going_back(saved):
    assert recovery.roll_back(saved, 4) == 4
    assert checkpoint.steps(saved) == [4]
    aside = sorted(p.name.split("-")[0] for p in (saved / "set_aside").iterdir())
    assert aside == ["12", "8"]
    again = Checkpoints(saved, CheckpointConfig(keep_last=5))
    again.save(numbers(_CONFIG, step=8).to_mesh(mesh_of(1)), step=8)
    again.close()
    assert recovery.prepare_resume(saved) == 8
    with pytest.raises(UsageError, match="no step 5; there are 4, 8"):
        recovery.roll_back(saved, 5)
    assert recovery.roll_back(saved, 4) == 4
    assert len(list((saved / "set_aside").iterdir())) == 3
    loaded = checkpoint.load_state(saved, step=4, config=_CONFIG, mesh=mesh_of(1))
    jax.tree.map(np.testing.assert_array_equal, loaded, numbers(_CONFIG, step=4))


def test_an_evaluation_that_is_owed_at_the_end(tmp_path, trained, corpus, capsys):
    """SIGTERM in the last evaluation: the next start evaluates, trains nothing, and tells all."""
    workdir = shutil.copytree(trained, tmp_path / "run")
    log = workdir / metrics_log.METRICS
    rows = log_reader.read_rows(workdir)
    assert rows[-1]["split"] == "validation"
    log.write_text("".join(json.dumps(row) + "\n" for row in rows[:-1]))
    command = ["pretrain", str(workdir / "config.json"), "--corpus", str(corpus)]
    assert main([*command, "--workdir", str(workdir)]) == 0
    told = capsys.readouterr().out
    again = log_reader.read_rows(workdir)
    times = {"time", "seconds"}
    assert {k: v for k, v in again[-1].items() if k not in times} == {
        k: v for k, v in rows[-1].items() if k not in times
    }
    assert f"{rows[-1]['mlm_loss']:.3f} nats" in told and "tokens/s" in told


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


def test_a_workdir_whose_making_was_cut_short_is_free(tmp_path, trained, corpus, capsys):
    workdir = tmp_path / "run"
    shutil.copytree(trained / "tokenizer", workdir / "tokenizer")
    command = ["pretrain", str(trained / "config.json"), "--corpus", str(corpus)]
    short = '[{"sequence_length": 32, "steps": 10, "global_batch_size": 16, "max_predictions": 5}]'
    command += ["--workdir", str(workdir), "--set", f"phases={short}"]
    command += ["--set", "optimizer.warmup_steps=2"]
    # A folder of somebody's own.
    assert main(command) == 2
    assert "is not empty and holds no run" in capsys.readouterr().err
    (workdir / "config.json.new").touch()
    assert main(command) == 0
    assert checkpoint.steps(workdir)[-1] == 10


def test_the_verb(saved, capsys, trained):
    workdir = shutil.copytree(trained, saved.parent / "trained")
    assert main(["checkpoints", "list", str(workdir)]) == 0
    said = capsys.readouterr().out
    assert all(str(step) in said for step in (120, 160, 200))
    assert main(["checkpoints", "verify", str(workdir)]) == 0
    assert capsys.readouterr().out.count("every byte as it was saved") == 3
    (workdir / "checkpoints/160/_CHECKPOINT_METADATA").write_text("{}")
    assert main(["checkpoints", "verify", str(workdir)]) == 5
    assert "_CHECKPOINT_METADATA has 2 bytes" in capsys.readouterr().out
    assert main(["checkpoints", "rollback", str(workdir)]) == 2
    assert main(["checkpoints", "rollback", str(workdir), "--step", "120"]) == 0
    assert checkpoint.steps(workdir) == [120]
    # The report is that of the run as it is now.
    rows = log_reader.read_rows(trained)
    assert log_reader.read_rows(workdir) == [row for row in rows if row["step"] <= 120]
    abandoned = log_reader.read_lines(workdir / metrics_log.DISCARDED)
    assert len(abandoned) == sum(row["step"] > 120 for row in rows) > 0
    assert goodput.account(workdir)["step"] == 120
    assert main(["checkpoints", "list", str(workdir / "none")]) == 2


# --- of somebody else's ---------------------------------------------------------------------------


def test_a_link_to_what_is_elsewhere_is_refused_before_anything_is_removed(saved, tmp_path):
    victim = tmp_path / "photos"
    (victim / "2019").mkdir(parents=True)
    shutil.move(saved / "checkpoints", tmp_path / "own")
    (saved / "checkpoints").symlink_to(victim)
    with pytest.raises(UsageError, match="checkpoints is a link, and a run removes what is old"):
        run_directory.holds(saved, _CONFIG, lambda path: [])
    (saved / "checkpoints").unlink()
    shutil.move(tmp_path / "own", saved / "checkpoints")
    (saved / "checkpoints" / "450").symlink_to(victim)
    with pytest.raises(UsageError, match="checkpoints/450 is a link"):
        recovery.roll_back(saved, 8)
    assert (victim / "2019").is_dir()
    # A branch takes nothing along that is elsewhere.
    (saved / "tokenizer").mkdir()
    for place in (step_of(saved, 8) / "notes", saved / "expected.json"):
        place.symlink_to("/etc/passwd")
        with pytest.raises(UsageError, match=f"{place.name} is (a link|no plain file)"):
            recovery.branch_off(saved, tmp_path / "branch", step=8)
        place.unlink()
    assert not (tmp_path / "branch").exists()


@pytest.mark.parametrize(
    "text", ["5", "[1]", "[" * 100_000, "9" * 5000, '{"lr": 1}', '{"step": 1, "loss": "x"}',
             '{"step": 1, "split": "../../x"}', '{"step": 1, "split": 5}', '{"event": "start"}',
             '{"event": [1], "time": 1}', '{"event": "start", "time": 1, "step": "x"}',
             # Each was a traceback of whoever asked for the time, the skips or the best step.
             '{"event": "save", "time": 1}', '{"event": "best", "time": 1, "step": null}',
             '{"event": "start", "time": null}', '{"event": "open", "time": 1, "seconds": "x"}',
             '{"event": "start", "time": 1, "versions": 5}', '{"step": 1, "time": null}',
             '{"step": 1, "steps": ' + "9" * 400 + "}"],
    ids=range(18),
)  # fmt: skip
def test_a_log_of_other_records_is_refused_by_its_line(tmp_path, text):
    (tmp_path / "log").write_text(f'{{"step": 1, "split": "validation/a", "loss": 2}}\n{text}\n')
    with pytest.raises(DataDamaged, match="log, line 2: not as it was written"):
        log_reader.read_lines(tmp_path / "log")


def test_what_a_hook_of_ones_own_writes_is_no_damage(tmp_path):
    line = {"event": "mine", "time": 1.0, "step": None, "seconds": "few", "reason": [1]}
    (tmp_path / "events.jsonl").write_text(
        '{"event": "start", "time": 0.5, "step": 3}\n' + json.dumps(line) + "\n"
    )
    assert log_reader.read_events(tmp_path)[1] == line
    assert goodput.account(tmp_path)["starts"] == 1
    assert goodput.processes(tmp_path)[0]["to_step"] == 3


def test_a_log_of_no_text_is_refused(tmp_path):
    (tmp_path / "log").write_bytes(b'{"step": 1}\n\xff\n')
    with pytest.raises(DataDamaged, match="line 2"):
        log_reader.read_lines(tmp_path / "log")
    (tmp_path / "pipe").symlink_to("/dev/zero")
    with pytest.raises(DataDamaged, match="is no plain file"):
        log_reader.read_lines(tmp_path / "pipe")


@pytest.mark.parametrize("text", ["5", "[1]", "[" * 200_000, ""], ids=range(4))
@pytest.mark.parametrize("name", ["state/_METADATA", "_CHECKPOINT_METADATA"])
def test_a_step_that_orbax_cannot_read_is_named(saved, name, text):
    (step_of(saved, 8) / name).write_text(text)
    with jax.set_mesh(mesh_of(1)):
        try:
            checkpoint.load_state(saved, step=8, config=_CONFIG, mesh=mesh_of(1))
        except NoUsableCheckpoint as error:
            assert "checkpoints/8 cannot be read" in str(error)


@pytest.mark.parametrize(
    "facts",
    [{"corpus": "x"}, {"corpus": {"directory": 5}}, {"corpus": {"sources": [5]}}, {"task": 5},
     {"corpus": {"unigram_entropy_nats": "x"}}, {"corpus": {"corpora": {"a": 5}}}, {"sources": 5},
     {"versions": 5}, {"init_from": 5}, {"recipe": [1]}, {"rows": [1]}, {"task": {"metrics": 5}},
     {"task": {"metrics": [{}]}}, {"task": {"name": {}}}],
    ids=str,
)  # fmt: skip
def test_what_a_run_says_of_itself_is_of_its_kind(tmp_path, facts):
    (tmp_path / "config.json").write_text(json.dumps({"config": {}} | facts))
    with pytest.raises(UsageError, match=r"config\.json is damaged: `[a-z_]+` is "):
        run_directory.stored(tmp_path)


@pytest.mark.parametrize(
    "result",
    [{"scores": {}}, {"steps": "x"}, {"steps": 1, "scores": [1]}, {"steps": 1, "scores": {"a": 1}},
     {"steps": 1, "scores": {"a": {"f1": None}}}],
    ids=str,
)  # fmt: skip
def test_a_result_is_one(tmp_path, result):
    assert run_directory.result_of(tmp_path) == {}
    (tmp_path / "result.json").write_text(json.dumps(result))
    with pytest.raises(UsageError, match=r"result\.json is damaged"):
        run_directory.result_of(tmp_path)
