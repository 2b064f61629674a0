"""`--distributed` on Cloud TPU and GKE: jax finds the processes from the metadata server and the
environment. Each host has its own server, on loopback; the processes are real, on CPUs."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.runs import ROOT
from tests.launch.rest_api import Api
from tests.limits import HUNG

pytestmark = pytest.mark.chaos


class Metadata(Api):
    """The metadata server of one host: its attributes by name, and the names requested."""

    def __init__(self, attributes: dict[str, str]) -> None:
        super().__init__()
        self.attributes, self.names = attributes, set[str]()

    def answer(self, method: str, path: str) -> tuple[int, Any]:
        name = path.removeprefix("/computeMetadata/v1/instance/attributes/")
        self.names.add(name)
        return (200, self.attributes[name].encode()) if name in self.attributes else (404, b"")


class Hosts:
    """Two hosts, each with a metadata server, an environment and one process."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self.stack = stack
        self.devices = directory / "devices"
        for number in range(4):  # the chips of a v4 host
            (self.devices / str(number)).mkdir(parents=True)
            (self.devices / str(number) / "vendor").write_text("0x1ae0\n")
            (self.devices / str(number) / "device").write_text("0x005e\n")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = str(free.getsockname()[1])
        self.servers: list[Metadata] = []

    def run(self, attributes: list[dict[str, str]], settings: list[dict[str, str]]) -> list[str]:
        """Returns the output of each process; all exit with 0."""
        self.servers = [self.stack.enter_context(Metadata(of_host)) for of_host in attributes]
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("TPU_", "MEGASCALE_"))}
        started = []
        for server, more in zip(self.servers, settings, strict=True):
            environment = kept | {
                "JAX_PLATFORMS": "cpu",
                "JAX_NUM_CPU_DEVICES": "2",
                "JAX_FORCE_TPU_INIT": "1",  # in place of libtpu
                "JAX_COORDINATOR_PORT": self.port,
                "GCE_METADATA_IP": f"127.0.0.1:{server.server_port}",
                "TF_CPP_MIN_LOG_LEVEL": "3",
            }
            command = [sys.executable, "-m", "tests.chaos.detected", str(self.devices)]
            started.append(
                subprocess.Popen(
                    command, cwd=ROOT, env=environment | more, text=True,
                    stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                )
            )  # fmt: skip
        try:
            printed = [process.communicate(timeout=HUNG) for process in started]
        finally:
            for process in started:
                process.kill()
                process.wait()
        assert [process.returncode for process in started] == [0, 0], printed
        return [out for out, _ in printed]


@pytest.fixture
def hosts(tmp_path) -> Iterator[Hosts]:
    with ExitStack() as stack:
        yield Hosts(tmp_path, stack)


def of_slice(*numbers: int, **tpu_env: str) -> list[dict[str, str]]:
    """Returns the attributes that Cloud TPU gives to the hosts of a slice."""
    return [
        {
            "agent-worker-number": str(number),
            "worker-network-endpoints": ",".join(f"unknown:{i}:127.0.0.1" for i in numbers),
            "tpu-env": "".join(f"{key}: '{value}'\n" for key, value in tpu_env.items()),
        }
        for number in numbers
    ]


def check_all_met(hosts: Hosts, out: list[str]) -> None:
    for number, text in enumerate(out):
        assert json.loads(text) == {
            "coordinator": f"127.0.0.1:{hosts.port}",
            "told": [number, 2],
            "has": [number, 2],
            "devices": 4,
            "exchanged": ["process 0", "process 1"],
        }


def test_workers_of_cloud_tpu(hosts):
    check_all_met(hosts, hosts.run(of_slice(0, 1, ACCELERATOR_TYPE="v4-16"), [{}, {}]))
    for server in hosts.servers:
        assert server.names >= {"agent-worker-number", "worker-network-endpoints", "tpu-env"}


def test_two_slices_of_cloud_tpu(hosts):
    """Two slices of one host: process numbers continue, and the first host coordinates."""
    told = {"MEGASCALE_COORDINATOR_ADDRESS": "127.0.0.1:8081", "MEGASCALE_NUM_SLICES": "2"}
    attributes = [
        *of_slice(0, **told, MEGASCALE_SLICE_ID="0"),
        *of_slice(0, **told, MEGASCALE_SLICE_ID="1"),
    ]
    check_all_met(hosts, hosts.run(attributes, [{}, {}]))


def test_pods_of_gke(hosts):
    """GKE sets these variables in a pod that requests TPUs."""
    names = {"TPU_WORKER_HOSTNAMES": "127.0.0.1,127.0.0.1", "TPU_SKIP_MDS_QUERY": "true"}
    settings = [names | {"TPU_WORKER_ID": str(number)} for number in range(2)]
    check_all_met(hosts, hosts.run([{"tpu-env": ""}, {"tpu-env": ""}], settings))
    assert all("agent-worker-number" not in server.names for server in hosts.servers)
