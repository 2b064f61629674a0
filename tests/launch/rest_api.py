"""The TPU API and the metadata server on loopback: the requests of launch/boot.sh."""

import http.server
import json
import threading
import traceback
from typing import Any

_DONE = {"name": "projects/p/locations/z/operations/o", "done": True, "response": {}}


class Api(http.server.ThreadingHTTPServer):
    """Queued resources by name, and the requests received."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.lock = threading.RLock()
        self.resources: dict[str, dict] = {}
        self.requests: list[tuple[str, str]] = []
        self.tokens: set[str | None] = set()  # the Authorization headers of requests to the TPU API
        self.silent, self.refusal = False, 0  # no answer; a code for each request
        self.faults: list[str] = []  # errors of this module, which look like an outage to a client

    def __enter__(self):
        self.thread = threading.Thread(target=self.serve_forever, args=(0.01,))
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.thread.join()
        self.server_close()
        assert self.faults == []

    def answer(self, method: str, path: str) -> tuple[int, Any]:
        place = path.partition("?")[0]
        with self.lock:
            if place.startswith("/computeMetadata/v1/instance/service-accounts/default/token"):
                return 200, {"access_token": "host", "expires_in": 3599, "token_type": "Bearer"}
            self.requests.append((method, path))
            if self.refusal:
                return self.refusal, {}
            if self.resources.get(place.rpartition("/")[2]) is None:
                return 404, {"error": {"code": 404, "status": "NOT_FOUND"}}
            if method == "DELETE":
                del self.resources[place.rpartition("/")[2]]
            return 200, _DONE


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Api

    def handle_any(self) -> None:
        if self.server.silent:
            self.close_connection = True
            return
        if self.path.startswith("/v2/"):
            self.server.tokens.add(self.headers.get("Authorization"))
        try:
            code, answer = self.server.answer(self.command, self.path)
        except Exception:
            self.server.faults.append(f"{self.command} {self.path}: {traceback.format_exc()}")
            raise
        text = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(code)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_DELETE = handle_any

    def log_message(self, format: str, *arguments: object) -> None:
        pass
