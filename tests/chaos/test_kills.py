"""SIGKILL at any time: the run resumes and ends with the bits of an undisturbed run."""

import random
import shutil
import time

import pytest

from tests.chaos import IS_LONG
from tests.chaos.runs import STEPS, Started, lines, losses, state_digest
from tests.limits import HUNG

pytestmark = pytest.mark.chaos

_KILLS = 25 if IS_LONG else 2
_CASES = [(2, ("commit-files=1",)), (1, ()), (1, ("commit-files=1",)), (2, ())]


@pytest.mark.parametrize(("processes", "faults"), _CASES if IS_LONG else _CASES[:1])
def test_kills(tmp_path, corpus, request, processes, faults):
    whole = request.getfixturevalue("finished" if processes == 1 else "finished_by_two")
    draw = random.Random(len(faults) + 10 * processes)
    kills = unfinished = 0
    while True:
        run = Started(
            tmp_path / "run",
            corpus,
            processes=processes,
            devices=processes,
            faults=["step=0.03", *faults],
        )
        events = run.workdir / "events.jsonl"
        if kills == _KILLS:
            break
        starts = len(lines(events))
        run.until(lambda starts=starts, events=events: len(lines(events)) > starts, 240)
        if kills % 2:
            # During a save: its files exist, and its manifest does not.
            root = run.workdir / "checkpoints"

            def is_saving(root=root) -> bool:
                there = list(root.iterdir()) if root.is_dir() else []
                return any(not (p / "manifest.json").exists() for p in there)

            deadline = time.monotonic() + HUNG
            while not is_saving() and run.processes[0].poll() is None:
                assert time.monotonic() < deadline, run.log()
                time.sleep(0.001)
        else:
            time.sleep(draw.uniform(0, 4))
        if any(p.poll() is not None for p in run.processes):  # the run has finished: repeat
            assert run.finish() == [0] * processes, run.log()
            shutil.rmtree(tmp_path / "run")
            continue
        run.kill()
        root = run.workdir / "checkpoints"
        there = list(root.iterdir()) if root.is_dir() else []
        unfinished += any(not (p / "manifest.json").exists() for p in there)
        kills += 1
    assert run.finish() == [0] * processes, run.log()
    assert losses(run.workdir) == losses(whole)
    assert state_digest(run.workdir) == state_digest(whole)
    assert [p for p in (run.workdir / "checkpoints").iterdir() if not p.name.isdigit()] == []
    assert max(e["step"] for e in lines(run.workdir / "events.jsonl") if "step" in e) == STEPS
    assert unfinished or not IS_LONG
    print(f"{kills} kills, {unfinished} of them left an unfinished save")
