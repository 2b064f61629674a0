"""Hangs: every process ends within the deadline and reports which process hung, and where."""

import signal
import time

import pytest

from tests.chaos import IS_LONG
from tests.chaos.runs import Started, lines, with_deadline

pytestmark = pytest.mark.chaos

_DEADLINE, _GRACE = 15, 10
# Per hang: the number of processes, the process that hangs, the fault, and the text to report.
_HANGS = {
    "loader": (1, 0, "loader=9:600", "waiting for the data of step"),
    "gil": (1, 0, "gil=9:600", "faulty.py"),
    "save": (1, 0, "save=600", "waiting for a save"),
    "loader of one of two": (2, 1, "loader=9:600", "waiting for the data of step"),
    "save of one of two": (2, 0, "save=600", "waiting for a save"),
    "barrier of one of two": (2, 1, "barrier=600", "barrier"),
    # The other process names the step in which it waits.
    "stopped": (2, 1, "step=0.6", "step "),
}
_SHORT = ("loader", "stopped")


def events(run: Started) -> list[dict]:
    return lines(run.workdir / "events.jsonl")


@pytest.mark.parametrize("repeat", range(2 if IS_LONG else 1))
@pytest.mark.parametrize("what", _HANGS if IS_LONG else _SHORT)
def test_hang(tmp_path, corpus, what, repeat):
    processes, rank, fault, words = _HANGS[what]
    run = Started(
        tmp_path / "run",
        corpus,
        faults_of={rank: [fault]},
        processes=processes,
        config=with_deadline(_DEADLINE),
    )
    if what == "stopped":
        run.until(lambda: len(lines(run.workdir / "metrics.jsonl")) > 3 + repeat)
        run.processes[rank].send_signal(signal.SIGSTOP)
    else:
        said = "barrier" if "barrier" in what else "saving" if "save" in what else "is delayed"
        run.until(lambda: f"chaos: {said}" in run.log(rank) or said in run.log(rank))
    if "loader" in what:
        # Batches are made ahead, so the loop waits only after the save of step 8.
        run.until(lambda: any(e["event"] == "saving" and e["step"] == 8 for e in events(run)))
    began = time.monotonic()
    watched = [p for n, p in enumerate(run.processes) if what != "stopped" or n != rank]
    try:
        codes = [p.wait(_DEADLINE + _GRACE - (time.monotonic() - began)) for p in watched]
    finally:
        run.kill()
    # 200: the watchdog. 1: faulthandler, because the interpreter lock was held. 134 or an error of
    # a collective: the other process ended first.
    assert 200 in codes or what == "gil", (codes, run.log())
    assert 0 not in codes
    logs = [run.log(n) for n in range(processes)]
    assert any(words in log for log in logs), logs
    if processes > 1 and what != "stopped":
        assert any(f"process {rank}" in log for log in logs), logs
    if what != "gil":
        assert any("hangs: no progress for" in log for log in logs)
    # A stopped process prints nothing, so the stack of the other process is expected.
    stack = logs[0 if what == "stopped" else rank]
    assert "Current thread" in stack or "Thread 0x" in stack, logs
