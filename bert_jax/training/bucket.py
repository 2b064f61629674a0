"""Workdirs in a bucket, `gs://BUCKET/PATH`.

Objects cannot be appended to, and logs are; so such a workdir has a directory on this machine that
stands for it. Config, tokenizer and logs are written there and copied to the bucket at every save;
on another machine they are taken back first. Checkpoints go straight to the bucket, where every
host writes its part. The directory knows whose it is, so that everything else works on directories.
"""

import contextlib
import hashlib
import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bert_jax.errors import StorageFailed, UsageError

CHECKPOINTS = "checkpoints"
# What a run on another machine must have; the rest stays in the bucket.
_TAKEN_BACK = ("tokenizer", "metrics.jsonl", "metrics.aside.jsonl", "events.jsonl", "config.json")
_CURVES = "tensorboard"
# Logs and config come after what they speak of.
_LAST = ("events.jsonl", "config.json")


def is_address(place: str | Path) -> bool:
    return "://" in str(place)


def directory_of(place: str | Path, *, owner: str = "reader") -> Path:
    """The directory to work in: `place` itself, or the one that stands for a bucket's.

    What the bucket has is taken back first. `BERT_JAX_CACHE` (default `~/.cache/bert-jax`) says
    where such directories are. Each `owner` has its own: what a trainer writes is not to be
    overwritten by one who only reads. Raises UsageError for an address that is not of Cloud
    Storage, StorageFailed if the bucket cannot be read.
    """
    if not is_address(place):
        return Path(place)
    address = str(place).rstrip("/")
    if not address.startswith("gs://") or "/" not in address.removeprefix("gs://"):
        raise UsageError(f"{place}: write a place in a bucket as gs://BUCKET/PATH")
    cache = Path(os.environ.get("BERT_JAX_CACHE") or Path.home() / ".cache" / "bert-jax")
    name = hashlib.sha256(address.encode()).hexdigest()[:16]
    directory = cache / "workdirs" / f"{name}-{owner}"
    directory.mkdir(parents=True, exist_ok=True)
    _beside(directory, "address").write_text(address + "\n", encoding="utf-8")
    with _failures(address, "read"):
        for part in _TAKEN_BACK:
            _take_back(_path(address) / part, directory / part)
    if not (directory / _LAST[-1]).exists():
        # There is no run, or no longer. What else is here is of one that never got there.
        shutil.rmtree(directory)
        directory.mkdir()
        _beside(directory, "copied").unlink(missing_ok=True)
    return directory


def address_of(directory: Path) -> str:
    """What to call a workdir: its address in a bucket, or its path."""
    mark = _beside(directory, "address")
    return mark.read_text(encoding="utf-8").strip() if mark.is_file() else str(directory)


def checkpoints_of(directory: Path) -> Any:
    """Where the checkpoints of a workdir lie: an `epath.Path`."""
    address = address_of(directory)
    return _path(address if is_address(address) else directory.absolute()) / CHECKPOINTS


def copy_back(directory: Path) -> None:
    """Copies what has changed since the last time to the bucket, where the workdir is in one."""
    address = address_of(directory)
    if not is_address(address):
        return
    files = [f for f in directory.rglob("*") if f.is_file()]
    names = sorted((str(f.relative_to(directory)) for f in files), key=lambda n: (n in _LAST, n))
    record = _beside(directory, "copied")
    known = dict(
        line.rsplit(" ", 1) for line in (record.read_text().splitlines() if record.exists() else [])
    )
    with _failures(address, "written to"):
        for name in names:
            status = (directory / name).stat()
            stamp = f"{status.st_size}:{status.st_mtime_ns}"
            if known.get(name) != stamp:
                target = _path(address) / name
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes((directory / name).read_bytes())
                known[name] = stamp
        # Those are written anew by every process.
        curves = _path(address) / _CURVES
        for curve in curves.iterdir() if curves.is_dir() else ():
            if f"{_CURVES}/{curve.name}" not in names:
                curve.unlink()
    record.write_text("".join(f"{name} {stamp}\n" for name, stamp in known.items()))


def move(source: Any, target: Any) -> None:
    """Moves a directory (`epath.Path`s). A bucket has none: there, file after file."""
    if not is_address(source):
        source.rename(target)
        return
    for path in source.iterdir():
        if path.is_dir():
            move(path, target / path.name)
        else:
            path.copy(target / path.name)
    source.rmtree()


def _beside(directory: Path, what: str) -> Path:
    return directory.with_name(f"{directory.name}.{what}")


def _take_back(source: Any, target: Path) -> None:
    if source.is_dir():
        target.mkdir(parents=True, exist_ok=True)
        for part in source.iterdir():
            _take_back(part, target / part.name)
    elif source.exists():
        target.write_bytes(source.read_bytes())
    elif target.is_file():
        # Of a run that is no longer in the bucket, or that never got there.
        target.unlink()


def _path(place: str | Path) -> Any:
    # Buckets through gcsfs: TensorFlow takes seconds to import.
    os.environ.setdefault("EPATH_USE_TF", "false")
    # It says of every file what kind of bucket it cannot ask about.
    logging.getLogger("gcsfs").setLevel(logging.ERROR)
    from etils import epath

    return epath.Path(place)


def failures(directory: Path) -> contextlib.AbstractContextManager[None]:
    """Raises StorageFailed for whatever goes wrong with a workdir in a bucket.

    What goes wrong with a directory is raised as it is.
    """
    address = address_of(directory)
    return _failures(address, "written to") if is_address(address) else contextlib.nullcontext()


@contextlib.contextmanager
def _failures(address: str, what: str) -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise UsageError(f"{address}: a bucket needs gcsfs; pip install 'bert-jax[gcs]'") from error
    except Exception as error:  # of gcsfs, aiohttp and google-auth, which share no base
        raise StorageFailed(f"{address} cannot be {what}: {error}") from error
