"""The launcher's commands, executed by the real gcloud against a TPU API on loopback.

The SDK needs no account for this: a token that means nothing, and another endpoint. It is skipped
where there is no SDK. What the requests hold is compared with the documented messages
(cloud.google.com/tpu/docs/reference/rest/v2/projects.locations.queuedResources).
"""

import http.server
import json
import shutil
import threading
from collections.abc import Iterator

import pytest

_GCLOUD = shutil.which("gcloud")
pytestmark = pytest.mark.skipif(_GCLOUD is None, reason="the Google Cloud SDK is not installed")


class Api(http.server.ThreadingHTTPServer):
    """Queued resources and nodes as the service has them, by name; and the requests it got."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.resources: dict[str, dict] = {}
        self.requests: list[tuple[str, str, dict]] = []

    def answer(self, method: str, path: str, body: dict) -> tuple[int, dict]:
        self.requests.append((method, path, body))
        place, _, query = path.partition("?")
        name = place.rpartition("/")[2]
        done = {"name": "projects/p/locations/z/operations/o", "done": True, "response": {}}
        if method == "POST":
            name = dict(pair.split("=") for pair in query.split("&"))["queuedResourceId"]
            self.resources[name] = body
            return 200, done
        if name not in self.resources:
            message = f"Resource 'projects/p/locations/z/{name}' was not found"
            return 404, {"error": {"code": 404, "status": "NOT_FOUND", "message": message}}
        if method == "DELETE":
            del self.resources[name]
            return 200, done
        state = {"state": "READY"} if "/nodes/" in place else {"state": {"state": "ACTIVE"}}
        return 200, {"name": place.partition("/v2/")[2], **state}


class Handler(http.server.BaseHTTPRequestHandler):
    server: Api

    def handle_any(self) -> None:
        size = int(self.headers.get("content-length") or 0)
        body = json.loads(self.rfile.read(size) or b"{}")
        code, answer = self.server.answer(self.command, self.path, body)
        text = json.dumps(answer).encode()
        self.send_response(code)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_POST = do_DELETE = handle_any

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture
def api() -> Iterator[Api]:
    with Api() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def settings_of(here, api: Api) -> dict[str, str]:
    """Returns an environment that leads the SDK to loopback, away from this machine's settings."""
    token = here.directory / "token"
    token.write_text("none\n")
    (here.directory / "bin" / "gcloud").unlink(missing_ok=True)
    assert _GCLOUD is not None
    (here.directory / "bin" / "gcloud").symlink_to(_GCLOUD)
    return {
        "CLOUDSDK_CONFIG": str(here.directory / "sdk"),
        "CLOUDSDK_AUTH_ACCESS_TOKEN_FILE": str(token),
        "CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU": f"http://127.0.0.1:{api.server_port}/",
        "CLOUDSDK_CORE_CHECK_GCE_METADATA": "false",
        "CLOUDSDK_CORE_DISABLE_USAGE_REPORTING": "true",
        "CLOUDSDK_COMPONENT_MANAGER_DISABLE_UPDATE_CHECK": "true",
    }


def test_a_machine_is_asked_for_looked_at_and_deleted(cloud, api):
    here = cloud(number_of_hosts=1)
    settings = settings_of(here, api)
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
    assert method == "DELETE" and removed.startswith(f"{place}/queuedResources/pod?")
    assert "force=True" in removed
    looked = {path.partition("?")[0] for method, path, _ in api.requests if method == "GET"}
    assert looked == {f"{place}/queuedResources/pod", f"{place}/nodes/pod"}


@pytest.mark.parametrize(
    ("capacity", "model"), [("spot", "SPOT"), ("reserved", "RESERVATION_BOUND")]
)
def test_the_alpha_track_is_told_the_model(cloud, api, capacity, model):
    """Where it is not, the SDK writes STANDARD beside `spot`, which contradict each other."""
    here = cloud(number_of_hosts=1)
    settings = settings_of(here, api)
    dry = here.tpu(
        "create", "--dry-run", "--autocheckpoint", f"--capacity={capacity}", "--slices=2"
    )
    line = next(s for s in dry.stdout.splitlines() if " create " in s).removeprefix("+ ")
    done = here.run("bash", "-c", line, settings=settings)
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
    nobody = {k: v for k, v in settings_of(here, api).items() if "TOKEN" not in k}
    done = here.tpu("status", **nobody)
    assert done.returncode == 20 and "or there is none: gcloud auth login" in done.stderr
    assert api.requests == []
