"""Saved on one arrangement of processes and devices, resumed on another: the same run."""

import pytest

from tests.chaos import IS_LONG
from tests.chaos.runs import CONFIG, Started, lines, losses, state_digest

pytestmark = pytest.mark.chaos

_SAVED = [(1, 4), (2, 2), (4, 1)] if IS_LONG else [(2, 2)]
_RESUMED = [(1, 1), (1, 8), (2, 2), (4, 1)] if IS_LONG else [(1, 1)]


@pytest.fixture(scope="module")
def halves(tmp_path_factory, corpus):
    """For each arrangement: the whole run, and one that was killed after its first saves."""
    import shutil

    found = {}
    for shape in _SAVED:
        directory = tmp_path_factory.mktemp(f"{shape[0]}x{shape[1]}")
        whole = Started(directory / "whole", corpus, processes=shape[0], devices=shape[1])
        assert whole.finish() == [0] * shape[0], whole.log()
        run = Started(
            directory / "half",
            corpus,
            faults=["step=0.1"],
            processes=shape[0],
            devices=shape[1],
        )
        events = run.workdir / "events.jsonl"
        run.until(lambda e=events: any(x["event"] == "save" and x["step"] >= 8 for x in lines(e)))
        run.kill()
        found[shape] = (losses(whole.workdir), state_digest(whole.workdir), directory / "half")
        shutil.rmtree(directory / "whole")
    return found


@pytest.mark.parametrize("resumed", _RESUMED)
@pytest.mark.parametrize("saved", _SAVED)
def test_resumed_elsewhere(tmp_path, corpus, halves, saved, resumed):
    import shutil

    whole, digest, half = halves[saved]
    shutil.copytree(half, tmp_path / "run")
    run = Started(tmp_path / "run", corpus, processes=resumed[0], devices=resumed[1])
    assert run.finish() == [0] * resumed[0], run.log()
    assert "resuming at step" in run.log()
    found = losses(run.workdir)
    assert [row[:2] for row in found] == [row[:2] for row in whole]
    if saved == resumed:
        assert found == whole and state_digest(run.workdir) == digest
    for ours, theirs in zip(found, whole, strict=True):
        # Of an evaluation before training has settled, too: the masks are the same.
        assert ours[2] == pytest.approx(theirs[2], rel=1e-5), ours
    assert max(row[0] for row in found) == sum(phase.steps for phase in CONFIG.phases)
