"""Sources at addresses: in memory, in a local bucket, on a web server, on a hub."""

import functools
import gzip
import ssl
import threading
from http import server
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from bert_jax.__main__ import main
from bert_jax.data.sources import address
from bert_jax.data.sources.files import find_files
from bert_jax.data.sources.read import read_documents
from bert_jax.data.tokenizer.hub import data_set_of, source_name
from bert_jax.errors import Unreachable, UsageError
from tests.data.formats.layouts import PACKERS, texts
from tests.faulty_bucket import control


def test_a_folder_and_a_glob_are_the_same_everywhere(tmp_path, memory, bucket, capsys):
    folder = tmp_path / "data"
    contents = {
        "sub/train-00000-of-00002.txt": "\n\n".join(texts(40)[:20]),
        "sub/train-00001-of-00002.txt": "\n\n".join(texts(40)[20:]),
        "sub/test-00000-of-00001.txt": "\n\n".join(texts(5)),
        "sub/.hidden.txt": "no", "a picture.png": "no",
    }  # fmt: skip
    far = fsspec.filesystem("gs")
    for name, text in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
        memory.pipe_file(f"/data/{name}", text.encode())
        far.pipe_file(f"bucket/data/{name}", text.encode())
    roots = (str(folder), "memory://data", "gs://bucket/data/")
    for source in (*roots, "gs://bucket/data/**/train-*.txt"):
        assert ["\n".join(document) for document in read_documents([source])] == texts(40)
    said = capsys.readouterr().err.splitlines()
    (listed,) = {line.removeprefix(root) for line, root in zip(said, roots, strict=False)}
    assert "a picture.png, sub/.hidden.txt, sub/test-00000-of-00001.txt" in listed


# --- names and errors -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["/data/../up.txt", "/data/a/../../up.txt", "/data/a//b.txt", "/data/a\nb.txt", "/other/a.txt"],
)
@pytest.mark.parametrize("source", ["memory://data", "memory://data/*.txt"])
def test_a_name_that_leads_out_of_its_folder_is_rejected(monkeypatch, memory, name, source):
    memory.pipe_file("/data/good.txt", b"text")
    found = {path: {"type": "file"} for path in ("/data/good.txt", name)}
    monkeypatch.setattr(MemoryFileSystem, "find", lambda *_, **__: list(found))
    monkeypatch.setattr(MemoryFileSystem, "glob", lambda *_, **__: found)
    with pytest.raises(UsageError, match="is not a valid file name inside it"):
        find_files(source)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("memory://nowhere", "memory://nowhere: no such file or folder at this address"),
        ("memory://nowhere/*.txt", "memory://nowhere/*.txt: no file matches at this address"),
        ("gs://bucket/nowhere.txt", "gs://bucket/nowhere.txt: no such file or folder"),
        ("memory://", "memory://: the address is empty"),
        ("ftp://a.example/b.txt", "the kind ftp:// are not supported, but gs://, s3://, https://"),
        ("https://a.example/b.pdf", "https://a.example/b.pdf: not one of .txt"),
        ("memory://pictures", "memory://pictures: no .txt, "),
        ("memory://made", "memory://made is a prepared corpus, not text: name the text"),
    ],
)
def test_a_missing_file_is_a_one_line_error(tmp_path, memory, bucket, source, said, capsys):
    memory.pipe_file("/pictures/a.png", b"")
    memory.pipe_file("/made/train/00000.tokens.npy", b"")
    assert main(["prepare", "--source", source, "--output-dir", str(tmp_path / "c")]) == 2
    err = capsys.readouterr().err
    assert said in err and err.count("\n") == 1
    assert not list(tmp_path.glob("c/corpus.json"))


def test_a_password_is_not_kept(tmp_path, capsys):
    source = "https://me:secret@a.example/b.txt"
    assert main(["prepare", "--source", source, "--output-dir", str(tmp_path / "c")]) == 2
    err = capsys.readouterr().err
    assert "which corpus.json would store" in err and "secret" not in err


@pytest.mark.parametrize(
    ("kind", "package", "version"),
    [("s3", "s3fs", "2026.1"), ("gs", "gcsfs", "2026.1"), ("https", "aiohttp", "3.10")],
)
def test_a_missing_package_is_named(tmp_path, monkeypatch, capsys, kind, package, version):
    there = fsspec.filesystem

    def missing(name):
        if name == "file":
            return there(name)
        raise ImportError("Install it")

    monkeypatch.setattr(fsspec, "filesystem", missing)
    address.file_system.cache_clear()
    source = f"{kind}://bucket/a.txt"
    assert main(["prepare", "--source", source, "--output-dir", str(tmp_path / "c")]) == 2
    err = capsys.readouterr().err
    assert f"{source}: {kind}:// needs {package}: pip install '{package}>={version}'\n" in err
    address.file_system.cache_clear()


class _Broken(MemoryFileSystem):
    """A store with files that end in a network error, or in any other error."""

    error: Exception = OSError("nothing")

    def _open(self, path: str, *_: Any, **__: Any) -> Any:
        file = super()._open(path)
        read = file.read

        def broken(size: int = -1) -> bytes:
            if file.tell() > 100:
                raise self.error
            return read(min(size, 101))

        file.read = broken
        return file


def _of_certificate() -> Exception:
    """Returns the error of a server with an expired certificate, which a retry meets again."""
    error = ConnectionError("Cannot connect to host")
    error.__cause__ = ssl.SSLCertVerificationError(1, "certificate has expired")
    return error


@pytest.mark.parametrize("ending", ["", ".gz", ".zst"])
@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ConnectionResetError(104, "Connection reset by peer"), Unreachable),
        (TimeoutError(), Unreachable),
        (PermissionError("Forbidden: bucket/a.txt"), UsageError),
        (RuntimeError("strange\nand long"), UsageError),
        (OSError("5xx"), UsageError),
        (_of_certificate(), UsageError),
    ],
    ids=str,
)
def test_a_network_failure_is_not_damage(monkeypatch, memory, ending, error, kind):
    text = "\n\n".join(texts(300)).encode()
    memory.pipe_file(f"/a.txt{ending}", PACKERS[ending](text) if ending else text)
    monkeypatch.setattr(_Broken, "error", error)
    monkeypatch.setattr(address, "file_system", lambda _: _Broken(skip_instance_cache=True))
    with pytest.raises(kind, match=r"memory://a\.txt") as caught:
        list(read_documents([f"memory://a.txt{ending}"]))
    assert "damaged" not in str(caught.value) and "\n" not in str(caught.value)


def test_a_bucket_is_read_in_large_blocks(bucket):
    """For any block size that decompressors request."""
    fsspec.filesystem("gs").pipe_file("bucket/once.jsonl.gz", PACKERS[".gz"](b"x" * 3_000_000))
    control(bucket)
    with pytest.raises(UsageError, match="not JSON"):
        list(read_documents(["gs://bucket/once.jsonl.gz"]))
    assert control(bucket).get("media", 0) == 1


def test_a_failed_bucket_request_is_repeated(bucket):
    far = fsspec.filesystem("gs")
    far.pipe_file("bucket/again/a.txt", "\n\n".join(texts(30)).encode())
    control(bucket, faults={"media": [503, 2]})
    assert len(list(read_documents(["gs://bucket/again/a.txt"]))) == 30


# --- the hub and the web --------------------------------------------------------------------------


class _Hub(MemoryFileSystem):
    protocol = "hf"  # pyright: ignore

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return "/" + path.removeprefix("hf://").strip("/")


@pytest.mark.parametrize(
    "source", ["hf:org/name", "hf://datasets/org/name", "hf:org/name/data/train-*.txt"]
)
def test_a_data_set_of_the_hub(monkeypatch, memory, source):
    """By its name; fsspec reads the hub itself."""
    memory.pipe_file("/datasets/org/name/data/train-0.txt", "\n\n".join(texts(4)).encode())
    memory.pipe_file("/datasets/org/name/data/test-0.txt", b"held out")
    memory.pipe_file("/datasets/org/name/README.md", b"a card")
    monkeypatch.setattr(address, "file_system", {"hf": _Hub(skip_instance_cache=True)}.__getitem__)
    found = find_files(source)[0]
    assert [str(file) for file in found] == ["hf://datasets/org/name/data/train-0.txt"]
    assert ["\n".join(d) for d in read_documents([source])] == texts(4)
    assert data_set_of(source_name(source)) == "org/name"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("hf:imdb", "is not a data set: write hf:OWNER/NAME"),
        ("hf:org/name:en", "is not a data set: write hf:OWNER/NAME"),
    ],
)
def test_other_names_are_answered_with_the_right_spelling(source, message):
    with pytest.raises(UsageError, match=message):
        list(read_documents([source]))


def test_an_offline_hub(monkeypatch):
    """It is not a network failure, which would be temporary."""
    from huggingface_hub.errors import OfflineModeIsEnabled

    class Offline(_Hub):
        def isfile(self, path: str) -> bool:
            raise OfflineModeIsEnabled("Cannot reach the hub")

    monkeypatch.setattr(address, "file_system", {"hf": Offline(skip_instance_cache=True)}.get)
    with pytest.raises(UsageError, match="HF_HUB_OFFLINE is set"):
        list(read_documents(["hf:org/name"]))


def test_a_bare_name_is_answered_with_the_right_spelling(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["prepare", "--source", "org/name", "--output-dir", "corpus"]) == 2
    assert "no such file or folder (for a dataset of the hub, write hf:org/name);" in (
        capsys.readouterr().err
    )


def test_a_file_of_a_web_server(tmp_path):
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress("\n\n".join(texts(30)).encode()))
    handler = functools.partial(_Quiet, directory=str(tmp_path))
    with server.ThreadingHTTPServer(("localhost", 0), handler) as web:
        threading.Thread(target=web.serve_forever, daemon=True).start()
        place = f"http://localhost:{web.server_port}"
        found = list(read_documents([f"{place}/a.txt.gz?version=3"]))
        assert ["\n".join(document) for document in found] == texts(30)
        with pytest.raises(UsageError, match=r"/b\.txt: no such file or folder; check the address"):
            list(read_documents([f"{place}/b.txt"]))
        web.shutdown()
    with pytest.raises(Unreachable, match="does not answer"):
        list(read_documents([f"{place}/a.txt.gz"]))


class _Quiet(server.SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        return
