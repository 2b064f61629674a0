"""The watchdog ends a process without progress, and names its activity and its line."""

import subprocess
import sys

from bert_jax.runtime.watchdog import HANG
from tests.limits import HUNG

_PROGRAM = """
import time
from bert_jax.runtime.watchdog import Watchdog

def loads():
    time.sleep(600)

with Watchdog(1.0) as watchdog:
    for step in range(30):
        watchdog.at(f"step {step}")
        time.sleep(0.05)
    watchdog.at("compiling", patience=4.0)
    time.sleep(2.0)
    print("lives", flush=True)
    watchdog.at("waiting for data")
    loads()
"""


def test_a_process_without_progress_ends_with_its_activity_and_its_stack():
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], capture_output=True, text=True, timeout=HUNG
    )
    assert done.returncode == HANG and done.stdout == "lives\n"
    assert "process 0 of 1 hangs" in done.stderr and "'waiting for data'" in done.stderr
    assert "in loads" in done.stderr
