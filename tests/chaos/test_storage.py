"""Failing storage: saved steps stay, training continues up to a limit, then exit code 7."""

import dataclasses
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from bert_jax.workdir import checkpoint
from tests.chaos import IS_LONG
from tests.chaos.runs import CONFIG, STEPS, Started, lines, losses, state_digest

pytestmark = pytest.mark.chaos


def _end(workdir: Path, config=CONFIG) -> tuple:
    return losses(workdir), state_digest(workdir, config=config)


@pytest.mark.parametrize("failures", [1, 3] if IS_LONG else [1])
def test_saves_that_fail_and_then_succeed(tmp_path, corpus, finished, failures):
    run = Started(tmp_path / "run", corpus, faults=[f"failing-saves={failures}"])
    assert run.finish() == [0], run.log()
    failed = [e for e in lines(run.workdir / "events.jsonl") if e["event"] == "save_failed"]
    assert [e["in_a_row"] for e in failed] == list(range(1, failures + 1))
    assert "No space left on device" in run.log()
    assert _end(run.workdir) == _end(finished)


def test_a_full_disk_ends_the_run_and_keeps_good_steps(tmp_path, corpus, finished):
    """A tmpfs of 3 MB."""
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
        # The log of the process is on the same file system.
        run = Started(small / "run", corpus, config=config)
        assert run.finish() == [7], run.log()
        there = checkpoint.steps(run.workdir)
        assert there and all(checkpoint.problem(run.workdir, step) is None for step in there)
        moved = shutil.copytree(small / "run", tmp_path / "larger")
    finally:
        subprocess.run(["umount", small], check=True)
    again = Started(moved, corpus, config=config)
    assert again.finish() == [0], again.log()
    assert _end(again.workdir, config)[1] == _end(finished)[1]
    assert max(checkpoint.steps(again.workdir)) == STEPS
