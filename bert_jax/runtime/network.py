"""Tells failures of the network from all others, and asks again until it is back.

What the network does is nobody's damage: a request that fails for it says nothing about a file. The
libraries that ask (gcsfs, aiohttp, requests, google-auth, tensorstore) share no base for it.
"""

import errno
import re
import socket
import time
from collections.abc import Callable
from typing import TypeVar

from bert_jax.errors import Unreachable
from bert_jax.progress import note

_T = TypeVar("_T")
# Seconds that a request is repeated for. With the minute or two that a restart takes, a machine is
# not started again and again while the cloud is away.
PATIENCE = 600.0
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0

# ESTALE is what a network's file system says when its server was away.
_ERRNOS = {
    *(errno.ETIMEDOUT, errno.ECONNRESET, errno.ECONNREFUSED, errno.ECONNABORTED, errno.ESTALE),
    *(errno.EHOSTUNREACH, errno.EHOSTDOWN, errno.ENETUNREACH, errno.ENETDOWN, errno.ENETRESET),
}
# Answers of a server that ask for another try.
_STATUSES = {"408", "429", "500", "502", "503", "504"}
# Classes by module and name: importing them would take seconds, and some are not installed.
_CLASSES = re.compile(
    r"aiohttp\..*\.(ClientConnection|ServerTimeout|ClientPayload|ServerDisconnected|ClientOS)\w*"
    r"|requests\.exceptions\.(\w*Timeout|\w*ConnectionError|ChunkedEncodingError|ProxyError|SSLError)"
    r"|urllib3\.exceptions\..*"
    r"|google\.auth\.exceptions\.(TransportError|RefreshError)"
    r"|gcsfs\.retry\.ChecksumError"
)
# How tensorstore, which raises ValueError for everything, begins what may pass.
_TENSORSTORE = re.compile(r"\b(UNAVAILABLE|DEADLINE_EXCEEDED|ABORTED): |retry attempts failed")


def is_transient(error: BaseException) -> bool:
    """Returns whether an error is the network's: the same request may succeed later."""
    if isinstance(error, TimeoutError | ConnectionError | socket.gaierror):
        return True
    if isinstance(error, OSError) and error.errno in _ERRNOS:
        return True
    if str(getattr(error, "code", None)) in _STATUSES:
        return True
    for kind in type(error).__mro__:
        if _CLASSES.fullmatch(f"{kind.__module__}.{kind.__qualname__}"):
            return True
    return isinstance(error, ValueError) and bool(_TENSORSTORE.search(str(error)))


def retrying(call: Callable[[], _T], *, name: str, patience: float | None = None) -> _T:
    """Returns what `call` returns, retrying while the network fails.

    `name` says in messages who does not answer. Raises Unreachable after `patience` seconds
    (default: PATIENCE); other errors as they are.
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


def unreachable(name: str, error: BaseException) -> Unreachable:
    """Returns the error to end with."""
    return Unreachable(
        f"{name} does not answer: {described(error)}. Nothing that is stored is harmed; the same "
        "command goes on once the network is back"
    )


def described(error: BaseException) -> str:
    """Returns an error as one line; many of the network's have no text of their own."""
    first = (str(error).strip().splitlines() or [""])[0][:300]
    return first or type(error).__name__
