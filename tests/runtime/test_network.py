"""Failures of the network: told from others, asked again, never damage; and when to save."""

import asyncio
import datetime
import errno
import importlib.util
import socket
import socketserver
import ssl
import threading
import urllib.error
import urllib.request
from urllib.error import HTTPError

import aiohttp
import gcsfs.retry
import google.auth.transport.requests
import huggingface_hub.errors
import jax
import pytest
import requests
import urllib3
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from google.auth import exceptions as google_auth

from bert_jax.__main__ import main
from bert_jax.errors import StorageFailed, Unreachable, with_exit_code
from bert_jax.runtime import distributed, network
from bert_jax.training import saving
from bert_jax.workdir import checkpoint, manifest, recovery, storage

# The client of huggingface_hub, which changed its name with version 2.
httpx = importlib.import_module("httpx2" if importlib.util.find_spec("httpx2") else "httpx")


class HttpError(Exception):  # as gcsfs has it
    def __init__(self, code: int | str):
        super().__init__(f"chaos, {code}")
        self.code = code


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (TimeoutError(), True),
        (ConnectionResetError(errno.ECONNRESET, "reset"), True),
        (socket.gaierror(-3, "Temporary failure in name resolution"), True),
        (OSError(errno.EHOSTUNREACH, "No route to host"), True),
        (OSError(errno.ESTALE, "Stale file handle"), True),
        (HttpError(503), True),
        (HttpError("429"), True),
        (urllib.error.URLError(ConnectionRefusedError()), True),
        (urllib.error.URLError("unknown url type"), False),
        (ValueError("UNAVAILABLE: Error reading gs://b/x: CURL error"), True),
        (ValueError("ABORTED: All retry attempts failed: 503"), True),
        (OSError(errno.ENOSPC, "No space left on device"), False),
        (FileNotFoundError(errno.ENOENT, "No such file"), False),
        (OSError(errno.EIO, "Input/output error"), False),
        (PermissionError(errno.EACCES, "Permission denied"), False),
        (HttpError(403), False),
        (HttpError(404), False),
        (ValueError("NOT_FOUND: no such array"), False),
        (ValueError("RESOURCE_EXHAUSTED: No space left on device"), False),
        (RuntimeError("UNAVAILABLE: a peer is gone"), False),  # jax's: another process died
    ],
    ids=repr,
)
def test_failures_of_the_network(error, expected):
    assert network.is_transient(error) is expected


def _answer(kind, status, **options):
    response = requests.Response()
    response.status_code = status
    return kind("chaos", response=response, **options)


def _caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (aiohttp.ServerTimeoutError(), True),
        (aiohttp.ServerDisconnectedError(), True),
        (aiohttp.ClientPayloadError(), True),
        (aiohttp.ClientOSError(), True),
        (aiohttp.ClientResponseError(None, (), status=503), True),
        (aiohttp.ClientResponseError(None, (), status=403), False),
        (aiohttp.InvalidURL("http://["), False),
        (requests.ConnectionError(), True),
        (requests.ConnectTimeout(), True),
        (_answer(requests.HTTPError, 503), True),
        (_answer(requests.HTTPError, 401), False),
        (requests.exceptions.InvalidURL(), False),
        (requests.exceptions.MissingSchema(), False),
        (urllib3.exceptions.ProtocolError(), True),
        (urllib3.exceptions.MaxRetryError(None, "/", urllib3.exceptions.TimeoutError()), True),
        (urllib3.exceptions.LocationParseError("["), False),
        (httpx.ConnectTimeout(""), True),
        (httpx.RemoteProtocolError(""), True),
        (httpx.UnsupportedProtocol(""), False),
        (httpx.InvalidURL(""), False),
        (_answer(huggingface_hub.errors.HfHubHTTPError, 503), True),
        (_answer(huggingface_hub.errors.GatedRepoError, 403), False),
        (huggingface_hub.errors.OfflineModeIsEnabled(), False),
        (google_auth.TransportError("metadata server"), True),
        (google_auth.TransportError("no account", HTTPError("", 404, "", None, None)), False),
        (_caused(google_auth.RefreshError(), google_auth.TransportError()), True),
        (google_auth.RefreshError("invalid_grant: Token has been expired or revoked."), False),
        (gcsfs.retry.HttpError({"code": 503, "message": ""}), True),
        (gcsfs.retry.HttpError({"code": 403, "message": ""}), False),
        (gcsfs.retry.ChecksumError(), True),
    ],
    ids=lambda value: f"{type(value).__module__}.{type(value).__name__}",
)
def test_failures_of_libraries(error, expected):
    """Classes are known by their names: a rename in a library is found here."""
    assert network.is_transient(error) is expected


@pytest.fixture(scope="module")
def untrusted(tmp_path_factory):
    """Yields the address of a server on this machine whose certificate has expired."""
    folder, now = tmp_path_factory.mktemp("certificates"), datetime.datetime.now(datetime.UTC)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=99))
        .not_valid_after(now - datetime.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (folder / "server.pem").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, *form)
        + made.public_bytes(serialization.Encoding.PEM)
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem")
    server = socketserver.ThreadingTCPServer(("localhost", 0), socketserver.BaseRequestHandler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.handle_error = lambda *_: None  # the client has hung up
    threading.Thread(target=server.serve_forever, args=(0.01,)).start()
    yield f"https://localhost:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def _by_aiohttp(url: str) -> None:
    async def ask() -> None:
        async with aiohttp.ClientSession() as session, session.get(url):
            pass

    asyncio.run(ask())


@pytest.mark.parametrize(
    "ask",
    [
        _by_aiohttp,
        lambda url: google.auth.transport.requests.Request()(url),
        requests.get,
        httpx.get,
        urllib.request.urlopen,
    ],
    ids=["aiohttp", "google-auth", "requests", "httpx", "urllib"],
)
def test_a_certificate_that_is_not_accepted_ends_the_command(untrusted, monkeypatch, capsys, ask):
    """A request that is repeated meets the same certificate: the code is not 75."""
    from bert_jax_lab.cli import config as config_verb

    monkeypatch.setattr(config_verb, "run", lambda _: ask(untrusted))
    assert main(["config", "show", "tiny_docs_cpu"]) == StorageFailed.exit_code
    (line,) = capsys.readouterr().err.splitlines()
    assert "certificate" in line.lower() and "SSL_CERT_FILE" in line
    with pytest.raises(StorageFailed, match="SSL_CERT_FILE"), storage.failures("gs://b/run"):
        ask(untrusted)


def test_asking_again(monkeypatch):
    slept: list[float] = []
    monkeypatch.setattr(network.time, "sleep", slept.append)
    monkeypatch.setattr(network.time, "monotonic", lambda: sum(slept))
    answers = iter([TimeoutError(), ConnectionResetError(), "here"])

    def ask() -> str:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert network.retrying(ask, name="it", patience=60) == "here" and slept == [1, 2]
    slept.clear()
    with pytest.raises(Unreachable, match=r"it does not answer: TimeoutError\. Stored files"):
        network.retrying(lambda: (_ for _ in ()).throw(TimeoutError()), name="it", patience=60)
    assert 30 <= sum(slept) <= 60
    # What is not the network's is raised at once, as it is.
    slept.clear()
    with pytest.raises(KeyError):
        network.retrying(lambda: {}["x"], name="it")
    assert not slept


def test_a_time_out_is_no_damage(tmp_path, monkeypatch):
    """Neither for a manifest nor for a file: nothing is set aside, the code is 75."""
    step = tmp_path / "checkpoints" / "4"
    step.mkdir(parents=True)
    (step / "array").write_bytes(b"numbers")
    from etils import epath

    manifest.write(epath.Path(step))
    monkeypatch.setattr(network, "PATIENCE", 0.0)
    assert checkpoint.problem(tmp_path, 4) is None
    for what in ("open", "read_bytes"):
        with monkeypatch.context() as patch:

            def fail(*_):
                raise TimeoutError(errno.ETIMEDOUT, "timed out")

            patch.setattr(epath.Path(step).__class__, what, fail)
            with pytest.raises(Unreachable, match="timed out"):
                recovery.prepare_resume(tmp_path)
    assert checkpoint.steps(tmp_path) == [4] and not (tmp_path / "set_aside").exists()
    assert with_exit_code(75, "").__class__ is Unreachable


def test_an_unreachable_metadata_server_is_asked_again_and_then_75(monkeypatch):
    import requests

    asked = []

    def initialize(**_):
        asked.append(1)
        raise requests.ConnectionError("metadata.google.internal")

    monkeypatch.setattr(jax.distributed, "initialize", initialize)
    monkeypatch.setattr(network, "PATIENCE", 0.3)
    monkeypatch.setattr(network, "_FIRST_PAUSE", 0.1)
    with pytest.raises(Unreachable, match=r"metadata\.google\.internal"):
        distributed.Connection(distributed=True).connect()
    assert len(asked) == 2


def test_the_command_line_ends_with_75(tmp_path, monkeypatch, capsys):
    from bert_jax_lab.cli import config as config_verb

    for error in (TimeoutError(errno.ETIMEDOUT, "timed out"), HttpError(503)):

        def fail(_, error=error):
            raise error

        monkeypatch.setattr(config_verb, "run", fail)
        assert main(["config", "show", "tiny_docs_cpu"]) == 75
        assert "network failure; try again later" in capsys.readouterr().err


@pytest.mark.parametrize(("in_cloud", "code"), [(True, 75), (False, 7)])
def test_no_credentials(tmp_path, monkeypatch, in_cloud, code):
    """On a machine of the cloud, the metadata server did not answer; elsewhere nobody logged in."""
    monkeypatch.setattr(storage, "_PRODUCT", tmp_path / "product_name")
    if in_cloud:
        (tmp_path / "product_name").write_text("Google Compute Engine\n")
    refused = pytest.raises((Unreachable, StorageFailed))
    with refused as caught, storage.failures("gs://b/run"):
        raise HttpError(401)
    assert caught.value.exit_code == code
    assert ("log in" in str(caught.value)) is not in_cloud


@pytest.mark.parametrize(
    ("ours", "worst", "code"),
    [(Unreachable("ours"), 1, 75), (None, 1, 75), (Unreachable(""), 2, 7)],
)
def test_all_processes_end_with_the_worst_of_their_codes(monkeypatch, ours, worst, code):
    monkeypatch.setattr(distributed, "largest", lambda number: worst)

    class Logger:
        def event(self, *_, **__):
            pass

    one = object.__new__(saving.Saver)
    one.__dict__ |= {"_mesh": None, "_failed": 3, "_max_failed": 3, "_logger": Logger()}
    with pytest.raises((Unreachable, StorageFailed)) as caught:
        one._has_failed(ours)
    assert caught.value.exit_code == code
