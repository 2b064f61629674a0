"""A workdir has one trainer: a second one is refused, and says who the first one is."""

import os
import socket
import subprocess
import sys

import pytest

from bert_jax.__main__ import main
from bert_jax.errors import UsageError
from bert_jax.workdir import location, run_directory
from bert_jax.workdir.run_directory import only_trainer
from tests import tiny_corpus


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(run_directory, "_HERE_SECONDS", 0.3)


def test_a_second_trainer_is_refused(tmp_path, corpus, capsys):
    """Whatever writes there is: nothing is changed, and it is code 2."""
    config = tiny_corpus.write_config(tmp_path / "tiny.json", tiny_corpus.tiny_config())
    workdir = tmp_path / "run"
    commands = [
        ["pretrain", str(config), "--corpus", str(corpus), "--workdir", str(workdir)],
        ["finetune", "--task", "cola", "--checkpoint", str(tmp_path), "--workdir", str(workdir)],
    ]
    by = f"process {os.getpid()} on {socket.gethostname()} trains in {workdir}"
    with only_trainer(workdir):
        for command in commands:
            assert main(command) == 2
            said = capsys.readouterr().err.splitlines()[-1]
            assert f"error: {by}; wait until it has ended, end it, or choose another" in said
        assert [path.name for path in workdir.iterdir()] == [location.LOCK]
        assert run_directory.is_free(workdir)
    assert not workdir.exists(), "nothing came to be there"

    workdir.mkdir()
    (workdir / run_directory.CONFIG).write_text("{}")
    with only_trainer(workdir):
        for what in (["prune"], ["rollback", "--step", "1"]):
            assert main(["checkpoints", what[0], str(workdir), *what[1:]]) == 2
            assert f"error: {by}; wait until" in capsys.readouterr().err
    assert not (workdir / location.LOCK).exists()


def test_one_that_was_killed_holds_nothing(tmp_path):
    """The operating system lets go of its lock, though its file is still there."""
    workdir = tmp_path / "run"
    code = f"""
import os, signal
from bert_jax.workdir.run_directory import only_trainer
with only_trainer({str(workdir)!r}):
    os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", code]).returncode == -9
    assert (workdir / location.LOCK).exists()
    with only_trainer(workdir):
        pass


def test_one_that_is_about_to_end_is_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(run_directory, "_HERE_SECONDS", 60.0)
    monkeypatch.setattr(run_directory, "_POLL_SECONDS", 0.01)
    first = only_trainer(tmp_path)
    first.__enter__()
    asked = []
    is_held = run_directory._is_held

    def ends_meanwhile(lock):
        asked.append(is_held(lock))
        if len(asked) == 2:
            first.__exit__(None, None, None)
        return asked[-1]

    monkeypatch.setattr(run_directory, "_is_held", ends_meanwhile)
    with only_trainer(tmp_path):
        assert asked[:2] == [True, True]


def test_a_bucket_is_held_on_this_machine(tmp_path, monkeypatch):
    monkeypatch.setenv("BERT_JAX_CACHE", str(tmp_path))
    with (
        only_trainer("gs://bucket/run"),
        only_trainer("gs://bucket/other"),
        pytest.raises(UsageError, match=r"trains in gs://bucket/run; wait"),
        only_trainer("gs://bucket/run"),
    ):
        pass
