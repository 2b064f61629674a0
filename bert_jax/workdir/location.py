"""Where a run is: in a folder of this machine, or in a bucket, `gs://BUCKET/PATH`.

`at` and `opened` find out which, so that nobody else has to know. Objects cannot be appended to,
and logs are; so a workdir in a bucket has a directory on this machine that stands for it. Config,
tokenizer and logs are written there and copied to the bucket at every save; on another machine they
are taken back first. Checkpoints go straight to the bucket, where every host writes its part. The
address is kept beside that directory, so that everything else works on directories.
"""

import contextlib
import functools
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from bert_jax import files
from bert_jax.errors import UsageError
from bert_jax.runtime import network
from bert_jax.workdir import bucket
from bert_jax.workdir.bucket import is_address, is_dir, path_of

if TYPE_CHECKING:
    from bert_jax.workdir.lease import Lease

_T = TypeVar("_T")

CHECKPOINTS = "checkpoints"
# Held by who trains there: on one machine, and among all of them (workdir/lease.py).
LOCK, LEASE = ".trainer.lock", "lease.json"
# Ends the name of a step whose removal was cut short.
REMOVED = ".removed"
# What a run on another machine must have; the rest stays in the bucket.
_TAKEN_BACK = (
    "tokenizer",
    "expected.json",
    "metrics.jsonl",
    "metrics.aside.jsonl",
    "events.jsonl",
    "result.json",
    "config.json",
)
_CURVES = "tensorboard"
# Logs and config come after what they speak of.
_LAST = ("events.jsonl", "config.json")


class Location:
    """A folder of this machine with a run, or with several of them.

    `path` is the directory to work in, `name` what users call it.
    """

    is_in_bucket = False
    # Of the process that trains there.
    lease: "Lease | None" = None

    def __init__(self, path: Path):
        self.path, self.name = path, str(path)

    # --- with a run in it

    @property
    def lock(self) -> Path:
        """The lock of those who train there; in a bucket, of those on this machine."""
        return self.path / LOCK

    @property
    def checkpoints(self) -> Any:
        """The directory of the checkpoints, an `epath.Path`."""
        return self._root / CHECKPOINTS

    def require_own(self) -> None:
        """Raises UsageError where the directory of the checkpoints, or a step in it, is a link.

        A run removes old steps, and what is behind a link in a workdir of somebody else's is not
        its own.
        """
        root = self.path / CHECKPOINTS
        for path in (root, *(root.iterdir() if root.is_dir() else ())):
            if path.is_symlink():
                raise UsageError(
                    f"{path} is a link, and a run removes what is old there: put the folder itself "
                    "in its place. The whole workdir may be a link"
                )

    @property
    def _root(self) -> Any:
        return path_of(self.path.absolute())

    def sync(self, *, patience: float | None = None) -> None:
        """Copies what has changed since the last time to the bucket, where the run is in one.

        Asks again for `patience` seconds while the network fails (default: network.PATIENCE).
        Raises WorkdirTaken where this process trained and another one does now.
        """
        if self.lease is not None:
            self.lease.renew(patience=patience)
        self._copy(patience)

    def _copy(self, patience: float | None) -> None:
        """Does what `sync` promises of a bucket."""

    def versioned(self, name: str) -> files.VersionedFile | bucket.VersionedObject:
        """Returns a small file in it, to be replaced only as it was read."""
        return files.VersionedFile(self.path / name)

    def asking(self, call: Callable[[], _T], *, patience: float | None = None) -> _T:
        """Returns what `call` returns, which is made again while the network fails.

        Raises Unreachable, and StorageFailed for what else goes wrong with a bucket.
        """
        return network.retrying(call, name=self.name, patience=patience)

    def failures(self) -> contextlib.AbstractContextManager[None]:
        """Raises Unreachable or StorageFailed for whatever goes wrong inside with a bucket.

        What goes wrong with a folder is raised as it is.
        """
        return contextlib.nullcontext()

    def move(self, source: Any, target: Any) -> None:
        """Moves a directory (`epath.Path`s). A bucket has none: there, file after file."""
        source.rename(target)

    def discard(
        self, directory: Any, *, first: Sequence[str], patience: float | None = None
    ) -> None:
        """Removes a directory (an `epath.Path`) that is no step from the first moment on.

        In a folder its new name says so, in a bucket the lack of the files `first`.
        """
        directory.rename(directory.with_name(f"{directory.name}{REMOVED}")).rmtree()

    # --- with several runs, or attempts of one

    def inside(self, *parts: str) -> Path | str:
        """Returns a place inside of it."""
        return Path(self.path, *parts)

    def names(self) -> list[str]:
        """Returns what is directly in it; nothing where it is not there."""
        root = self._root
        return self.asking(
            lambda: sorted(p.name for p in bucket.children(root)) if is_dir(root) else []
        )

    def write_text(self, name: str, text: str) -> None:
        """Writes a file into it, which appears whole."""
        files.write_whole(self.path / name, text)

    def read_text(self, name: str) -> str:
        return self.asking((self._root / name).read_text)

    def document(self, name: str) -> bytes | None:
        """Returns the content of a file in it; None where there is no such file."""
        try:
            return files.read_plain(self.path / name)
        except FileNotFoundError:
            return None

    def remove(self) -> None:
        """Removes it with all that is in it, if it is there."""
        root = self._root
        self.asking(lambda: root.rmtree() if root.exists() else None)

    def set_aside(self, *, building: str, target: str, but_for: tuple[str, ...]) -> None:
        """Moves all that is in it, but names that begin with one of `but_for`, to `target`.

        It is collected in `building`; called again after an interruption, it goes on.
        """
        collected = self.path / building
        collected.mkdir(exist_ok=True)
        for name in self._names_but(but_for):
            shutil.move(self.path / name, collected / name)
        collected.rename(self.path / target)

    def _names_but(self, but_for: tuple[str, ...]) -> list[str]:
        return [name for name in self.names() if not name.startswith(but_for)]


class _InBucket(Location):
    """A place in a bucket, for which `path` stands on this machine."""

    is_in_bucket = True

    def __init__(self, address: str, path: Path | None = None):
        super().__init__(path or _stand_in(address, "reader"))
        self.name = address

    @property
    def lock(self) -> Path:
        return _beside(_stand_in(self.name, "trainer"), "lock")

    @property
    def _root(self) -> Any:
        return path_of(self.name)

    def take_back(self) -> None:
        """Makes `path` what the bucket has: files of the run, or nothing."""
        self.path.mkdir(parents=True, exist_ok=True)
        _beside(self.path, "address").write_text(self.name + "\n", encoding="utf-8")

        def take_all_back() -> None:
            for part in _TAKEN_BACK:
                _take_back(self._root / part, self.path / part)

        bucket.asking(self.name, "read", take_all_back)
        if not (self.path / _LAST[-1]).exists():
            # There is no run, or no longer. What else is here is of one that never got there.
            shutil.rmtree(self.path)
            self.path.mkdir()
            _beside(self.path, "copied").unlink(missing_ok=True)

    def _copy(self, patience: float | None) -> None:
        copy = functools.partial(_copy_changes, self.path, self.name)
        bucket.asking(self.name, "written to", copy, patience=patience)

    def versioned(self, name: str) -> bucket.VersionedObject:
        return bucket.VersionedObject(self.inside(name))

    def asking(self, call: Callable[[], _T], *, patience: float | None = None) -> _T:
        return bucket.asking(self.name, "read or written to", call, patience=patience)

    def failures(self) -> contextlib.AbstractContextManager[None]:
        return bucket.failures(self.name, "written to")

    def move(self, source: Any, target: Any) -> None:
        copy_tree(source, target)
        # Once, at the end: a directory of a bucket is gone when the last object under it is.
        source.rmtree()

    def discard(
        self, directory: Any, *, first: Sequence[str], patience: float | None = None
    ) -> None:
        def remove_objects() -> None:
            for name in first:
                (directory / name).unlink(missing_ok=True)
            if is_dir(directory):
                directory.rmtree()

        self.asking(remove_objects, patience=patience)

    def inside(self, *parts: str) -> str:
        return "/".join((self.name, *parts))

    def document(self, name: str) -> bytes | None:
        place = self._root / name

        def read() -> bytes | None:
            return place.read_bytes() if place.exists() else None

        return bucket.asking(self.name, "read", read)

    def write_text(self, name: str, text: str) -> None:
        place = self._root / name
        bucket.asking(self.name, "written to", lambda: place.write_text(text))

    def set_aside(self, *, building: str, target: str, but_for: tuple[str, ...]) -> None:
        inside = self._names_but(but_for)
        with self.failures():
            place = self._root
            (place / building).write_text("")  # says that it is under way
            for name in inside:
                source, goal = place / name, place / target / name
                if is_dir(source):
                    self.move(source, goal)
                else:
                    source.copy(goal)
                    source.unlink()
            (place / building).unlink()


def at(place: Path | str) -> Location:
    """Returns where a folder, an address, or the directory that stands for one leads.

    Raises UsageError for an address that is not of Cloud Storage.
    """
    if is_address(place):
        return _InBucket(str(place).rstrip("/"))
    mark = _beside(Path(place).absolute(), "address")
    if mark.is_file():
        return _InBucket(mark.read_text(encoding="utf-8").strip(), Path(place))
    return Location(Path(place))


def opened(place: Path | str) -> Location:
    """Returns the location of a run to read, with a `path` to read it from.

    The files of a run in a bucket are copied to a directory of this machine that readers share:
    reading never changes the files of a process that trains here. Raises UsageError for an address
    that is not in Cloud Storage, StorageFailed if the bucket cannot be read, Unreachable if the
    network fails for long.
    """
    return _opened(place, "reader")


def opened_to_write(place: Path | str, *, process: int, lease: "Lease | None") -> Location:
    """Returns the location of a run to write, with a `path` to work in.

    The files of a run in a bucket replace the files in the directory of this `process` of the
    trainer. Only the trainer may ask for that: `lease` is the lease of process 0, and None in the
    other processes, which have waited for process 0 to take it. Raises as `opened`.
    """
    assert lease is not None or process != 0 or not is_address(place), "take the lease first"
    found = _opened(place, f"process-{process}")
    found.lease = lease
    return found


def _opened(place: Path | str, owner: str) -> Location:
    found = at(place)
    if is_address(place):
        path_of(found.name)
        found = _InBucket(found.name, _stand_in(found.name, owner))
        found.take_back()
    return found


def _stand_in(address: str, owner: str) -> Path:
    """Returns the directory of this machine that stands for a place in a bucket.

    It is in `BERT_JAX_CACHE` (default: `~/.cache/bert-jax`). Each `owner` has its own directory.
    """
    if not address.startswith("gs://") or "/" not in address.removeprefix("gs://"):
        raise UsageError(f"{address}: write a place in a bucket as gs://BUCKET/PATH")
    cache = Path(os.environ.get("BERT_JAX_CACHE") or Path.home() / ".cache" / "bert-jax")
    name = hashlib.sha256(address.encode()).hexdigest()[:16]
    return cache / "workdirs" / f"{name}-{owner}"


def _beside(directory: Path, what: str) -> Path:
    return directory.parent / f"{directory.name}.{what}"


def _take_back(source: Any, target: Path) -> None:
    if is_dir(source):
        target.mkdir(parents=True, exist_ok=True)
        for part in bucket.children(source):
            _take_back(part, files.inside(target, part.name))
    elif source.exists():
        target.write_bytes(source.read_bytes())
    elif target.is_file():
        # Of a run that is no longer in the bucket, or that never got there.
        target.unlink()


def _copy_changes(directory: Path, address: str) -> None:
    written = [f for f in directory.rglob("*") if f.is_file()]
    names = sorted((str(f.relative_to(directory)) for f in written), key=lambda n: (n in _LAST, n))
    record = _beside(directory, "copied")
    known = dict(
        line.rsplit(" ", 1) for line in (record.read_text().splitlines() if record.exists() else [])
    )
    for name in names:
        status = (directory / name).stat()
        stamp = f"{status.st_size}:{status.st_mtime_ns}"
        if known.get(name) != stamp:
            target = path_of(address) / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes((directory / name).read_bytes())
            known[name] = stamp
    # Those are written anew by every process that trains.
    curves = path_of(address) / _CURVES
    has_own = any(name.startswith(f"{_CURVES}/") for name in names)
    for name, curve in _files(curves, _CURVES) if has_own and is_dir(curves) else ():
        if name not in names:
            curve.unlink()
    files.write_whole(record, "".join(f"{name} {stamp}\n" for name, stamp in known.items()))


def _files(place: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yields all files below a place, with their names from its own on."""
    for path in bucket.children(place):
        inner = f"{name}/{path.name}"
        if is_dir(path):
            yield from _files(path, inner)
        else:
            yield inner, path


def copy_tree(source: Any, target: Any) -> None:
    """Copies a directory, an `epath.Path`, to a place on this machine or in a bucket.

    Raises UsageError for a link in it, which may lead anywhere.
    """
    if not is_address(target):
        target.mkdir(parents=True, exist_ok=True)
    for path in bucket.children(source):
        if os.path.islink(path):
            raise UsageError(f"{path} is a link; put what it leads to in its place")
        if is_dir(path):
            copy_tree(path, target / path.name)
        else:
            path.copy(target / path.name, overwrite=True)
