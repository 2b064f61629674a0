"""Names from outside: of a bucket, a manifest, an index. None leads out of its folder."""

import hashlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
from etils.epath import gpath

from bert_jax import files
from bert_jax.__main__ import main
from bert_jax.errors import StorageFailed, UsageError
from bert_jax.interchange import safetensors_files
from bert_jax.workdir import location, manifest, storage
from tests import hostile
from tests.storage_api import StorageApi


@pytest.fixture
def api(monkeypatch) -> Iterator[StorageApi]:
    """Cloud Storage, which takes any name for an object; the emulator of other tests does not."""
    with StorageApi() as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("GOOGLE_AUTH_TOKEN_FOR_TESTING", "none")
        clear_instances()
        yield server
        clear_instances()


def clear_instances() -> None:
    """Each keeps the address of its server."""
    storage.path_of("gs://bucket/run")
    gpath._is_tf_installed.cache_clear()  # an earlier test may have asked before this was chosen
    for protocol in ("gs", "gcs"):
        fsspec.get_filesystem_class(protocol).clear_instance_cache()


def all_below(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")}


def test_no_object_is_written_outside_of_the_local_folder(api, tmp_path, monkeypatch, capsys):
    (tmp_path / "a/b/c").mkdir(parents=True)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "a/b/c"))
    for name in ("../../../../../exp/x", "a/../../../x", "../../..", "..", "./x", "a\nb", "a\0b"):
        api.objects = {f"bucket/run/{n}": b"{}" for n in ("config.json", f"tokenizer/{name}")}
        with pytest.raises(StorageFailed, match="is not a valid file name inside"):
            location.opened("gs://bucket/run")
        written = {n for n in all_below(tmp_path) if not n.startswith("a/b/c/bert-jax-")}
        assert written == {"a", "a/b", "a/b/c"}
    assert main(["fill-mask", "gs://bucket/run", "a [MASK]"]) == 7
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_no_name_leads_out_of_a_folder(tmp_path):
    """An index of weights and a manifest name files, too: each refusal is one short line."""
    for name in hostile.NAMES:
        with pytest.raises(ValueError) as refused:
            files.inside(tmp_path, name)
        assert "\n" not in str(refused.value) and len(str(refused.value)) < 500
        index = {"weight_map": {"a": name}}
        (tmp_path / safetensors_files.INDEX).write_text(json.dumps(index))
        with pytest.raises(UsageError, match="is not a valid file name inside"):
            safetensors_files.read(tmp_path)
        values = {"format": 2, "files": {name: {"size": 1, "md5": ""}}}
        checksum = hashlib.md5(json.dumps(values, sort_keys=True).encode()).hexdigest()
        (tmp_path / manifest.MANIFEST).write_text(json.dumps(values | {"checksum": checksum}))
        with pytest.raises(ValueError, match="is not a valid file name inside"):
            manifest.read(tmp_path)
    for name in hostile.ODD_NAMES:
        assert files.inside(tmp_path, f"a/{name}") == tmp_path / "a" / name


def test_no_address_leads_elsewhere():
    for address in ("gs:///x", "gs://b/../other", "gs://b/run?x=1", "gs://b/a#1", "gs://b/*",
                    "gs://b/a//b", "gs://b\n/x", "s3://b/x", "http://127.0.0.1:80/x"):  # fmt: skip
        with pytest.raises(UsageError, match="a bucket address must be gs://BUCKET/PATH"):
            location.opened(address)
