"""A fake cloud for each test, made with the test's scenario and emptied after it."""

from collections.abc import Callable, Iterator

import pytest

from tests.launch.cloud import Cloud
from tests.launch.rest_api import GCLOUD, Api, settings_of
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
def machines(cloud, request) -> Iterator[Callable[..., tuple[Cloud, dict[str, str], Callable]]]:
    """Returns a cloud, settings that lead there, and what takes its machine away: behind it are the
    real gcloud, and sshd on its hosts, where both are installed, else fakes.
    """
    made: list[SshHosts] = []

    def make(**scenario) -> tuple[Cloud, dict[str, str], Callable[[], None]]:
        here = cloud(**scenario)
        if GCLOUD is None or not HAS_SSHD:
            return here, {}, lambda: here.set_states("SUSPENDED")
        api = request.getfixturevalue("api")
        settings = settings_of(here.directory, api)
        api.machines = SshHosts(here, settings | scenario.get("environment", {}))
        made.append(api.machines)
        return here, settings, lambda: api.lose("SUSPENDED", "PREEMPTED")

    yield make
    for hosts in made:
        hosts.end()
