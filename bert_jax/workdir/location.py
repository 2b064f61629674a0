"""The place of a run: a local folder, or `gs://BUCKET/PATH`.

Every process works on a local folder. For a run in a bucket this folder is private to the process:
`opened` downloads the small files of the run, and `sync` uploads what the trainer has written. An
object cannot be appended to, so a log in a bucket is a sequence of parts: `sync` writes the new
lines as a new object, `metrics-000001.jsonl`, `metrics-000002.jsonl` and so on, and `opened` joins
them. Checkpoints bypass the folder: each host writes its part directly.
"""

import atexit
import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from bert_jax import files
from bert_jax.runtime import network
from bert_jax.workdir import storage
from bert_jax.workdir.storage import is_address, path_of

_T = TypeVar("_T")
# Raises WorkdirTaken if another process trains; retries for this many seconds.
Guard = Callable[[float | None], None]

CHECKPOINTS = "checkpoints"
# Lock files of the process that trains in a folder and in a bucket (lock.py).
LOCK, OWNER = ".trainer.lock", "trainer.json"
# `metrics.aside.jsonl` has the rows that a resumed run replaced.
METRICS, ASIDE, EVENTS = "metrics.jsonl", "metrics.aside.jsonl", "events.jsonl"
_LOGS = (ASIDE, METRICS, EVENTS)
CURVES, _TOKENIZER, _CONFIG = "tensorboard", "tokenizer", "config.json"
# Other files that a run needs on another machine; all others stay in the bucket.
_READ = ("result.json", _CONFIG)
_PART = re.compile(r"(.+)-([0-9]{6})((?:\.[^./]+)?)")


class Location:
    """A place with a run, or with several runs or attempts of a run.

    `path` is the local folder to work in, `name` the folder or the address for messages.
    """

    path: Path

    def __init__(self, name: str, path: Path | None):
        self.name, self.is_in_bucket = name, is_address(name)
        if path is not None:
            self.path = path
        # Called before each upload.
        self.guard: Guard = lambda patience: None
        # The contents of the bucket: the parts of each log with their sizes, the state of other
        # files.
        self._parts: dict[str, list[tuple[str, int]]] = {}
        self._stamps: dict[str, tuple[int, int]] = {}

    @property
    def root(self) -> Any:
        """The place as an `epath.Path`."""
        return path_of(self.name if self.is_in_bucket else self.path.absolute())

    @property
    def checkpoints(self) -> Any:
        """The directory of the checkpoints, an `epath.Path`."""
        return self.root / CHECKPOINTS

    def asking(self, call: Callable[[], _T], *, patience: float | None = None) -> _T:
        """Returns the result of `call`; retries for `patience` seconds while the network fails
        (default: network.PATIENCE). Raises the errors of `failures`.
        """
        with self.failures():
            return network.retrying(call, name=self.name, patience=patience)

    def failures(self) -> contextlib.AbstractContextManager[None]:
        """Raises errors of a bucket as Unreachable or StorageFailed; errors of a folder are
        unchanged.
        """
        return storage.failures(self.name)

    # --- any file

    def inside(self, *parts: str) -> str:
        """Returns a path inside this place."""
        return "/".join((self.name, *parts))

    def names(self) -> list[str]:
        """Returns the names in this place; empty if it does not exist."""
        return self.asking(lambda: storage.names_in(self.root))

    def document(self, name: str) -> bytes | None:
        """Returns the content of a file in this place; None if the file does not exist."""
        place = self.root / name
        return self.asking(lambda: place.read_bytes() if place.exists() else None)

    def write_text(self, name: str, text: str) -> None:
        """Writes a file into this place, atomically."""
        if self.is_in_bucket:
            self.asking(lambda: (self.root / name).write_text(text))
        else:
            files.write_whole(self.path / name, text)

    def remove(self) -> None:
        """Removes this place and its content, if it exists."""
        self.asking(lambda: self.root.rmtree() if self.root.exists() else None)

    def move(self, source: Any, target: Any) -> None:
        """Moves a file or a directory of this place (`epath.Path`s)."""
        target.parent.mkdir(parents=True, exist_ok=True)
        if not self.is_in_bucket:
            shutil.move(source, target)
        elif source.is_dir():
            storage.copy_tree(source, target)
            # After all copies: a directory in a bucket disappears with its last object.
            source.rmtree()
        else:
            source.copy(target, overwrite=True)
            source.unlink()

    # --- the local folder of a run in a bucket

    def download(self) -> None:
        """Downloads the small files of a run in a bucket, if it exists, to a new local folder."""
        self.path = Path(tempfile.mkdtemp(prefix="bert-jax-"))
        atexit.register(shutil.rmtree, self.path, ignore_errors=True)
        _opened[self.path] = self
        self.asking(self._download)

    def _download(self) -> None:
        root, there = self.root, set(storage.names_in(self.root))
        if _CONFIG not in there:
            # An interrupted start leaves a tokenizer. Other names make the folder neither free nor
            # a run.
            for name in there - {OWNER, _TOKENIZER, *_READ}:
                (self.path / name).touch()
                self._stamps[name] = _stamp(self.path / name)
            return
        names = [name for name in _READ if name in there]
        if _TOKENIZER in there:
            names += [f"{_TOKENIZER}/{name}" for name in storage.objects(root / _TOKENIZER)]
        storage.download(root, names, self.path)
        self._stamps = {name: _stamp(self.path / name) for name in names}
        for log in _LOGS:
            parts = _parts_among(there, log)
            storage.download(root, parts, self.path)
            self._parts[log] = [(part, (self.path / part).stat().st_size) for part in parts]
            content = b"".join((self.path / part).read_bytes() for part in parts)
            for part in parts:
                (self.path / part).unlink()
            if parts:
                (self.path / log).write_bytes(content)

    def sync(self, *, patience: float | None = None) -> None:
        """Uploads what was written since the last call, if the run is in a bucket.

        Raises WorkdirTaken if another process now trains there.
        """
        if self.is_in_bucket:
            self.guard(patience)
            self.asking(self._upload, patience=patience)

    def _upload(self) -> None:
        found = [str(f.relative_to(self.path)) for f in self.path.rglob("*") if f.is_file()]
        curves = [name for name in found if name.startswith(f"{CURVES}/")]
        if curves and not self._parts.keys() & set(curves) and (self.root / CURVES).is_dir():
            # Every training process writes all curves from the start.
            (self.root / CURVES).rmtree()
        for name in sorted(curves) + [log for log in _LOGS if log in found]:
            self._append(name)
        # A place with a config is a run, so the config is written last.
        others = {*found}.difference(curves, _LOGS)
        for name in sorted(others, key=lambda name: (name == _CONFIG, name)):
            if self._stamps.get(name) != (stamp := _stamp(self.path / name)):
                (self.root / name).write_bytes((self.path / name).read_bytes())
                self._stamps[name] = stamp

    def _append(self, name: str) -> None:
        """Writes the bytes of a file beyond its parts as a new part."""
        parts = self._parts.setdefault(name, [])
        with (self.path / name).open("rb") as file:
            file.seek(sum(size for _, size in parts))
            content = file.read()
        if not content:
            return
        last = _PART.fullmatch(parts[-1][0]) if parts else None
        part = _part(name, int(last[2]) + 1 if last else 1)
        if storage.write_version(self.root / part, content, None) is None:
            # Written by an unanswered earlier request of this process, or by a process that was the
            # trainer before. The guard ends this process if it is no longer the trainer.
            self.guard(None)
            (self.root / part).write_bytes(content)
        parts.append((part, len(content)))

    def cut(self, log: str, size: int) -> None:
        """Removes the bytes of a log beyond `size`."""
        self.sync()  # nothing is removed before it is stored elsewhere
        start = 0
        for part in log_files(self.path, log):
            bytes_of_part = part.stat().st_size
            os.truncate(part, min(max(size - start, 0), bytes_of_part))
            start += bytes_of_part
        if self.is_in_bucket:
            self.asking(lambda: self._cut(log, size))

    def _cut(self, log: str, size: int) -> None:
        parts = self._parts[log]
        # From the end: after an interruption, the rest is still a prefix of the log.
        while parts and (start := sum(n for _, n in parts[:-1])) + parts[-1][1] > size:
            part, _ = parts.pop()
            if start >= size:
                (self.root / part).unlink(missing_ok=True)
            else:
                (self.root / part).write_bytes((self.path / log).read_bytes()[start:size])
                parts.append((part, size - start))


# The places in a bucket that this process has opened, by local folder.
_opened: dict[Path, Location] = {}


def at(place: Path | str) -> Location:
    """Returns the location of a folder, of an address, or of the folder of an opened location.

    Reads nothing. Raises UsageError for an address that is not in Cloud Storage.
    """
    if is_address(place):
        path_of(place)
        return Location(str(place).rstrip("/"), None)
    return _opened.get(Path(place)) or Location(str(place), Path(place))


def opened(place: Path | str, *, guard: Guard | None = None) -> Location:
    """Returns the location of a run, with a local folder `path`.

    The trainer passes the guard of its lock (lock.py); without a guard the location is read-only.
    Raises UsageError for an address that is not in Cloud Storage, StorageFailed if the bucket
    cannot be read, Unreachable after a long network failure.
    """
    found = at(place)
    if is_address(place):
        found.guard = guard or found.guard
        found.download()
    return found


def log_files(folder: Path, log: str) -> list[Path]:
    """Returns the files of a log in a folder, in order: one, or the parts if the run was copied
    from a bucket; empty if the log does not exist.
    """
    return [folder / part for part in _parts_among(storage.names_in(folder), log)]


def _parts_among(names: Iterable[str], log: str) -> list[str]:
    """Returns the names that belong to a log, in order."""
    found = [part for part in map(_PART.fullmatch, names) if part]
    numbers = sorted(int(part[2]) for part in found if part[1] + part[3] == log)
    return [*([log] if log in names else []), *(_part(log, number) for number in numbers)]


def _part(log: str, number: int) -> str:
    path = Path(log)
    return str(path.with_name(f"{path.stem}-{number:06}{path.suffix}"))


def _stamp(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns
