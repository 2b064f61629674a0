"""Distinguishes network failures from other errors, and retries requests.

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
# Seconds of retries. A restart of the machine takes one or two minutes, and should not be repeated
# during an outage of the cloud.
PATIENCE = 600.0
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0

# ESTALE: the server of a network file system was unavailable.
_ERRNOS = {
    *(errno.ETIMEDOUT, errno.ECONNRESET, errno.ECONNREFUSED, errno.ECONNABORTED, errno.ESTALE),
    *(errno.EHOSTUNREACH, errno.EHOSTDOWN, errno.ENETUNREACH, errno.ENETDOWN, errno.ENETRESET),
}
# HTTP statuses that ask for a retry.
_STATUSES = {408, 429, 500, 502, 503, 504}
# Classes by package and name: imports take seconds, and some packages may not be installed.
_CLASSES = re.compile(
    r"aiohttp\.(ClientConnectionError|ClientPayloadError)"
    r"|requests\.(ConnectionError|Timeout|ChunkedEncodingError)"
    r"|urllib3\.(TimeoutError|ProtocolError|ProxyError|SSLError|IncompleteRead)"
    r"|http[xc]\w*\.(TimeoutException|NetworkError|RemoteProtocolError|ProxyError)"
    r"|botocore\.(ConnectionError|HTTPClientError)"
    r"|google\.TransportError|gcsfs\.ChecksumError"
)
# Start of the ValueErrors (tensorstore's only class) that are transient.
_TENSORSTORE = re.compile(r"\b(UNAVAILABLE|DEADLINE_EXCEEDED|ABORTED): |retry attempts failed")
_CERTIFICATE = "; check the clock of this machine and the certificates it trusts (SSL_CERT_FILE)"


def is_transient(error: BaseException) -> bool:
    """Returns whether an error is a network failure: the same request may succeed later.

    If a server answered, its HTTP status decides. A rejected certificate (expired, self-signed, of
    another host) and an invalid address are permanent errors.
    """
    names = {f"{kind.__module__.partition('.')[0]}.{kind.__name__}" for kind in type(error).__mro__}
    if _is_of_certificate(error) or "huggingface_hub.OfflineModeIsEnabled" in names:
        return False
    if (status := _status(error)) is not None:
        return status in _STATUSES
    # Of urllib and urllib3; google-auth raises it without a cause for revoked credentials.
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
    """Returns the HTTP status that an error reports; None if it reports none."""
    # aiohttp has it itself, requests, httpx and huggingface_hub in a response, google-auth in an
    # argument; gcsfs and urllib call it code.
    holders = (error, getattr(error, "response", None), *error.args)
    for name in ("status", "status_code", "code"):
        for holder in holders:
            if re.fullmatch("[1-5][0-9][0-9]", str(found := getattr(holder, name, None))):
                return int(str(found))
    return None


def _is_of_certificate(error: BaseException | None) -> bool:
    """Returns whether an error is, or was raised from, a rejected certificate."""
    import ssl  # imported late, because it takes as long as this whole module

    while error is not None and not isinstance(error, ssl.SSLCertVerificationError):
        error = error.__cause__ or error.__context__
    return error is not None


def retrying(call: Callable[[], _T], *, name: str, patience: float | None = None) -> _T:
    """Returns the result of `call`, retrying while the network fails.

    `name` names the unavailable service in messages. Raises Unreachable after `patience` seconds
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
    """Returns the final error if the service is unknown; None for other kinds of errors."""
    if is_transient(error):
        return Unreachable(f"{described(error)}: network failure; try again later")
    return StorageFailed(described(error)) if _is_of_certificate(error) else None


def unreachable(name: str, error: BaseException) -> Unreachable:
    """Returns the final error for a service that does not answer."""
    return Unreachable(
        f"{name} does not answer: {described(error)}. Stored files are intact; run the same "
        "command again to resume once the network is back"
    )


def described(error: BaseException) -> str:
    """Returns an error as one line; many network errors have no text."""
    first = (str(error).strip().splitlines() or [""])[0][:300] or type(error).__name__
    return first + _CERTIFICATE if _is_of_certificate(error) else first
