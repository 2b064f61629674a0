"""A fake cloud for each test, made with the test's scenario and emptied after it."""

from collections.abc import Callable, Iterator

import pytest

from tests.launch.cloud import Cloud


@pytest.fixture
def cloud(tmp_path) -> Iterator[Callable[..., Cloud]]:
    made: list[Cloud] = []

    def make(**scenario) -> Cloud:
        made.append(Cloud(tmp_path / f"cloud{len(made)}", **scenario))
        return made[-1]

    yield make
    for one in made:
        one.close()
