"""Places in Cloud Storage, through etils and gcsfs: what they hold, and what fails on the way.

A bucket knows the size and the CRC-32C of each of its objects, so that nothing has to be read to
know what is there. A request waits for seconds, not for ever; gcsfs repeats it six times.
"""

import contextlib
import datetime
import email.utils
import functools
import json
import logging
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

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

_T = TypeVar("_T")
# Seconds without a connection, and without a byte of an answer.
_CONNECT_SECONDS, _READ_SECONDS = 10.0, 60.0
# Seconds for a request of a few hundred bytes, with all its repetitions.
_BRIEF_SECONDS = 10.0
# Our names of the checksums, and the bucket's.
_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]*")
_CHECKSUMS = {"crc32c": "crc32c", "md5": "md5Hash"}
# Says on which machines the metadata server gives the credentials.
_PRODUCT = Path("/sys/class/dmi/id/product_name")


class Object(NamedTuple):
    """An object as the bucket describes it. Its checksums ("crc32c", "md5") are base64, as there.

    tensorstore ends its files with their own CRC-32C, which makes that of the whole file the same
    for all of them; MD5 tells them apart. Objects that were composed of others have none.
    """

    size: int
    checksums: dict[str, str]


def is_address(path: Any) -> bool:
    """Returns whether a place is in a bucket. Raises UsageError for an address in a `Path`."""
    text = str(path)
    if files.ADDRESS.match(text) and "://" not in text:
        raise UsageError(f"{text} has lost a slash: give an address as a text, and not as a Path")
    return "://" in text


def choose_gcsfs() -> None:
    """Lets buckets be reached through gcsfs: TensorFlow takes seconds to import.

    It counts if it is called before the first path is asked for, which jax does when it compiles.
    """
    os.environ.setdefault("EPATH_USE_TF", "false")


def path_of(path: str | Path) -> Any:
    """Returns an `epath.Path` of a directory or an address.

    Raises UsageError for an address that is none of Cloud Storage, or leads out of its folder.
    """
    if is_address(path):
        _require_place(str(path))
    choose_gcsfs()
    # Checkpoints go through tensorstore, which would wait for ever for an answer that has stalled.
    os.environ.setdefault("TENSORSTORE_CURL_LOW_SPEED_TIME_SECONDS", "60")
    os.environ.setdefault("TENSORSTORE_CURL_LOW_SPEED_LIMIT_BYTES", "1024")
    # They say of every file what kind of bucket they cannot ask about, and print a traceback of
    # each error that they raise.
    for name in ("gcsfs", "fsspec"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    if is_address(path):
        with contextlib.suppress(ImportError):  # reported when something is asked for
            _be_careful()
    from etils import epath

    return epath.Path(path)


def _require_place(address: str) -> None:
    holder, _, name = address.removeprefix("gs://").rstrip("/").partition("/")
    try:
        if name:
            files.inside(Path(), name)
        is_place = address.startswith("gs://") and _BUCKET.fullmatch(holder)
        # gcsfs takes these for patterns and generations.
        is_place = is_place and not set("?#*[") & set(name)
    except ValueError:
        is_place = False
    if not is_place:
        raise UsageError(f"{brief(address)}: write a place in a bucket as gs://BUCKET/PATH")


def is_dir(place: Any) -> bool:
    """Returns whether there is a directory. A path of somebody's own (NFS) may be away, too:
    `Path.is_dir` would say no.
    """
    if is_address(place):
        return place.is_dir()
    try:
        return os.stat(place).st_mode & 0o170000 == 0o040000
    except (FileNotFoundError, NotADirectoryError):
        return False


def children(place: Any) -> list[Any]:
    """Returns what lies directly in a directory or at an address.

    Cloud Storage allows `..` and other such words in the names of its objects: raises StorageFailed
    for one that would lead out of its folder.
    """
    found = list(place.iterdir())
    for path in found if is_address(place) else ():
        try:
            # epath takes `.` for the folder itself.
            name = path.name if path != place else "."
            files.inside(place, name)
        except ValueError as error:
            raise StorageFailed(f"{error}, yet an object has it: remove that") from error
    return found


def objects(place: Any) -> dict[str, Object]:
    """Returns all objects below an address, by their names from there on, with one request for
    each thousand.
    """
    import fsspec

    # The one that etils has.
    system: Any = fsspec.filesystem("gcs", finalize_on_close=True)
    found = system.find(str(place), detail=True)
    root = str(place).removeprefix("gs://").rstrip("/") + "/"
    return {
        name.removeprefix(root): Object(
            int(entry["size"]),
            {kind: entry[key] for kind, key in _CHECKSUMS.items() if entry.get(key)},
        )
        for name, entry in found.items()
        if name.startswith(root) and entry["type"] == "file" and not name.endswith("/")
    }


class VersionedObject:
    """A small object that is replaced only as the version that was read: the bucket sees to it.

    Does as `files.VersionedFile`; a tag is the object's generation, an age by the server's clock.
    """

    def __init__(self, address: str):
        path_of(address)
        self._place = address.removeprefix("gs://").partition("/")[::2]

    def read(self) -> files.Version | None:
        while True:
            try:
                headers, answer = self._call("GET", "b/{}/o/{}", *self._place)
            except FileNotFoundError:
                return None
            found = json.loads(answer)
            tag, text = str(found["generation"]), b""
            with contextlib.suppress(FileNotFoundError):  # it was replaced meanwhile
                if int(found["size"]) <= files.LONGEST_VERSION:
                    asked = {"alt": "media", "generation": tag}
                    _, text = self._call("GET", "b/{}/o/{}", *self._place, **asked)
                now = email.utils.parsedate_to_datetime(headers["Date"])
                age = now - datetime.datetime.fromisoformat(found["updated"])
                age_seconds = max(0.0, age.total_seconds())
                return files.Version(text.decode(errors="replace"), tag, age_seconds)

    def replace(self, text: str, tag: str | None) -> str | None:
        holder, name = self._place
        try:
            _, answer = self._call(
                "POST",
                f"{self._system.base.replace('/storage/', '/upload/storage/')}b/{{}}/o",
                holder,
                uploadType="media",
                name=name,
                ifGenerationMatch=tag or "0",
                headers={"Content-Type": "application/octet-stream"},
                data=text.encode(),
            )
        except FileExistsError:  # what gcsfs makes of "precondition failed"
            return None
        return json.loads(answer)["generation"]

    def remove(self, tag: str) -> None:
        with contextlib.suppress(FileExistsError, FileNotFoundError):
            self._call("DELETE", "b/{}/o/{}", *self._place, ifGenerationMatch=tag)

    @property
    def _system(self) -> Any:
        import fsspec

        return fsspec.filesystem("gcs", finalize_on_close=True)

    def _call(self, *arguments: Any, **options: Any) -> tuple[Any, bytes]:
        """Returns headers and answer of a request, whose repetitions end after some seconds."""
        from fsspec.asyn import sync

        system = self._system
        answered: Any = sync(
            system.loop, system._call, *arguments, timeout=_BRIEF_SECONDS, **options
        )
        return answered


def asking(address: str, what: str, call: Callable[[], _T], *, patience: float | None = None) -> _T:
    """Returns what `call`, which may be made twice, returns of a place in a bucket.

    It is repeated while the network fails, for `patience` seconds. Raises Unreachable after that,
    and StorageFailed for what else goes wrong.
    """
    with failures(address, what):
        return network.retrying(call, name=address, patience=patience)


@contextlib.contextmanager
def failures(address: str, what: str) -> Iterator[None]:
    """Raises what goes wrong inside as Unreachable or StorageFailed; `what` completes "cannot
    be ...".
    """
    try:
        yield
    except BertJaxError:
        raise
    except ImportError as error:
        raise UsageError(f"{address}: a bucket needs gcsfs: {install_command('gcsfs')}") from error
    except Exception as error:  # of gcsfs, aiohttp and google-auth, which share no base
        if network.is_transient(error):
            raise network.unreachable(address, error) from error
        text = f"{address} cannot be {what}: {network.described(error)}"
        if str(getattr(error, "code", "")) == "401":
            if _is_in_the_cloud():
                # gcsfs goes on as nobody where the metadata server does not answer.
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
def _be_careful() -> None:
    """Has all that goes through fsspec, Orbax's too, give up after a while, see what is there now,
    and take no silence for an empty place.
    """
    import aiohttp
    import fsspec
    import gcsfs

    class CarefulFileSystem(gcsfs.GCSFileSystem):
        def __init__(self, *arguments: Any, **options: Any):
            wait = aiohttp.ClientTimeout(
                total=None, sock_connect=_CONNECT_SECONDS, sock_read=_READ_SECONDS
            )
            careful = {"requests_timeout": wait, "use_listings_cache": False}
            super().__init__(*arguments, **(careful | options))

        async def _isdir(self, path: str) -> bool:
            # gcsfs says no after every OSError, which a time-out and a refusal are.
            try:
                found: Any = await self._info(path)
                return found["type"] == "directory"
            except FileNotFoundError:
                return False

    for protocol in ("gs", "gcs"):
        fsspec.register_implementation(protocol, CarefulFileSystem, clobber=True)
