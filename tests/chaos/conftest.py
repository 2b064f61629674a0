"""Makes the run that runs with faults are compared with, and a bucket with faults."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.runs import ROOT, Started


@pytest.fixture(scope="session")
def finished(shared, corpus) -> Path:
    """The workdir of a run that nothing happened to. To be read; copy it to change it."""

    def fill(directory: Path) -> None:
        run = Started(directory / "run", corpus)
        assert run.finish() == [0], run.log()

    return shared("finished", fill) / "run" / "workdir"


@pytest.fixture(scope="module")
def address():
    """The address of a server of tests/faulty_bucket.py."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.faulty_bucket", str(port)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert server.stdout is not None and server.stdout.readline() == "ready\n"
    yield f"http://localhost:{port}"
    server.kill()
    server.communicate()
