"""Cloud Storage through etils and gcsfs: paths, objects with conditions, and errors.

A bucket reports the size and MD5 of each object, so a copy is verified without a download. Requests
time out after seconds; gcsfs retries them six times.
"""

import base64
import contextlib
import datetime
import email.utils
import functools
import json
import logging
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bert_jax import files
from bert_jax.errors import (
    BertJaxError,
    StorageFailed,
    Unreachable,
    UsageError,
    brief,
    install_command,
)
from bert_jax.runtime import network

# Seconds without a connection, and without a byte of an answer.
_CONNECT_SECONDS, _READ_SECONDS = 10.0, 60.0
# Seconds for a request of a few kilobytes, including retries.
_BRIEF_SECONDS = 10.0
# Excludes `.` and `..`, and characters that gcsfs reads as patterns and generations.
_ADDRESS = re.compile(r"gs://[a-z0-9][a-z0-9._-]*(/(?!\.{1,2}(/|$))[^/?#*\[\\\x00-\x1f]+)+/?")
# Has the manufacturer of the machine: on Google's, the metadata server provides credentials.
_PRODUCT = Path("/sys/class/dmi/id/product_name")


# --- paths ----------------------------------------------------------------------------------------


def is_address(path: Any) -> bool:
    """Returns whether a place is in a bucket. Raises UsageError for an address in a `Path`."""
    text = str(path)
    if files.ADDRESS.match(text) and "://" not in text:
        raise UsageError(f"{text} has lost a slash: give the address as a str, not as a Path")
    return "://" in text


def choose_gcsfs() -> None:
    """Makes etils use gcsfs for buckets, because TensorFlow takes seconds to import.

    Must be called before the first path is created, which JAX does when it compiles.
    """
    os.environ.setdefault("EPATH_USE_TF", "false")


def path_of(path: str | Path) -> Any:
    """Returns an `epath.Path` of a directory or an address.

    Raises UsageError for an address that is not in Cloud Storage, or leads out of its folder.
    """
    if is_address(path):
        if not _ADDRESS.fullmatch(str(path)):
            raise UsageError(f"{brief(str(path))}: a bucket address must be gs://BUCKET/PATH")
        with contextlib.suppress(ImportError):  # reported at the first request
            _prepare()
    choose_gcsfs()
    from etils import epath

    return epath.Path(path)


def names_in(place: Any) -> list[str]:
    """Returns the names in a directory or at an address, sorted; empty if it does not exist."""
    try:
        return sorted(path.name for path in place.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def copy_tree(source: Any, target: Any) -> None:
    """Copies a directory; from a bucket also to another place in it."""
    if not is_address(source):
        shutil.copytree(source, target)
        return
    for name in objects(source):
        copy = _inside(target, name)
        if not is_address(target):
            copy.parent.mkdir(parents=True, exist_ok=True)
        (source / name).copy(copy, overwrite=True)


def _inside(folder: Any, name: str) -> Any:
    """Like `files.inside`. A bucket allows names such as `..`: raises StorageFailed for them."""
    try:
        return files.inside(folder, name)
    except ValueError as error:
        raise StorageFailed(f"{error}, but an object has this name: remove the object") from error


# --- objects --------------------------------------------------------------------------------------


class Object(NamedTuple):
    """The size in bytes and the MD5 (hexadecimal) of an object, as reported by the bucket.

    Composite objects have no MD5.
    """

    size: int
    md5: str | None


class Version(NamedTuple):
    """The text of a small object, its generation, and its age in seconds by the server's clock."""

    text: str
    generation: str
    age: float


def _system() -> Any:
    import fsspec

    return fsspec.filesystem("gcs", finalize_on_close=True)  # the instance that etils uses


def objects(place: Any) -> dict[str, Object]:
    """Returns all objects below an address by relative name, with one request per thousand."""
    root = str(place).removeprefix("gs://").rstrip("/") + "/"
    found = _system().find(str(place), detail=True)
    return {
        name.removeprefix(root): Object(
            int(entry["size"]),
            base64.b64decode(entry["md5Hash"]).hex() if entry.get("md5Hash") else None,
        )
        for name, entry in found.items()
        if name.startswith(root) and entry["type"] == "file" and not name.endswith("/")
    }


def download(place: Any, names: Sequence[str], folder: Path) -> None:
    """Copies objects below an address to a folder, several at a time."""
    targets = {str(place / n).removeprefix("gs://"): _inside(folder, n) for n in names}
    for found, content in _system().cat(list(targets)).items() if targets else ():
        targets[found].parent.mkdir(parents=True, exist_ok=True)
        targets[found].write_bytes(content)


def read_version(place: Any) -> Version | None:
    """Returns a small object with its generation; None if it does not exist."""
    while place.exists():
        with contextlib.suppress(FileNotFoundError):  # replaced between the two requests
            headers, answer = _call("GET", "b/{}/o/{}", *_split(place))
            found = json.loads(answer)
            asked = {"alt": "media", "generation": str(found["generation"])}
            _, text = _call("GET", "b/{}/o/{}", *_split(place), **asked)
            now = email.utils.parsedate_to_datetime(headers["Date"])
            age = (now - datetime.datetime.fromisoformat(found["updated"])).total_seconds()
            return Version(text.decode(errors="replace"), asked["generation"], max(0.0, age))
    return None


def write_version(place: Any, content: bytes, generation: str | None) -> str | None:
    """Writes an object if it has this generation; None: if it does not exist.

    Returns the new generation, or None if another process has changed the object.
    """
    bucket, name = _split(place)
    try:
        _, answer = _call(
            "POST",
            f"{_system().base.replace('/storage/', '/upload/storage/')}b/{{}}/o",
            bucket,
            uploadType="media",
            name=name,
            ifGenerationMatch=generation or "0",
            headers={"Content-Type": "application/octet-stream"},
            data=content,
        )
    except FileExistsError:  # "precondition failed", as gcsfs reports it
        return None
    return str(json.loads(answer)["generation"])


def remove_version(place: Any, generation: str) -> None:
    """Removes an object if it has this generation."""
    with contextlib.suppress(FileExistsError, FileNotFoundError):
        _call("DELETE", "b/{}/o/{}", *_split(place), ifGenerationMatch=generation)


def _split(place: Any) -> tuple[str, str]:
    bucket, _, name = str(place).removeprefix("gs://").partition("/")
    return bucket, name


def _call(*arguments: Any, **options: Any) -> tuple[Any, bytes]:
    """Returns headers and content of an answer; times out after some seconds."""
    return _system().call(*arguments, timeout=_BRIEF_SECONDS, **options)


# --- what fails -----------------------------------------------------------------------------------


@contextlib.contextmanager
def failures(place: str) -> Iterator[None]:
    """Raises an error of a bucket as Unreachable if the network failed, and otherwise as
    StorageFailed; errors of a folder are unchanged.
    """
    if not is_address(place):
        yield
        return
    try:
        yield
    except BertJaxError:
        raise
    except ImportError as error:
        raise UsageError(f"{place}: a bucket needs gcsfs: {install_command('gcsfs')}") from error
    except Exception as error:  # gcsfs, aiohttp and google-auth share no base class
        if network.is_transient(error):
            raise network.unreachable(place, error) from error
        text = f"{place} cannot be read or written to: {network.described(error)}"
        if str(getattr(error, "code", "")) == "401":
            if _is_in_the_cloud():
                # If the metadata server does not answer, gcsfs sends no credentials.
                raise Unreachable(
                    f"{text}; this machine's metadata server gives no credentials"
                ) from error
            text += "; log in: gcloud auth application-default login"
        raise StorageFailed(text) from error


def _is_in_the_cloud() -> bool:
    with contextlib.suppress(OSError):
        return _PRODUCT.read_text().startswith("Google")
    return False


@functools.cache
def _prepare() -> None:
    """Makes all users of buckets, including Orbax and tensorstore, time out, bypass caches, and
    raise permission errors instead of seeing an empty place.
    """
    import aiohttp
    import fsspec
    import gcsfs

    os.environ.setdefault("TENSORSTORE_CURL_LOW_SPEED_TIME_SECONDS", "60")
    os.environ.setdefault("TENSORSTORE_CURL_LOW_SPEED_LIMIT_BYTES", "1024")
    for name in ("gcsfs", "fsspec"):  # they log a traceback of each error that they raise
        logging.getLogger(name).setLevel(logging.CRITICAL)

    class CarefulFileSystem(gcsfs.GCSFileSystem):
        def __init__(self, *arguments: Any, **options: Any):
            wait = aiohttp.ClientTimeout(
                total=None, sock_connect=_CONNECT_SECONDS, sock_read=_READ_SECONDS
            )
            careful = {"requests_timeout": wait, "use_listings_cache": False}
            super().__init__(*arguments, **(careful | options))

        async def _isdir(self, path: str) -> bool:
            # gcsfs returns False for every OSError, including timeouts and permission errors.
            try:
                found: Any = await self._info(path)
                return found["type"] == "directory"
            except FileNotFoundError:
                return False

    for protocol in ("gs", "gcs"):
        fsspec.register_implementation(protocol, CarefulFileSystem, clobber=True)
