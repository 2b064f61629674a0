"""Makes the run that runs with faults are compared with."""

from pathlib import Path

import pytest

from tests.chaos.runs import Started


@pytest.fixture(scope="session")
def finished(shared, corpus) -> Path:
    """The workdir of a run that nothing happened to. To be read; copy it to change it."""

    def fill(directory: Path) -> None:
        run = Started(directory / "run", corpus)
        assert run.finish() == [0], run.log()

    return shared("finished", fill) / "run" / "workdir"
