"""A fake cloud with the scenario of a test, emptied after the test."""

from collections.abc import Callable, Iterator

import pytest

from tests.launch.cloud import Cloud
from tests.launch.rest_api import Api


@pytest.fixture
def cloud(tmp_path) -> Iterator[Callable[..., Cloud]]:
    made: list[Cloud] = []

    def make(**scenario) -> Cloud:
        made.append(Cloud(tmp_path / f"cloud{len(made)}", **scenario))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def api() -> Iterator[Api]:
    with Api() as server:
        yield server
