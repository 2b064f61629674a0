"""`pretrain` with a damaged checkpoint resumes from the step before.

tests/workdir/test_recovery.py has every kind of damage to every file.
"""

import shutil

import pytest

from bert_jax.workdir import checkpoint
from tests.chaos import IS_LONG
from tests.chaos.runs import STEPS, Started, losses

pytestmark = pytest.mark.chaos


def flip(file) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize("what", ["manifest.json", "d"] if IS_LONG else ["d"])
def test_a_run_resumes_from_the_step_before(tmp_path, finished, corpus, what):
    """The damaged step is named and set aside; the run ends with the same losses."""
    workdir = shutil.copytree(finished, tmp_path / "run" / "workdir")
    before, newest = sorted(checkpoint.steps(finished))[-2:]
    files = (workdir / "checkpoints" / str(newest)).rglob("*")
    found = [p for p in files if p.is_file() and what in (p.name, p.parent.name)]
    flip(max(found, key=lambda path: path.stat().st_size))
    run = Started(tmp_path / "run", corpus)
    assert run.finish() == [0], run.log()
    assert f"step {newest} moved to " in run.log()
    assert f"resuming at step {before}" in run.log()
    assert losses(workdir) == losses(finished) and max(checkpoint.steps(workdir)) == STEPS
    assert [p.name.split("-")[0] for p in (workdir / "set_aside").iterdir()] == [str(newest)]
