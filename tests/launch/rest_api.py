"""Google's REST APIs on loopback, as far as the launcher's commands go: TPU, Compute, Storage.

The real gcloud is led here by `lead`, with a token that means nothing. What the requests
hold is kept, for tests to compare with the documented messages
(cloud.google.com/tpu/docs/reference/rest/v2/projects.locations.queuedResources).
"""

import base64
import hashlib
import http.server
import json
import re
import shutil
import threading
import traceback
import urllib.parse
from typing import Any

from tests.launch.cloud import Cloud
from tests.launch.ssh_hosts import SshHosts

GCLOUD = shutil.which("gcloud")
_DONE = {"name": "projects/p/locations/z/operations/o", "done": True, "response": {}}


class Api(http.server.ThreadingHTTPServer):
    """Queued resources and nodes as the service has them, by name; and the requests it got."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.lock = threading.RLock()
        self.machines: SshHosts | None = None  # the hosts behind a node
        self.resources: dict[str, dict] = {}
        self.requests: list[tuple[str, str, dict]] = []
        self.elsewhere: list[str] = []  # names of resources of other zones
        self.objects: dict[str, bytes] = {}
        self.metadata: dict[str, str] = {}
        self.tokens: set[str | None] = set()  # what requests to the TPU API came with
        self.silent, self.refusal = False, 0  # no answer at all; a code for each of those requests
        self.faults: list[str] = []  # of this module: a client would take them for an outage
        self.states = ("ACTIVE", "READY")  # of each resource, and of its node

    def __enter__(self):
        self.thread = threading.Thread(target=self.serve_forever, args=(0.01,))
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.thread.join()
        self.server_close()
        assert self.faults == []

    def lose(self, resource: str, node: str) -> None:
        """The machine is gone, and these are the states of what is left of it."""
        with self.lock:
            self.states = (resource, node)
            if self.machines:
                self.machines.end()

    def changes(self) -> list[tuple[str, str, dict]]:
        """Returns the requests that changed something."""
        return [r for r in self.requests if r[0] != "GET" and ":getGuestAttributes" not in r[1]]

    def answer(self, method: str, path: str, data: bytes, kind: str) -> tuple[int, Any]:
        place, _, query = path.partition("?")
        asked = dict(urllib.parse.parse_qsl(query))
        with self.lock:
            if "/storage/v1/" in place:
                return self.storage(method, place, asked, data, kind)
            if place.startswith("/computeMetadata/v1/instance/service-accounts/default/token"):
                return 200, {"access_token": "host", "expires_in": 3599, "token_type": "Bearer"}
            body = json.loads(data or b"{}")
            self.requests.append((method, path, body))
            if self.refusal:
                return self.refusal, {}
            if place.startswith("/compute/"):
                return 200, {"name": "p", "commonInstanceMetadata": {"kind": "compute#metadata"}}
            return self.tpu(method, place, asked, body)

    def tpu(self, method: str, place: str, asked: dict, body: dict) -> tuple[int, Any]:
        name, _, verb = place.rpartition("/")[2].partition(":")
        if "/operations/" in place:
            return 200, _DONE
        if method == "POST" and not verb:
            self.resources[asked["queuedResourceId"]] = body
            self.states = ("ACTIVE", "READY")
            self.metadata = dict(body["tpu"]["nodeSpec"][0]["node"]["metadata"])
            if self.machines:
                self.machines.boot(self.metadata["startup-script"])
            return 200, _DONE
        if name == "queuedResources":
            kept = [
                {"name": f"projects/p/locations/z/queuedResources/{key}", **value}
                for key, value in self.resources.items()
            ]
            kept += [{"name": other} for other in self.elsewhere]
            return 200, {"queuedResources": kept}
        if "/nodes/" in place and name not in self.resources:
            name = name.rpartition("-")[0]  # one of several slices
        if name not in self.resources:
            message = f"Resource 'projects/p/locations/z/{name}' was not found"
            return 404, {"error": {"code": 404, "status": "NOT_FOUND", "message": message}}
        if method == "DELETE":
            del self.resources[name]
            if self.machines:
                self.machines.end()
            return 200, _DONE
        if method == "PATCH":
            assert asked["updateMask"] == "metadata"
            self.metadata = body["metadata"]
            if self.machines:
                self.machines.take_keys(self.metadata["ssh-keys"])
            return 200, _DONE
        if verb == "getGuestAttributes" and self.machines:
            found = self.machines.guest_attributes()
            one = [found[int(number)] for number in body["workerIds"] if number]
            return 200, {"guestAttributes": one or found}
        if "/nodes/" not in place:
            state: dict[str, Any] = self.resources[name] | {"state": {"state": self.states[0]}}
        else:
            state = {"id": "17", "apiVersion": "V2", "state": self.states[1]}
            state |= {"metadata": self.metadata, "health": "HEALTHY"}
            if self.machines:
                state["networkEndpoints"] = self.machines.endpoints()
        return 200, {"name": place.partition("/v2/")[2], **state}

    def storage(
        self, method: str, place: str, asked: dict, data: bytes, kind: str
    ) -> tuple[int, Any]:
        """Buckets, all of which exist, and objects that fit into one request."""
        found = re.fullmatch(r".*/storage/v1/b/([^/]+)(/o)?/?(?:(?<=/)(.+))?", place)
        assert found, place
        bucket, name = found[1], urllib.parse.unquote(found[3] or "")
        if method == "POST":
            assert asked["uploadType"] == "multipart", asked
            boundary = re.findall(r"boundary=['\"]?([^'\"]+)", kind)[0].encode()
            parts = [p.split(b"\n\n", 1)[1] for p in data.split(b"--" + boundary)[1:3]]
            name = json.loads(parts[0])["name"]
            self.objects[f"{bucket}/{name}"] = parts[1].removesuffix(b"\n")
            return 200, self.described(bucket, name)
        if not found[2]:
            return 200, {"kind": "storage#bucket", "name": bucket, "id": bucket, "location": "Z"}
        if name:
            if f"{bucket}/{name}" not in self.objects:
                return 404, {"error": {"code": 404, "message": f"No such object: {bucket}/{name}"}}
            if asked.get("alt") == "media":
                return 200, self.objects[f"{bucket}/{name}"]
            return 200, self.described(bucket, name)
        names = [key.partition("/")[2] for key in sorted(self.objects) if key.startswith(bucket)]
        names = [n for n in names if n.startswith(asked.get("prefix", ""))]
        whole, prefixes = names, []
        if mark := asked.get("delimiter"):
            start = len(asked.get("prefix", ""))
            whole = [n for n in names if mark not in n[start:]]
            prefixes = sorted({n[: n.index(mark, start) + 1] for n in names if mark in n[start:]})
        return 200, {"items": [self.described(bucket, n) for n in whole], "prefixes": prefixes}

    def described(self, bucket: str, name: str) -> dict:
        content = self.objects[f"{bucket}/{name}"]
        link = f"http://127.0.0.1:{self.server_port}/download/storage/v1/b/{bucket}/o/"
        return {
            "bucket": bucket,
            "name": name,
            "size": str(len(content)),
            "generation": "1",
            "timeCreated": "2026-01-01T00:00:00.000Z",
            "mediaLink": f"{link}{urllib.parse.quote(name, safe='')}?alt=media",
            "md5Hash": base64.b64encode(hashlib.md5(content).digest()).decode(),
        }


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Api

    def handle_any(self) -> None:
        size = int(self.headers.get("content-length") or 0)
        kind = self.headers.get("content-type") or ""
        if self.server.silent:
            self.close_connection = True
            return
        if self.path.startswith("/v2/"):
            self.server.tokens.add(self.headers.get("Authorization"))
        try:
            code, answer = self.server.answer(self.command, self.path, self.rfile.read(size), kind)
        except Exception:
            self.server.faults.append(f"{self.command} {self.path}: {traceback.format_exc()}")
            raise
        text = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(code)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_POST = do_DELETE = do_PATCH = handle_any

    def log_message(self, format: str, *arguments: object) -> None:
        pass


def lead(here: Cloud, api: Api) -> None:
    """Leads the SDK of a cloud to loopback, away from this machine's settings."""
    assert GCLOUD is not None
    token, programs = here.directory / "token", here.directory / "bin"
    token.write_text("none\n")
    for name in ("gcloud", "curl"):  # the real ones
        (programs / name).unlink()
    (programs / "gcloud").symlink_to(GCLOUD)
    place = f"http://127.0.0.1:{api.server_port}"
    here.api = api
    here.settings = {
        "TPU_API": f"{place}/v2",
        "GCE_METADATA_HOST": place.removeprefix("http://"),
        "CLOUDSDK_CONFIG": str(here.directory / "sdk"),
        "CLOUDSDK_AUTH_ACCESS_TOKEN_FILE": str(token),
        "CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU": f"{place}/",
        "CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE": f"{place}/compute/v1/",
        "CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE": f"{place}/storage/v1/",
        "CLOUDSDK_CORE_CHECK_GCE_METADATA": "false",
        "CLOUDSDK_CORE_DISABLE_USAGE_REPORTING": "true",
        "CLOUDSDK_COMPONENT_MANAGER_DISABLE_UPDATE_CHECK": "true",
    }
