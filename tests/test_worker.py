"""Worker processes, and the one that counts for them, when a terminal closes."""

import os
import subprocess
import sys

from tests.limits import HUNG

_PARENT = """
import concurrent.futures, multiprocessing, os, signal, sys, time
from bert_jax import worker

signal.signal(signal.SIGHUP, lambda *_: sys.exit(42))
worker.prepare_for_workers()
assert signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
with concurrent.futures.ProcessPoolExecutor(
    1, mp_context=multiprocessing.get_context("spawn"), initializer=worker.begin
) as pool:
    pool.submit(abs, 1).result()
    os.killpg(0, signal.SIGHUP)  # as a terminal does it: to all of its processes
    time.sleep(20)
"""


def test_a_closed_terminal_leaves_no_traceback():
    """The process that counts the semaphores of a pool would be missed."""
    done = subprocess.run(
        [sys.executable, "-c", _PARENT],
        capture_output=True,
        text=True,
        timeout=HUNG,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert (done.returncode, done.stderr) == (42, "")
