"""A data set read by the hub's client from a local server, which implements the parts of the hub's
protocol (https://huggingface.co/docs/hub/api) that reading needs.
"""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlparse

import pytest

from bert_jax.data.corpus.prepare import prepare
from bert_jax.data.corpus.store import open_corpus
from tests.data.corpus.test_prepare import text_of
from tests.limits import HUNG
from tests.paths import ROOT

pytest.importorskip("huggingface_hub")

_COMMIT = "a" * 40


class _Hub(BaseHTTPRequestHandler):
    folder: Path

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self, code: int, data: bytes, **headers: str) -> None:
        self.send_response(code)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)

    def _entry(self, path: Path, name: Path) -> dict[str, object]:
        kind = "directory" if path.is_dir() else "file"
        size = 0 if path.is_dir() else path.stat().st_size
        return {"type": kind, "oid": "b" * 40, "size": size, "path": str(path.relative_to(name))}

    def do_GET(self) -> None:
        url = urlparse(self.path)
        match unquote(url.path).strip("/").split("/"):
            case ["api", "datasets", owner, name, *rest] if (self.folder / owner / name).is_dir():
                if not rest or rest == ["revision", "main"]:
                    found: object = {"id": f"{owner}/{name}", "sha": _COMMIT, "siblings": []}
                else:
                    assert rest[:2] == ["tree", "main"]
                    top = self.folder / owner / name
                    at = top.joinpath(*rest[2:])
                    is_deep = parse_qs(url.query).get("recursive") == ["true"]
                    paths = at.rglob("*") if is_deep else at.iterdir()
                    found = [self._entry(path, top) for path in sorted(paths)]
                self._answer(200, json.dumps(found).encode(), Content_Type="application/json")
            case ["datasets", owner, name, "resolve", "main", *rest]:
                data = self.folder.joinpath(owner, name, *rest).read_bytes()
                begin, end = self.headers.get("Range", "bytes=0-")[6:].split("-")
                part = data[int(begin) : int(end or len(data)) + 1]
                last = int(begin) + len(part) - 1
                span = f"bytes {begin}-{last}/{len(data)}"
                headers = {"ETag": '"1"', "X_Repo_Commit": _COMMIT, "Content_Range": span}
                self._answer(206, part, **headers)
            case _:
                headers = {"Content_Type": "application/json", "X_Error_Code": "RepoNotFound"}
                self._answer(404, b'{"error": "not found"}', **headers)

    do_HEAD = do_GET


@pytest.fixture
def hub(tmp_path) -> Iterator[str]:
    """Yields the address of a hub with the data set org/name, which has two splits."""
    folder = tmp_path / "hub/org/name/data"
    folder.mkdir(parents=True)
    (folder / "train-0.txt").write_text(text_of(60, seed=1))
    (folder / "train-1.txt").write_text(text_of(60, seed=2))
    (folder / "validation-0.txt").write_text(text_of(20, seed=3))
    handler = type("Handler", (_Hub,), {"folder": tmp_path / "hub"})
    with ThreadingHTTPServer(("localhost", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://localhost:{server.server_port}"
        server.shutdown()


def _prepared(hub: str, output: Path, *sources: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "bert_jax", "prepare", "--vocab-size", "140"]
    words += ["--output-dir", str(output), *sources]
    environment = {**os.environ, "HF_ENDPOINT": hub, "HF_HOME": str(output.parent / "home")}
    environment |= {"PYTHONPATH": str(ROOT), "HF_HUB_DISABLE_TELEMETRY": "1"}
    environment.pop("HF_HUB_OFFLINE", None)
    return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=HUNG)


def test_a_data_set_of_the_hub_is_the_text_of_its_files(tmp_path, hub):
    sources = ("--source", "hf:org/name", "--validation-source", "hf:org/name")
    done = _prepared(hub, tmp_path / "c", *sources)
    assert done.returncode == 0, done.stderr
    files = tmp_path / "hub/org/name/data"
    here = prepare(
        [str(files)], tmp_path / "here", validation_source=[str(files)], vocab_size=140, workers=1
    )
    assert open_corpus(tmp_path / "c").fingerprint == here.fingerprint


def test_a_missing_data_set_is_a_one_line_error(tmp_path, hub):
    for name in ("org/none", "org/name/none"):
        done = _prepared(hub, tmp_path / "c", "--source", f"hf:{name}")
        assert done.returncode == 2 and "Traceback" not in done.stderr
        assert f"hf:{name}: no such file or folder" in done.stderr.splitlines()[-1]
