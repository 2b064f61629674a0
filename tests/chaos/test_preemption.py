"""SIGTERM at any time, to any process: all processes save and exit with 42."""

import signal
import time

import pytest

from bert_jax.workdir import checkpoint
from tests.chaos import IS_LONG
from tests.chaos.runs import CONFIG, Started, lines, losses, state_digest

pytestmark = pytest.mark.chaos

_SECONDS = 20
# The stage at which SIGTERM arrives, and the faults that make the stage last long enough.
_MOMENTS = {
    "import": ["say=import"],
    "compile": ["say=compile"],
    "train": ["step=0.1"],
    "evaluate": ["say=evaluate", "step=0.02"],
    "save": ["save=2"],
    "data": ["loader=9:60"],
}
# A process that waits for data delays the other processes as long.
_MOMENTS_OF_TWO = _MOMENTS | {"data": ["loader=9:5"]}
_CASES = [
    (moment, processes, target, draw)
    for draw in range(2 if IS_LONG else 1)
    for moment in (_MOMENTS if IS_LONG else ("compile", "evaluate", "save", "data"))
    for processes, target in ([(1, 0), (2, 1)] if IS_LONG else [(1, 0)])
]
if not IS_LONG:
    _CASES.append(("train", 2, 1, 0))


@pytest.mark.parametrize(("moment", "processes", "target", "draw"), _CASES)
def test_sigterm(tmp_path, corpus, finished, moment, processes, target, draw):
    faults = (_MOMENTS if processes == 1 else _MOMENTS_OF_TWO)[moment]
    run = Started(tmp_path / "run", corpus, faults=faults, processes=processes)
    metrics = run.workdir / "metrics.jsonl"
    if moment == "train":
        run.until(lambda: len(lines(metrics)) >= 3 + 7 * draw)
    else:
        said = {"save": "saving", "data": "is delayed"}.get(moment, f"chaos: {moment}")
        often = 1 if moment in ("import", "compile", "data") else 1 + draw
        # Process 0 writes the manifest.
        teller = 0 if moment == "save" else target
        run.until(lambda: run.log(teller).count(said) >= often)
        time.sleep(draw if often == 1 else 0)  # during the stage
    last_row = max((row["step"] for row in lines(metrics)), default=0)
    began = time.monotonic()
    run.processes[target].send_signal(signal.SIGTERM)
    codes = run.finish(120)
    seconds = time.monotonic() - began
    assert codes == [42] * processes, run.log()
    # While several processes compile, they cannot agree on a step.
    assert seconds < _SECONDS or (processes == 2 and moment == "compile"), seconds
    there = checkpoint.steps(run.workdir)
    assert max(there, default=0) >= last_row, "more than the current step is lost"
    if moment == "train":
        (preempted,) = [e for e in lines(run.workdir / "events.jsonl") if e["event"] == "preempt"]
        assert preempted["step"] == max(there) == lines(metrics)[-1]["step"]

    if processes == 1:
        again = Started(tmp_path / "run", corpus)
        assert again.finish() == [0], again.log()
        assert losses(again.workdir) == losses(finished)
        assert state_digest(again.workdir) == state_digest(finished)


@pytest.mark.parametrize(("step", "moment"), [(4, "loader=4:60"), (24, "say=compile")])
def test_sigterm_while_a_save_fails(tmp_path, corpus, step, moment):
    """The message names the saved step, within a phase and between two phases."""
    number = step // CONFIG.checkpoint.every_steps
    run = Started(tmp_path / "run", corpus, faults=[f"late-failure={number}", moment])
    events = run.workdir / "events.jsonl"
    run.until(lambda: any(e["event"] == "saving" and e["step"] == step for e in lines(events)))
    if moment == "say=compile":
        run.until(lambda: run.log().count("chaos: compile") == 2)
    run.processes[0].send_signal(signal.SIGTERM)
    assert run.finish(120) == [42], run.log()
    assert "No space left on device" in run.log()
    assert f"step {step} is saved and the same command resumes from it" in run.log()
    assert max(checkpoint.steps(run.workdir)) == step
