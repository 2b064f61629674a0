"""A fake cloud for each test, made with the test's scenario and emptied after it."""

import contextlib
from collections.abc import Callable, Iterator

import pytest

from tests.launch.cloud import Cloud
from tests.launch.rest_api import GCLOUD, Api, lead
from tests.launch.ssh_hosts import HAS_SSHD, SshHosts


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


@pytest.fixture
def machines(cloud, request) -> Iterator[Callable[..., Cloud]]:
    """A cloud as of `cloud`, but behind it are the real gcloud, and sshd on its hosts, where both
    are installed.
    """
    with contextlib.ExitStack() as stack:

        def make(**scenario) -> Cloud:
            here = cloud(**scenario)
            if GCLOUD is not None and HAS_SSHD:
                lead(here, request.getfixturevalue("api"))
                here.api.machines = SshHosts(here, scenario.get("environment", {}))
                stack.callback(here.api.machines.end)
            return here

        yield make
