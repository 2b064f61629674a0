"""Storage that fails: nothing that was saved is lost, training goes on for a while, then 7."""

import dataclasses
import os
import shutil
import subprocess

import pytest

from bert_jax.training import checkpoint
from tests.chaos.runs import CONFIG, STEPS, Started, lines, losses, state_digest

pytestmark = pytest.mark.chaos


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory, corpus):
    run = Started(tmp_path_factory.mktemp("whole") / "run", corpus)
    assert run.finish() == [0], run.log()
    return losses(run.workdir), state_digest(run.workdir)


@pytest.mark.parametrize("failures", [1, 3])
def test_saves_that_fail_and_then_succeed(tmp_path, corpus, uninterrupted, failures):
    run = Started(tmp_path / "run", corpus, faults=[f"failing-saves={failures}"])
    assert run.finish() == [0], run.log()
    failed = [e for e in lines(run.workdir / "events.jsonl") if e["event"] == "save_failed"]
    assert [e["in_a_row"] for e in failed] == list(range(1, failures + 1))
    assert "No space left on device" in run.log()
    assert (losses(run.workdir), state_digest(run.workdir)) == uninterrupted


def test_more_failures_than_are_borne(tmp_path, corpus, uninterrupted):
    run = Started(tmp_path / "run", corpus, faults=["failing-saves=99"])
    assert run.finish() == [7], run.log()
    trained = max(row["step"] for row in lines(run.workdir / "metrics.jsonl"))
    assert trained >= 3 * CONFIG.checkpoint.every_steps
    again = Started(tmp_path / "run", corpus)
    assert again.finish() == [0], again.log()
    assert (losses(again.workdir), state_digest(again.workdir)) == uninterrupted


def test_a_disk_that_is_full(tmp_path, corpus, uninterrupted):
    """A file system of a few MB, really full."""
    small = tmp_path / "small"
    small.mkdir()
    if (
        os.geteuid()
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", small], capture_output=True
        ).returncode
    ):
        pytest.skip("mounting a file system needs root")
    try:
        never = dataclasses.replace(CONFIG.checkpoint, keep_every=1)
        config = dataclasses.replace(CONFIG, checkpoint=never)
        # The log of the process is on it, too: it must not matter.
        run = Started(small / "run", corpus, config=config)
        assert run.finish() == [7], run.log()
        there = checkpoint.steps(run.workdir)
        assert there and all(checkpoint.problem(run.workdir, step) is None for step in there)
        moved = shutil.copytree(small / "run", tmp_path / "larger")
    finally:
        subprocess.run(["umount", small], check=True)
    again = Started(moved, corpus, config=config)
    assert again.finish() == [0], again.log()
    assert state_digest(again.workdir, config=config) == uninterrupted[1]
    assert max(checkpoint.steps(again.workdir)) == STEPS


def test_a_directory_that_may_not_be_written(tmp_path, corpus, uninterrupted):
    """A path through a file cannot be made, whoever asks: root, too."""
    run = Started(tmp_path / "run", corpus, faults=["step=0.05"])
    run.until(lambda: len(checkpoint.steps(run.workdir)) > 1)
    run.kill()
    root = run.workdir / "checkpoints"
    there = checkpoint.steps(run.workdir)
    subprocess.run(["chattr", "+i", root], capture_output=True)
    try:
        locked = subprocess.run(["touch", root / "x"], capture_output=True).returncode != 0
        if not locked:
            pytest.skip("this file system has no immutable directories")
        refused = Started(tmp_path / "run", corpus)
        assert refused.finish() == [7], refused.log()
        assert [s for s in there if checkpoint.problem(run.workdir, s) is None] == there
    finally:
        subprocess.run(["chattr", "-i", root], capture_output=True)
    again = Started(tmp_path / "run", corpus)
    assert again.finish() == [0], again.log()
    assert (losses(again.workdir), state_digest(again.workdir)) == uninterrupted
