"""The launcher's commands, executed by the real gcloud against Google's APIs on loopback.

The SDK needs no account for this: a token that means nothing, and other endpoints. It is skipped
where there is no SDK.
"""

import re
import runpy
import shlex
from pathlib import Path

import pytest

from tests.launch.cloud import ROOT, STAGED
from tests.launch.rest_api import GCLOUD, lead

pytestmark = pytest.mark.skipif(GCLOUD is None, reason="the Google Cloud SDK is not installed")


@pytest.fixture
def here(cloud, api):
    made = cloud(number_of_hosts=1)
    lead(made, api)
    return made


def test_a_machine_is_asked_for_looked_at_and_deleted(here, api):
    """In the words of the API, by the formats and filters of the SDK. Another run, type or zone
    is seen, and refused."""
    options = (*STAGED, "--capacity=spot", "--valid-until-duration=6h")
    here.tpu("create", *options, says="pod: ready")
    place = "/v2/projects/p/locations/z"
    looked = {path.partition("?")[0] for method, path, _ in api.requests if method == "GET"}
    everywhere = "/v2/projects/p/locations/-/queuedResources"
    assert looked == {f"{place}/queuedResources/pod", f"{place}/nodes/pod", everywhere}
    ((_, posted, body),) = api.changes()
    assert posted.startswith(f"{place}/queuedResources?") and "queuedResourceId=pod" in posted
    (spec,) = body["tpu"]["nodeSpec"]
    assert (spec["nodeId"], spec["parent"]) == ("pod", "projects/p/locations/z")
    node = spec["node"]
    assert (node["acceleratorType"], node["runtimeVersion"]) == ("v4-8", "tpu-ubuntu2204-base")
    assert body["spot"] == {} and body["queueingPolicy"] == {"validUntilDuration": "21600s"}
    run = node["labels"]["bert_jax_run"]
    assert re.fullmatch(r"[0-9a-f]{12}", run)
    # What ends its costs is in the request, whole.
    script = node["metadata"]["startup-script"]
    assert "TPU=projects/p/locations/z/pod\nMAX_SECONDS=86400\nSTART_SECONDS=3600\n" in script
    assert script.endswith((ROOT / "launch/boot.sh").read_text())

    for options, said in (
        (("--type=v4-64",), "pod in z is a v4-8, not a v4-64"),
        ((*STAGED, "--config=bert_base"), f"pod in z is run {run}'s"),
    ):
        here.tpu("create", *options, code=2, says=said)
    here.tpu("delete", says="pod is gone")
    _, (method, removed, _) = api.changes()
    assert method == "DELETE" and removed.startswith(f"{place}/queuedResources/pod?")
    assert "force=True" in removed
    api.resources["pod2"] = body  # one of another name is no matter
    api.elsewhere.append("projects/p/locations/zb/queuedResources/pod")
    here.tpu("create", *STAGED, code=2, says="pod is in zb already: --zone=zb")
    assert len(api.changes()) == 2


def printed(here, command: str, *options: str, **settings: str) -> list[list[str]]:
    """Returns the commands of gcloud that the launcher would call."""
    done = here.tpu(command, "--dry-run", *options, **settings)
    words = [shlex.split(line[2:]) for line in done.stdout.splitlines()]
    return [each[each.index("gcloud") + 1 :] for each in words if "gcloud" in each]


@pytest.mark.parametrize(
    ("capacity", "flags", "expected"),
    [
        ("flex-start", "", {"provisioningModel": "FLEX_START",
                            "runDuration": {"maxRunDuration": "14400s"}}),
        ("reserved", "", {"reservationName": "projects/p/locations/z/reservations/-"}),
        ("spot", "--autocheckpoint-enabled", {"provisioningModel": "SPOT"}),
        ("reserved", "--autocheckpoint-enabled", {"provisioningModel": "RESERVATION_BOUND"}),
        ("on-demand", "--autocheckpoint-enabled", {"provisioningModel": "STANDARD"}),
    ],
)  # fmt: skip
def test_the_request_of_a_capacity(here, api, capacity, flags, expected):
    options = (f"--capacity={capacity}", "--max-hours=4")
    commands = printed(here, "create", *options, **({"CREATE_FLAGS": flags} if flags else {}))
    (command,) = (words for words in commands if "create" in words)
    boot = f"--metadata-from-file=startup-script={ROOT / 'launch/boot.sh'}"
    words = [boot if word.startswith("--metadata-from") else word for word in command]
    here.run("gcloud", *words)
    ((_, _, body),) = api.changes()
    assert body | expected == body
    node = body["tpu"]["nodeSpec"][0]["node"]
    assert "startup-script" in node["metadata"]
    assert node.get("autocheckpointEnabled", False) == bool(flags)


def test_a_login_that_is_missing_is_named(here, api):
    """In the SDK's own words, which the launcher looks for; nothing was asked."""
    del here.settings["CLOUDSDK_AUTH_ACCESS_TOKEN_FILE"]
    here.tpu("status", code=20, says="or there is none: gcloud auth login")
    assert api.requests == []


def test_the_sdk_knows_every_option(cloud, tmp_path):
    """By the table that it completes commands from."""
    assert GCLOUD is not None
    table = Path(GCLOUD).resolve().parents[1] / "data/cli/gcloud_completions.py"
    if not table.is_file():
        pytest.skip("this SDK has no table of its commands")
    tree = runpy.run_path(str(table))["STATIC_COMPLETION_CLI_TREE"]
    here = cloud()
    pages = ("launch", "engines", "tutorials/tpu")
    text = "".join((ROOT / f"docs/{page}.md").read_text() for page in pages)
    blocks = "".join(re.findall(r"^```(?:ba)?sh\n(.*?)^```", text, re.M | re.S)).replace("\\\n", "")
    documented = re.findall(r"gcloud ((?:[^;&|'\n]|'[^']*')*)", blocks)
    used: set[tuple[str, ...]] = set()
    for words in (
        *map(shlex.split, documented),
        *printed(here, "run", *STAGED, "--capacity=spot", SSH_FLAGS="--ssh-flag=-C"),
        *printed(here, "create", "--capacity=flex-start", "--max-hours=4", "--iap"),
        *printed(here, "status", *STAGED, "--iap"),
        *printed(here, "fetch", "--workdir=gs://b/run", f"--output={tmp_path}/out"),
    ):
        node, flags = tree, set(tree["flags"])
        verbs = [word for word in words if not word.startswith("--")]
        path = []
        for verb in verbs:
            if verb not in node["commands"]:
                break
            node = node["commands"][verb]
            flags |= set(node["flags"])
            path.append(verb)
        options = {word.partition("=")[0] for word in words if word.startswith("--")}
        assert {option.replace("--no-", "--") for option in options} <= flags, (path, options)
        used.add(tuple(path))
    assert len(used) >= 30
