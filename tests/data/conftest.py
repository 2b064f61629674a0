"""Places other than a disk, for the tests of this folder."""

from collections.abc import Iterator

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from tests.faulty_bucket import reached


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    with reached() as place:
        yield place


@pytest.fixture
def memory() -> Iterator[MemoryFileSystem]:
    system = fsspec.filesystem("memory")
    yield system
    system.store.clear()
    system.pseudo_dirs[:] = [""]
