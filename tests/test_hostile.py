"""Names from outside: of a bucket, a manifest, an index. None leads out of its folder."""

import threading
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from bert_jax.__main__ import main
from bert_jax.errors import StorageFailed
from bert_jax.workdir import bucket, remote_workdir
from tests.launch.rest_api import Api


@pytest.fixture
def api(monkeypatch) -> Iterator[Api]:
    """Cloud Storage, which takes any name for an object; the emulator of other tests does not."""
    with Api() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("GOOGLE_AUTH_TOKEN_FOR_TESTING", "none")
        clear_instances()
        yield server
        clear_instances()
        server.shutdown()
        thread.join()
    assert server.faults == []


def clear_instances() -> None:
    """Each keeps the address of its server."""
    bucket.path_of("gs://bucket")
    for protocol in ("gs", "gcs"):
        fsspec.get_filesystem_class(protocol).clear_instance_cache()


def all_below(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")}


def test_no_object_is_written_outside_of_the_cache(api, tmp_path, monkeypatch, capsys):
    cache = tmp_path / "a/b/c"
    monkeypatch.setenv("BERT_JAX_CACHE", str(cache))
    before = None
    for name in ("../../../../../exp/x", "a/../../../x", "../../..", "..", "./x", "a\nb", "a\0b"):
        api.objects = {f"bucket/run/{n}": b"{}" for n in ("config.json", f"tokenizer/{name}")}
        with pytest.raises(StorageFailed, match="is no name of a file inside of gs://bucket/run"):
            remote_workdir.directory_of("gs://bucket/run")
        written = {n for n in all_below(tmp_path) if not n.startswith("a/b/c/workdirs/")}
        assert (before := before or written) == written == {"a", "a/b", "a/b/c", "a/b/c/workdirs"}
    assert main(["fill-mask", "--checkpoint", "gs://bucket/run", "a [MASK]"]) == 7
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
