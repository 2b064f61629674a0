"""What the faults are compared with."""

from pathlib import Path

import pytest

from tests.chaos.runs import Started


@pytest.fixture(scope="session")
def finished(tmp_path_factory, corpus) -> Path:
    """The workdir of a run that nothing happened to. To be read; copy it to change it."""
    run = Started(tmp_path_factory.mktemp("finished") / "run", corpus)
    assert run.finish() == [0], run.log()
    return run.workdir
