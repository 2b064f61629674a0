"""The launcher's commands, executed by the real gcloud against Google's APIs on loopback.

The SDK needs no account for this: a token that means nothing, and other endpoints. It is skipped
where there is no SDK, and the lives over real ssh where there is no sshd.
"""

import getpass
import re
import subprocess
import time
from collections.abc import Callable

import pytest

from tests.launch.cloud import ROOT
from tests.launch.rest_api import GCLOUD, Api, settings_of
from tests.launch.ssh_hosts import HAS_SSHD

pytestmark = pytest.mark.skipif(GCLOUD is None, reason="the Google Cloud SDK is not installed")
needs_sshd = pytest.mark.skipif(
    not HAS_SSHD, reason="sshd is not installed: the fake cloud has to do"
)


def test_a_machine_is_asked_for_looked_at_and_deleted(cloud, api):
    here = cloud(number_of_hosts=1)
    settings = settings_of(here.directory, api)
    options = ("--capacity=spot", "--valid-until-duration=6h", "--data-disk=books")
    made = here.tpu("create", *options, **settings)
    assert made.returncode == 0 and "pod: ready" in made.stderr, made.stderr
    deleted = here.tpu("delete", **settings)
    assert deleted.returncode == 0 and "pod is gone" in deleted.stderr, deleted.stderr
    place = "/v2/projects/p/locations/z"
    changing = [request for request in api.requests if request[0] != "GET"]
    ((_, posted, body), (method, removed, _)) = changing
    assert posted.startswith(f"{place}/queuedResources?") and "queuedResourceId=pod" in posted
    (spec,) = body["tpu"]["nodeSpec"]
    assert (spec["nodeId"], spec["parent"]) == ("pod", "projects/p/locations/z")
    node = spec["node"]
    assert (node["acceleratorType"], node["runtimeVersion"]) == ("v4-8", "tpu-ubuntu2204-base")
    disk = {"mode": "READ_ONLY", "sourceDisk": "projects/p/zones/z/disks/books"}
    assert node["dataDisks"] == [disk]
    assert body["spot"] == {} and body["queueingPolicy"] == {"validUntilDuration": "21600s"}
    # What ends its costs is in the request, whole.
    script = node["metadata"]["startup-script"]
    assert "TPU=projects/p/locations/z/pod\nMAX_SECONDS=86400\nSTART_SECONDS=3600\n" in script
    assert script.endswith((ROOT / "launch/boot.sh").read_text())
    assert method == "DELETE" and removed.startswith(f"{place}/queuedResources/pod?")
    assert "force=True" in removed
    looked = {path.partition("?")[0] for method, path, _ in api.requests if method == "GET"}
    everywhere = "/v2/projects/p/locations/-/queuedResources"
    assert looked == {f"{place}/queuedResources/pod", f"{place}/nodes/pod", everywhere}


def test_another_zone_type_or_run_is_seen(cloud, api):
    """In the words of the API, by the formats and filters of the SDK."""
    here = cloud(number_of_hosts=1)
    settings = settings_of(here.directory, api)
    run = ("--config=tiny_docs_cpu", "--corpus=/c", "--workdir=gs://b/run")
    assert here.tpu("create", *run, **settings).returncode == 0
    (body,) = [body for method, _, body in api.requests if method == "POST"]
    labels = body["tpu"]["nodeSpec"][0]["node"]["labels"]
    assert re.fullmatch(r"[0-9a-f]{12}", labels["bert_jax_run"])
    for options, said in (
        (("--type=v4-64",), "pod in z is a v4-8, not a v4-64"),
        (("--config=bert_base", *run[1:]), f"pod in z is run {labels['bert_jax_run']}'s"),
    ):
        done = here.tpu("create", *options, **settings)
        assert done.returncode == 2 and said in done.stderr, done.stderr
    assert here.tpu("create", *run, **settings).returncode == 0
    api.resources["pod2"] = api.resources.pop("pod")  # one of another name is no matter
    api.elsewhere.append("projects/p/locations/zb/queuedResources/pod")
    done = here.tpu("create", *run, **settings)
    assert done.returncode == 2 and "pod is in zb already: --zone=zb" in done.stderr, done.stderr
    assert len([r for r in api.requests if r[0] == "POST"]) == 1


def test_flex_start_has_its_duration(cloud, api):
    here = cloud(number_of_hosts=1)
    settings = settings_of(here.directory, api)
    done = here.tpu("create", "--capacity=flex-start", "--max-hours=4", **settings)
    assert done.returncode == 0, done.stderr
    (body,) = [body for method, _, body in api.requests if method == "POST"]
    assert (body["provisioningModel"], body["runDuration"]) == (
        "FLEX_START",
        {"maxRunDuration": "14400s"},
    )
    assert "startup-script" in body["tpu"]["nodeSpec"][0]["node"]["metadata"]


@pytest.mark.parametrize(
    ("capacity", "model"), [("spot", "SPOT"), ("reserved", "RESERVATION_BOUND")]
)
def test_the_alpha_track_is_told_the_model(cloud, api, capacity, model):
    """Where it is not, the SDK writes STANDARD beside `spot`, which contradict each other."""
    here = cloud(number_of_hosts=1)
    settings = settings_of(here.directory, api)
    options = ("--autocheckpoint", f"--capacity={capacity}", "--slices=2")
    done = here.tpu("create", *options, **settings)
    assert done.returncode == 0, done.stderr
    (body,) = [body for method, _, body in api.requests if method == "POST"]
    (spec,) = body["tpu"]["nodeSpec"]
    assert body["provisioningModel"] == model
    assert {
        "spot": body.get("spot") == {},
        "reserved": body.get("guaranteed") == {"reserved": True},
    }[capacity]
    assert spec["node"]["autocheckpointEnabled"] is True
    assert spec["multiNodeParams"] == {"nodeCount": 2, "nodeIdPrefix": "pod"}


def test_a_login_that_is_missing_is_named(cloud, api):
    """In the SDK's own words, which the launcher looks for; nothing was asked."""
    here = cloud(number_of_hosts=1)
    nobody = {k: v for k, v in settings_of(here.directory, api).items() if "TOKEN" not in k}
    done = here.tpu("status", **nobody)
    assert done.returncode == 20 and "or there is none: gcloud auth login" in done.stderr
    assert api.requests == []


# --- lives, with real ssh -------------------------------------------------------------------------

_CORPUS = {
    "b/corpus/corpus.json": b'{"files": {"train.bin": {"bytes": 3}}}',
    "b/corpus/train.bin": b"abc",
    "b/corpus/tokenizer/vocab.txt": b"[PAD]",
}
_RUN = ("--config=tiny_docs_cpu", "--workdir=gs://b/run")
_NODE = "nodes/pod"
_RESOURCES = "queuedResources"


def changing(api: Api) -> list[tuple[str, str, dict]]:
    return [r for r in api.requests if r[0] != "GET" and ":getGuestAttributes" not in r[1]]


def changes(api: Api) -> list[str]:
    """Returns what changed something at the TPU API, in order."""
    return [
        f"{method} {path.partition('/z/')[2].partition('?')[0]}"
        for method, path, _ in changing(api)
    ]


def until(reached: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@needs_sshd
def test_every_command_on_the_way_of_a_run(slice_of, api):
    """By hand, on two hosts, to a run that is done, after which the machine deletes itself."""
    quick = {"TICK_SECONDS": "0.1", "ALIVE_SECONDS": "600"}
    here, hosts, settings = slice_of(trainer=[{"code": "waits"}], environment=quick)
    api.objects |= _CORPUS
    run = (*_RUN, "--corpus=gs://b/corpus")

    def tpu(command: str, *options: str) -> subprocess.CompletedProcess[str]:
        done = here.tpu(command, *run, *options, **settings)
        assert done.returncode == 0, done.stdout + done.stderr
        return done

    tpu("create")
    assert hosts.sessions() == [0, 0]
    tpu("setup")
    assert hosts.sessions() == [2, 2]  # scp, and the set-up
    tpu("stage")
    for number in range(2):
        assert (here.home(number) / "bert-jax/corpus/corpus/train.bin").read_bytes() == b"abc"
        assert (here.home(number) / "bert-jax/corpus/corpus/corpus.json").is_file()
    tpu("start")
    said = tpu("status").stdout
    assert "trainer on pod-w-0 running\ntrainer on pod-w-1 running\n" in said
    assert tpu("logs").stdout.count("pretrain tiny_docs_cpu --corpus corpus/corpus") == 2
    stopped = tpu("stop").stdout
    assert all(f"{host}: stopped, exit code 42" in stopped for host in here.hosts)
    assert b"exit code 42" in api.objects["b/run/logs/pod-w-1.log"]
    tpu("start")
    (here.directory / "done").touch()
    until(lambda: "b/run/launched_and_done" in api.objects)
    here.up(3600)
    until(lambda: not api.resources)
    # What is left of it is in the bucket.
    assert tpu("logs").stdout.count("exit code 0") == 2
    tpu("fetch", f"--output={here.directory}/fetched")
    assert (here.directory / "fetched/launched_and_done").is_file()

    # gcloud has made a key, once, and the node's metadata has let it in.
    key = (here.directory / "home/.ssh/google_compute_engine.pub").read_text().split()
    posted, patched, *_ = (body for _, _, body in changing(api))
    # The startup script is still in the metadata, for the next boot.
    assert patched["metadata"]["startup-script"].startswith("#!/usr/bin/env bash\nTPU=")
    assert posted["tpu"]["nodeSpec"][0]["node"]["acceleratorType"] == "v4-16"
    user, _, line = patched["metadata"]["ssh-keys"].strip().partition(":")
    assert line.split() == [*key[:2], user] and user == getpass.getuser()
    made = [f"POST {_RESOURCES}", f"PATCH {_NODE}", f"DELETE {_RESOURCES}/pod"]
    assert changes(api)[:3] == made and set(changes(api)[3:]) <= {made[2], f"DELETE {_NODE}"}


@needs_sshd
def test_a_run_from_nothing_to_its_end(slice_of, api):
    """By one command: its place, its checkout, its log and its marks are in the bucket's words."""
    here, hosts, settings = slice_of(number_of_hosts=1)
    api.objects |= _CORPUS
    done = here.tpu("run", *_RUN, "--corpus=gs://b/corpus", **settings)
    assert done.returncode == 0, done.stderr + done.stdout
    assert "is not known" not in done.stderr and "could not be" not in done.stderr
    assert ": exit code 0" in done.stdout and "pod is gone" in done.stderr
    digest = re.search(rb"^[0-9a-f]{12} ([0-9a-f]{16})$", api.objects["b/run/launched_checkout"])
    assert digest and digest[1].decode() in done.stdout
    assert hosts.boots == 1
    again = here.tpu("run", *_RUN, "--corpus=gs://b/corpus", **settings)
    assert again.returncode == 0 and "is done, says" in again.stderr
    assert changes(api) == [f"POST {_RESOURCES}", f"PATCH {_NODE}", f"DELETE {_RESOURCES}/pod"]
