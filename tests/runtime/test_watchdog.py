"""The watchdog names a process that keeps the others waiting, and ends none that was stopped."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bert_jax.runtime import watchdog
from tests.limits import HUNG


def test_slowness_is_judged_when_all_can_be_compared(caplog):
    """Process 0 may begin long before the others; until they have, there is nothing to say."""
    watching = watchdog.Watchdog(900.0)
    watching._ranks = 3
    slow = []
    watching.on_slow = lambda process, share: slow.append(process)
    for spent in ({}, {0: 9.0}, {0: 9.0, 1: 0.1}):
        watching._name_slow(spent, set())
    assert slow == []
    watching._name_slow({0: 9.0, 1: 0.1, 2: 0.2}, set())
    assert slow == [0] and "process 0 keeps the others waiting" in caplog.text


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_a_run_that_was_stopped_from_the_keyboard_goes_on():
    """Ctrl-Z, and `fg` after more than the deadline: the time between them is no hang."""
    code = """
import time
from bert_jax.runtime import watchdog
from bert_jax.runtime.preemption import Preemption
watchdog._BACKSTOP_SECONDS = 0.5
with Preemption() as preemption, watchdog.Watchdog(1.0) as watching:
    preemption.suspended = watching.suspended
    print("begun", flush=True)
    for _ in range(40):
        watching.at("step")
        time.sleep(0.05)
    print("ended", flush=True)
    time.sleep(600)  # which is one
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None and run.stdout.readline() == "begun\n"
        os.kill(run.pid, signal.SIGTSTP)
        while Path(f"/proc/{run.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
            assert run.poll() is None
            time.sleep(0.01)
        time.sleep(2.0)
        os.kill(run.pid, signal.SIGCONT)
        assert run.stdout.read() == "ended\n"
        # The watchdog itself, or its backstop.
        assert run.wait(HUNG) in (watchdog.HANG, 1)
