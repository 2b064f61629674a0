"""Workdirs in a bucket, `gs://BUCKET/PATH`.

Objects cannot be appended to, and logs are; so such a workdir has a directory on this machine that
stands for it. Config, tokenizer and logs are written there and copied to the bucket at every save;
on another machine they are taken back first. Checkpoints go straight to the bucket, where every
host writes its part. The directory knows its workdir, so that everything else works on directories.
"""

import contextlib
import functools
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from bert_jax import files
from bert_jax.errors import UsageError
from bert_jax.workdir import bucket
from bert_jax.workdir.bucket import is_address, is_dir, path_of

_T = TypeVar("_T")

CHECKPOINTS = "checkpoints"
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


def directory_of(path: str | Path, *, owner: str = "reader") -> Path:
    """Returns the directory to work in: `path` itself, or the one that stands for a bucket's.

    What the bucket has is taken back first. `BERT_JAX_CACHE` (default `~/.cache/bert-jax`) says
    where such directories are. Each `owner` has its own: what a trainer writes is not to be
    overwritten by one who only reads. Raises UsageError for an address that is not of Cloud
    Storage, StorageFailed if the bucket cannot be read, Unreachable if the network fails for long.
    """
    if not is_address(path):
        return Path(path)
    address = str(path).rstrip("/")
    path_of(address)
    directory = _stand_in(address, owner)
    directory.mkdir(parents=True, exist_ok=True)
    _beside(directory, "address").write_text(address + "\n", encoding="utf-8")

    def take_all_back() -> None:
        for part in _TAKEN_BACK:
            _take_back(path_of(address) / part, directory / part)

    bucket.asking(address, "read", take_all_back)
    if not (directory / _LAST[-1]).exists():
        # There is no run, or no longer. What else is here is of one that never got there.
        shutil.rmtree(directory)
        directory.mkdir()
        _beside(directory, "copied").unlink(missing_ok=True)
    return directory


def lock_of(address: str) -> Path:
    """Returns the lock of those who train, on this machine, in a bucket's workdir."""
    return _beside(_stand_in(address.rstrip("/"), "trainer"), "lock")


def _stand_in(address: str, owner: str) -> Path:
    if not address.startswith("gs://") or "/" not in address.removeprefix("gs://"):
        raise UsageError(f"{address}: write a place in a bucket as gs://BUCKET/PATH")
    cache = Path(os.environ.get("BERT_JAX_CACHE") or Path.home() / ".cache" / "bert-jax")
    name = hashlib.sha256(address.encode()).hexdigest()[:16]
    return cache / "workdirs" / f"{name}-{owner}"


def address_of(directory: Path) -> str:
    """Returns what to call a workdir: its address in a bucket, or its path."""
    mark = _beside(directory, "address")
    return mark.read_text(encoding="utf-8").strip() if mark.is_file() else str(directory)


def checkpoints_of(directory: Path) -> Any:
    """Returns where the checkpoints of a workdir lie: an `epath.Path`."""
    address = address_of(directory)
    return path_of(address if is_address(address) else directory.absolute()) / CHECKPOINTS


def copy_back(directory: Path, *, patience: float | None = None) -> None:
    """Copies what has changed since the last time to the bucket, where the workdir is in one.

    Asks again for `patience` seconds while the network fails (default: network.PATIENCE).
    """
    address = address_of(directory)
    if is_address(address):
        copy = functools.partial(_copy_changes, directory, address)
        bucket.asking(address, "written to", copy, patience=patience)


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
    record.write_text("".join(f"{name} {stamp}\n" for name, stamp in known.items()))


def _files(place: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yields all files below a place, with their names from its own on."""
    for path in bucket.children(place):
        inner = f"{name}/{path.name}"
        if is_dir(path):
            yield from _files(path, inner)
        else:
            yield inner, path


# --- beside runs: what holds several of them, or attempts of one ----------------------------------


def join(path: Path | str, *parts: str) -> Path | str:
    """Returns a place inside of a directory or an address."""
    return "/".join((str(path).rstrip("/"), *parts)) if is_address(path) else Path(path, *parts)


def names(path: Path | str) -> list[str]:
    """Returns what lies directly in a directory or at an address; nothing where it is not there."""
    if not is_address(path):
        return sorted(p.name for p in Path(path).iterdir()) if Path(path).is_dir() else []
    place = path_of(str(path))
    return bucket.asking(
        str(path),
        "read",
        lambda: sorted(p.name for p in bucket.children(place)) if is_dir(place) else [],
    )


def write_text(path: Path | str, name: str, text: str) -> None:
    """Writes a file into a directory or at an address; it appears whole."""
    if not is_address(path):
        files.write_whole(Path(path) / name, text)
        return
    place = path_of(str(path)) / name
    bucket.asking(str(path), "written to", lambda: place.write_text(text))


def read_text(path: Path | str, name: str) -> str:
    """Returns a file of a directory or at an address."""
    if not is_address(path):
        return (Path(path) / name).read_text(encoding="utf-8")
    place = path_of(str(path)) / name
    return bucket.asking(str(path), "read", lambda: place.read_text())


def remove(path: Path | str) -> None:
    """Removes a directory, or all that lies at an address; nothing where nothing is."""
    if not is_address(path):
        if Path(path).exists():
            shutil.rmtree(path)
        return
    place = path_of(str(path))

    def clear() -> None:
        if place.exists():
            place.rmtree()

    bucket.asking(str(path), "written to", clear)


def set_aside(path: Path | str, *, building: str, target: str, but_for: tuple[str, ...]) -> None:
    """Moves all that lies in `path`, but names that begin with one of `but_for`, to `target`.

    It is collected in `building`; called again after an interruption, it goes on.
    """
    inside = [name for name in names(path) if not name.startswith(but_for)]
    if not is_address(path):
        collected = Path(path, building)
        collected.mkdir(exist_ok=True)
        for name in inside:
            shutil.move(Path(path, name), collected / name)
        collected.rename(Path(path, target))
        return
    with bucket.failures(str(path), "written to"):
        place = path_of(str(path))
        (place / building).write_text("")  # says that it is under way
        for name in inside:
            source, goal = place / name, place / target / name
            if is_dir(source):
                move(source, goal)
            else:
                source.copy(goal)
                source.unlink()
        (place / building).unlink()


def move(source: Any, target: Any) -> None:
    """Moves a directory (`epath.Path`s). A bucket has none: there, file after file."""
    if not is_address(source):
        source.rename(target)
        return
    _copy_tree(source, target)
    # Once, at the end: a directory of a bucket is gone when the last object under it is.
    source.rmtree()


def _copy_tree(source: Any, target: Any) -> None:
    for path in bucket.children(source):
        if is_dir(path):
            _copy_tree(path, target / path.name)
        else:
            path.copy(target / path.name)


def _beside(directory: Path, what: str) -> Path:
    return directory.with_name(f"{directory.name}.{what}")


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


def failures(directory: Path) -> contextlib.AbstractContextManager[None]:
    """Raises Unreachable or StorageFailed for whatever goes wrong with a workdir in a bucket.

    What goes wrong with a directory is raised as it is.
    """
    address = address_of(directory)
    if is_address(address):
        return bucket.failures(address, "written to")
    return contextlib.nullcontext()


def asking(directory: Path, call: Callable[[], _T], *, patience: float | None = None) -> _T:
    """Returns what `call` returns of a workdir; it is made again while the network fails.

    Raises Unreachable, and StorageFailed for what else goes wrong with a bucket.
    """
    return bucket.asking(address_of(directory), "read or written to", call, patience=patience)
