"""A server on this machine that speaks as Cloud Storage, far away and with faults:

    python -m tests.faulty_bucket PORT

It is gcp-storage-emulator, with as many requests at a time as there are, and with the condition
`ifGenerationMatch`, which the emulator passes over. `POST /control` takes

    {"faults": {KIND: [HOW, TIMES]}, "latency": SECONDS, "stream": BYTES_PER_SECOND}

and returns how many requests of each kind there were since the last time, and their bytes. HOW is a
status such as 503, "stall" (an answer that never comes) or "drop" (the connection is closed).
"""

import collections
import contextlib
import io
import json
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from http import server
from typing import Any
from urllib.parse import parse_qs, unquote, urlparse

import fsspec
import pytest
from gcp_storage_emulator.handlers import buckets
from gcp_storage_emulator.server import Router
from gcp_storage_emulator.storage import Storage

from bert_jax.data.sources import address
from bert_jax.workdir import storage
from tests.paths import ROOT

KINDS = ("list", "metadata", "media", "insert", "delete", "copy", "bucket")
_CHUNK = 1 << 16


def kind_of(method: str, target: str) -> str:
    """Returns what a request asks for, by its method and address."""
    parts = urlparse(target)
    path, query = parts.path, parse_qs(parts.query)
    if method == "DELETE":
        return "delete"
    if "/copyTo/" in path or "/rewriteTo/" in path or path.endswith("/compose"):
        return "copy"
    if method in ("POST", "PUT"):
        return "insert"
    if path.rstrip("/").endswith("/o"):
        return "list"
    if "/o/" not in path:
        return "bucket"
    return "media" if query.get("alt") == ["media"] or "/download/" in path else "metadata"


class Cloud(server.ThreadingHTTPServer):
    """The server, its objects, and what is wrong with it now."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, port: int):
        super().__init__(("localhost", port), Handler)
        self.storage, self.lock = Storage(use_memory_fs=True), threading.Lock()
        # To keep all objects' metadata in a file is of no use in memory, and slow.
        self.storage._write_config_to_file = lambda: None
        buckets.create_bucket("bucket", self.storage)
        self.faults: dict[str, list[Any]] = {}
        self.latency, self.stream = 0.0, 0.0
        self.count: collections.Counter[str] = collections.Counter()

    def fault(self, kind: str) -> Any:
        """Counts a request; returns how it is to fail, or None."""
        with self.lock:
            self.count[kind] += 1
            how, times = self.faults.get(kind, (None, 0))
            if times <= 0:
                return None
            self.faults[kind] = [how, times - 1]
            self.count[f"{kind} failed"] += 1
            return how

    def control(self, wanted: dict[str, Any]) -> dict[str, int]:
        with self.lock:
            counted, self.count = dict(self.count), collections.Counter()
            for name, value in wanted.items():
                setattr(self, name, value)
            return counted


class Handler(server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def _handle(self, method: str) -> None:
        cloud: Any = self.server
        body = self._paced_read(int(self.headers.get("Content-Length") or 0))
        if self.path == "/control":
            self._answer(200, json.dumps(cloud.control(json.loads(body))).encode())
            return
        kind = kind_of(method, self.path)
        how = cloud.fault(kind)
        time.sleep(cloud.latency)
        if how == "stall":
            time.sleep(30)
        if how in ("stall", "drop"):
            self.close_connection = True
            return
        if how is not None:
            self._answer(how, json.dumps({"error": {"code": how, "message": "chaos"}}).encode())
            return
        # The emulator's own handler reads and writes through these.
        rfile, wfile, self.rfile, self.wfile = (
            self.rfile,
            self.wfile,
            io.BytesIO(body),
            io.BytesIO(),
        )
        try:
            with cloud.lock:
                if self._is_met(method):
                    Router(self).handle(method)
                else:
                    self._answer(412, json.dumps({"error": {"code": 412}}).encode())
        finally:
            answer, self.rfile, self.wfile = self.wfile.getvalue(), rfile, wfile
        cloud.count[f"{kind} bytes in"] += len(body)
        cloud.count[f"{kind} bytes out"] += len(answer)
        self._paced_write(answer)

    @property
    def storage(self) -> Storage:
        return self.server.storage  # type: ignore[attr-defined]

    def _is_met(self, method: str) -> bool:
        """Returns whether the object is of the generation that a request asks for; 0: is not."""
        parts = urlparse(self.path)
        query = parse_qs(parts.query)
        wanted = query.get("ifGenerationMatch")
        if wanted is None or method not in ("POST", "DELETE"):
            return True
        name = query["name"][0] if "name" in query else unquote(parts.path.partition("/o/")[2])
        found = self.storage.objects.get("bucket", {}).get(name, {})
        return wanted == [found.get("generation", "0")]

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _paced_read(self, size: int) -> bytes:
        if (self.headers.get("Transfer-Encoding") or "").lower() == "chunked":
            parts = []
            while length := int(self.rfile.readline().strip() or b"0", 16):
                parts.append(self.rfile.read(length))
                self.rfile.readline()
            self.rfile.readline()
            del self.headers["Transfer-Encoding"]
            body = b"".join(parts)
            self.headers["Content-Length"] = str(len(body))
            return body
        began, data = time.monotonic(), bytearray()
        while len(data) < size:
            data += self.rfile.read(min(_CHUNK, size - len(data)))
            self._keep_pace(len(data), began)
        return bytes(data)

    def _paced_write(self, data: bytes) -> None:
        began = time.monotonic()
        for at in range(0, len(data), _CHUNK):
            self.wfile.write(data[at : at + _CHUNK])
            self._keep_pace(at, began)

    def _keep_pace(self, size: int, began: float) -> None:
        stream = self.server.stream  # type: ignore[attr-defined]
        if stream and size > _CHUNK:
            time.sleep(max(0.0, began + size / stream - time.monotonic()))

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._handle("GET")

    def do_POST(self) -> None:
        self._handle("POST")

    def do_PUT(self) -> None:
        self._handle("PUT")

    def do_PATCH(self) -> None:
        self._handle("PATCH")

    def do_DELETE(self) -> None:
        self._handle("DELETE")


def control(address: str, **wanted: Any) -> dict[str, int]:
    """Tells the server what is wrong from now on; returns what it was asked since the last time."""
    data = json.dumps(wanted).encode()
    with urllib.request.urlopen(f"{address}/control", data=data, timeout=10) as answer:
        return json.loads(answer.read())


@contextlib.contextmanager
def serving() -> Iterator[str]:
    """Yields the address of such a server, a process of its own."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.faulty_bucket", str(port)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    try:
        yield f"http://localhost:{port}"
    finally:
        process.kill()
        process.communicate()


@contextlib.contextmanager
def reached() -> Iterator[str]:
    """Yields the address of such a server, at which this process looks for `gs://bucket`."""
    with serving() as place, reaching(place):
        yield place


@contextlib.contextmanager
def reaching(place: str) -> Iterator[None]:
    """Makes this process look for `gs://bucket` at the address of a server."""

    from etils.epath import gpath

    def forget() -> None:
        # Each remembers its server, or that TensorFlow was to serve buckets.
        storage.choose_gcsfs()
        gpath._is_tf_installed.cache_clear()
        address.file_system.cache_clear()
        fsspec.get_filesystem_class("gs").clear_instance_cache()

    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment(place).items():
            patch.setenv(name, value)
        forget()
        yield
    forget()


def environment(place: str) -> dict[str, str]:
    """Returns the variables with which `gs://bucket` is at that address."""
    return {
        "STORAGE_EMULATOR_HOST": place,  # for gcsfs
        "TENSORSTORE_GCS_HTTP_URL": place,  # for Orbax's arrays
        "GOOGLE_AUTH_TOKEN_FOR_TESTING": "none",
    }


if __name__ == "__main__":
    with Cloud(int(sys.argv[1])) as serving:
        print("ready", flush=True)
        threading.Thread(target=sys.stdin.read, daemon=True).start()
        serving.serve_forever()
