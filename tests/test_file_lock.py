"""Locks: one holder, which is named; a killed process leaves none."""

import errno
import multiprocessing
import os
import re
import signal
import socket
import threading
import time

import pytest

from bert_jax import file_lock
from bert_jax.errors import UsageError


def _hold(path, held):
    with file_lock.hold(path):
        held.set()
        time.sleep(60)


@pytest.fixture
def other(tmp_path):
    """A process that holds `tmp_path / "lock"`."""
    spawn = multiprocessing.get_context("spawn")
    held = spawn.Event()
    process = spawn.Process(target=_hold, args=(tmp_path / "lock", held), daemon=True)
    process.start()
    assert held.wait(60)
    yield process
    process.kill()
    process.join()


def test_the_holder_is_named_and_a_killed_one_leaves_no_lock(tmp_path, other):
    path = tmp_path / "lock"
    with file_lock.hold(path) as held:
        assert held is None
    who = f"process {other.pid} on {socket.gethostname()} is writing x; wait"
    refuse = file_lock.hold_or_refuse(path, "is writing x", "wait")
    with pytest.raises(UsageError, match=f"^{re.escape(who)}$"), refuse:
        pass
    os.kill(other.pid, signal.SIGKILL)
    other.join()
    assert path.exists()
    with file_lock.hold_or_refuse(path, "is writing x", "wait"):
        assert file_lock.holder(path) == f"process {os.getpid()} on {socket.gethostname()}"
    assert not path.exists()


def test_a_waiting_process_takes_the_new_file_if_the_old_one_was_removed(tmp_path):
    path, order = tmp_path / "lock", []

    def wait():
        with file_lock.hold(path, waits=True) as held:
            order.append("taken")
            assert held is not None and os.path.samestat(os.fstat(held), path.stat())

    with file_lock.hold_or_refuse(path, "is writing", "wait"):
        thread = threading.Thread(target=wait)
        thread.start()
        time.sleep(0.2)
        order.append("left")
    thread.join(10)
    assert order == ["left", "taken"]


def test_a_file_system_without_locks_is_noted(tmp_path, monkeypatch, caplog):
    def no_locks(*_, **__):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(file_lock.FileLock, "acquire", no_locks)
    with caplog.at_level("INFO", "bert_jax"), file_lock.hold(tmp_path / "lock") as held:
        assert held is not None
    assert f"{tmp_path}: this file system has no locks" in caplog.text
