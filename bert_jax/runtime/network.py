"""Separates failures of the network from all others, and repeats a request until it is answered.

A request that fails because of the network is no evidence of a damaged file. The libraries that
send requests (gcsfs, aiohttp, requests, httpx, google-auth, botocore, tensorstore) share no base
class for these failures.
"""

import errno
import re
import socket
import time
from collections.abc import Callable
from typing import TypeVar

from bert_jax.errors import StorageFailed, Unreachable
from bert_jax.progress import note

_T = TypeVar("_T")
# Seconds for which a request is repeated. A restart of the machine takes one or two minutes, and
# should not be repeated as long as the cloud is away.
PATIENCE = 600.0
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0

# ESTALE: the server of a network file system was away.
_ERRNOS = {
    *(errno.ETIMEDOUT, errno.ECONNRESET, errno.ECONNREFUSED, errno.ECONNABORTED, errno.ESTALE),
    *(errno.EHOSTUNREACH, errno.EHOSTDOWN, errno.ENETUNREACH, errno.ENETDOWN, errno.ENETRESET),
}
# HTTP statuses that ask for another try.
_STATUSES = {408, 429, 500, 502, 503, 504}
# Classes by package and name: to import them takes seconds, and some are not installed.
_CLASSES = re.compile(
    r"aiohttp\.(ClientConnectionError|ClientPayloadError)"
    r"|requests\.(ConnectionError|Timeout|ChunkedEncodingError)"
    r"|urllib3\.(TimeoutError|ProtocolError|ProxyError|SSLError|IncompleteRead)"
    r"|http[xc]\w*\.(TimeoutException|NetworkError|RemoteProtocolError|ProxyError)"
    r"|botocore\.(ConnectionError|HTTPClientError)"
    r"|google\.TransportError|gcsfs\.ChecksumError"
)
# The beginning of a ValueError of tensorstore, its only class, for what may pass.
_TENSORSTORE = re.compile(r"\b(UNAVAILABLE|DEADLINE_EXCEEDED|ABORTED): |retry attempts failed")
_CERTIFICATE = "; check the clock of this machine and the certificates it trusts (SSL_CERT_FILE)"


def is_transient(error: BaseException) -> bool:
    """Returns whether an error is a failure of the network: the same request may succeed later.

    Where a server answered, its HTTP status decides. A certificate that is not accepted (expired,
    self-signed, of another host) and an address that is not valid are no failures of the network.
    """
    names = {f"{kind.__module__.partition('.')[0]}.{kind.__name__}" for kind in type(error).__mro__}
    if _is_of_certificate(error) or "huggingface_hub.OfflineModeIsEnabled" in names:
        return False
    if (status := _status(error)) is not None:
        return status in _STATUSES
    # Of urllib and urllib3; and of google-auth, where none is there for revoked credentials.
    is_refresh = "google.RefreshError" in names
    cause = error.__cause__ if is_refresh else getattr(error, "reason", None)
    if isinstance(cause, Exception):
        return is_transient(cause)
    return (
        isinstance(error, TimeoutError | ConnectionError | socket.gaierror)
        or (isinstance(error, OSError) and error.errno in _ERRNOS)
        or any(map(_CLASSES.fullmatch, names))
        or (isinstance(error, ValueError) and bool(_TENSORSTORE.search(str(error))))
    )


def _status(error: BaseException) -> int | None:
    """Returns the HTTP status of the answer that an error reports; None where there was none."""
    # aiohttp has it itself, requests, httpx and huggingface_hub in a response, google-auth in an
    # argument; gcsfs and urllib call it code.
    holders = (error, getattr(error, "response", None), *error.args)
    for name in ("status", "status_code", "code"):
        for holder in holders:
            if re.fullmatch("[1-5][0-9][0-9]", str(found := getattr(holder, name, None))):
                return int(str(found))
    return None


def _is_of_certificate(error: BaseException | None) -> bool:
    """Returns whether an error is, or was raised from, the refusal of a certificate."""
    import ssl  # not at the start of every command: it takes as long as this whole module

    while error is not None and not isinstance(error, ssl.SSLCertVerificationError):
        error = error.__cause__ or error.__context__
    return error is not None


def retrying(call: Callable[[], _T], *, name: str, patience: float | None = None) -> _T:
    """Returns what `call` returns, retrying while the network fails.

    `name` names in messages what does not answer. Raises Unreachable after `patience` seconds
    (default: PATIENCE), and other errors unchanged.
    """
    ends = time.monotonic() + (PATIENCE if patience is None else patience)
    pause, is_noted = _FIRST_PAUSE, False
    while True:
        try:
            return call()
        except Exception as error:
            if not is_transient(error):
                raise
            if time.monotonic() + pause > ends:
                raise unreachable(name, error) from error
            if not is_noted:
                note(f"{name} does not answer ({described(error)}): retrying")
                is_noted = True
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)


def failure_of(error: BaseException) -> StorageFailed | Unreachable | None:
    """Returns the error to end with where no place is known; None for other kinds of errors."""
    if is_transient(error):
        return Unreachable(f"{described(error)}: the network fails; try again later")
    return StorageFailed(described(error)) if _is_of_certificate(error) else None


def unreachable(name: str, error: BaseException) -> Unreachable:
    """Returns the error to end with."""
    return Unreachable(
        f"{name} does not answer: {described(error)}. Nothing that is stored is harmed; the same "
        "command resumes once the network is back"
    )


def described(error: BaseException) -> str:
    """Returns an error as one line; many errors of the network have no text."""
    first = (str(error).strip().splitlines() or [""])[0][:300] or type(error).__name__
    return first + _CERTIFICATE if _is_of_certificate(error) else first
