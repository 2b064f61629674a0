"""The undisturbed run for comparisons, and a bucket with faults."""

from pathlib import Path

import pytest

from tests.chaos.runs import Started
from tests.faulty_bucket import serving


@pytest.fixture(scope="session")
def finished(shared, corpus) -> Path:
    """The workdir of an undisturbed run. Copy it to change it."""

    def fill(directory: Path) -> None:
        run = Started(directory / "run", corpus)
        assert run.finish() == [0], run.log()

    return shared("finished", fill) / "run" / "workdir"


@pytest.fixture(scope="session")
def finished_by_two(shared, corpus) -> Path:
    """The workdir of an undisturbed run of two processes with two devices each."""

    def fill(directory: Path) -> None:
        run = Started(directory / "run", corpus, processes=2, devices=2)
        assert run.finish() == [0, 0], run.log()

    return shared("finished-by-two", fill) / "run" / "workdir"


@pytest.fixture(scope="module")
def address():
    """The address of a server from tests/faulty_bucket.py."""
    with serving() as found:
        yield found
