"""`--distributed` as on Cloud TPU and GKE: jax finds the processes by what a metadata server and
the environment say. Each host has its server, on loopback; the processes are real, on CPUs."""

import dataclasses
import http.server
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from bert_jax.config import PhaseConfig
from tests import tiny_corpus
from tests.chaos import long_form
from tests.chaos.runs import CONFIG, ROOT, lines
from tests.limits import HUNG

pytestmark = pytest.mark.chaos

_ATTRIBUTES = "/computeMetadata/v1/instance/attributes/"


class Metadata(http.server.ThreadingHTTPServer):
    """The metadata server of one host: its attributes by name, and which were asked for."""

    def __init__(self, attributes: dict[str, str]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.attributes = attributes
        self.asked: set[str] = set()
        self.thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    def stop(self) -> None:
        self.shutdown()
        self.thread.join()
        self.server_close()


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Metadata

    def do_GET(self) -> None:
        name = self.path.removeprefix(_ATTRIBUTES)
        self.server.asked.add(name)
        # The real one answers nobody who does not say this.
        is_answered = (
            self.headers.get("Metadata-Flavor") == "Google" and name in self.server.attributes
        )
        text = self.server.attributes.get(name, "").encode() if is_answered else b""
        self.send_response(200 if is_answered else 404)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


class Hosts:
    """Two hosts, each with its metadata server, its environment and one process."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.devices = directory / "devices"
        for number in range(4):  # the chips of a v4 host
            (self.devices / str(number)).mkdir(parents=True)
            (self.devices / str(number) / "vendor").write_text("0x1ae0\n")
            (self.devices / str(number) / "device").write_text("0x005e\n")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = str(free.getsockname()[1])
        self.servers: list[Metadata] = []

    def run(
        self, attributes: list[dict[str, str]], settings: list[dict[str, str]], *words: str
    ) -> list[str]:
        """Returns what each process prints; all end with 0."""
        self.servers = [Metadata(of_host) for of_host in attributes]
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
            command = [sys.executable, "-m", "tests.chaos.detected", str(self.devices), *words]
            started.append(
                subprocess.Popen(
                    command, cwd=ROOT, env=environment | more, text=True,
                    stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                )
            )  # fmt: skip
        try:
            said = [process.communicate(timeout=HUNG) for process in started]
        finally:
            for process in started:
                process.kill()
                process.wait()
        assert [process.returncode for process in started] == [0, 0], said
        return [out for out, _ in said]

    def stop(self) -> None:
        for server in self.servers:
            server.stop()


@pytest.fixture
def hosts(tmp_path) -> Iterator[Hosts]:
    made = Hosts(tmp_path)
    yield made
    made.stop()


def of_slice(*numbers: int, **tpu_env: str) -> list[dict[str, str]]:
    """Returns the attributes of the workers of a slice, as Cloud TPU gives them to its hosts."""
    return [
        {
            "agent-worker-number": str(number),
            "worker-network-endpoints": ",".join(f"unknown:{i}:127.0.0.1" for i in numbers),
            "tpu-env": "".join(f"{key}: '{value}'\n" for key, value in tpu_env.items()),
        }
        for number in numbers
    ]


def check_that_they_met(hosts: Hosts, out: list[str]) -> None:
    for number, text in enumerate(out):
        assert json.loads(text) == {
            "coordinator": f"127.0.0.1:{hosts.port}",
            "told": [number, 2],
            "has": [number, 2],
            "devices": 4,
            "said": ["process 0", "process 1"],
        }


def test_workers_of_cloud_tpu(hosts):
    check_that_they_met(hosts, hosts.run(of_slice(0, 1, ACCELERATOR_TYPE="v4-16"), [{}, {}]))
    for server in hosts.servers:
        assert server.asked >= {"agent-worker-number", "worker-network-endpoints", "tpu-env"}


@long_form
def test_a_run_on_cloud_tpu(hosts, corpus):
    """The trainer as the launcher starts it: --distributed, and nothing else that differs."""
    phase = PhaseConfig(sequence_length=32, steps=12, global_batch_size=16, max_predictions=5)
    config = dataclasses.replace(CONFIG, phases=(phase,))
    named = tiny_corpus.write_config(hosts.directory / "config.json", config)
    workdir = hosts.directory / "workdir"
    words = ("pretrain", named, "--corpus", corpus, "--workdir", workdir, "--distributed")
    hosts.run(of_slice(0, 1, ACCELERATOR_TYPE="v4-16"), [{}, {}], *map(str, words))
    assert max(row["step"] for row in lines(workdir / "metrics.jsonl")) == 12
    (start,) = [e for e in lines(workdir / "events.jsonl") if e["event"] == "start"]
    assert start["processes"] == 2


def test_two_slices_of_cloud_tpu(hosts):
    """One host each: numbers run on over the slices, and the first host of all leads."""
    told = {"MEGASCALE_COORDINATOR_ADDRESS": "127.0.0.1:8081", "MEGASCALE_NUM_SLICES": "2"}
    attributes = [
        *of_slice(0, **told, MEGASCALE_SLICE_ID="0"),
        *of_slice(0, **told, MEGASCALE_SLICE_ID="1"),
    ]
    check_that_they_met(hosts, hosts.run(attributes, [{}, {}]))


def test_pods_of_gke(hosts):
    """By the variables that GKE gives to a pod that asks for TPUs."""
    names = {"TPU_WORKER_HOSTNAMES": "127.0.0.1,127.0.0.1", "TPU_SKIP_MDS_QUERY": "true"}
    settings = [names | {"TPU_WORKER_ID": str(number)} for number in range(2)]
    check_that_they_met(hosts, hosts.run([{"tpu-env": ""}, {"tpu-env": ""}], settings))
    assert all("agent-worker-number" not in server.asked for server in hosts.servers)
