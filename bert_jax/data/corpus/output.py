"""The directory that `prepare` writes to: whose it is, who writes there, and what is in the way."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from bert_jax import file_lock
from bert_jax.errors import StorageFailed, UsageError, reason_of

# What is there while a corpus is made or added to, and goes at the end.
PARTS, LOCK = ".parts", ".lock"
# The copy of standard input, among the parts.
STDIN = "stdin"


@contextlib.contextmanager
def storage_failures(output: Path) -> Iterator[None]:
    """Raises StorageFailed for what goes wrong inside with the storage."""
    try:
        yield
    except OSError as error:
        raise StorageFailed(f"{error.filename or output}: {reason_of(error)}") from error


@contextlib.contextmanager
def only_writer(output: Path) -> Iterator[None]:
    """Holds the lock of a corpus directory; what goes wrong with the storage is StorageFailed.

    A directory that is made for it, and into which nothing is written, is gone afterwards. Raises
    UsageError where another process has the lock.
    """
    remedy = "wait until it has ended, or choose another `output`"
    with storage_failures(output):
        was_there = output.exists()
        try:
            with file_lock.hold_or_refuse(output / LOCK, f"is writing {output}", remedy):
                try:
                    yield
                finally:
                    # What went wrong inside is what is said.
                    with contextlib.suppress(OSError):
                        _tidy(output)
        finally:
            if not was_there:
                with contextlib.suppress(OSError):  # there is something in it
                    output.rmdir()


def remove_samples(parts: Path) -> None:
    """Removes the texts that the first reading of the sources wrote down for itself."""
    for kind in ("sample", "texts"):
        for file in parts.glob(f"*.{kind}"):
            file.unlink()


def _tidy(output: Path) -> None:
    """Removes what only the running command had a use for, and a folder of parts without any."""
    remove_samples(output / PARTS)
    (output / PARTS / STDIN).unlink(missing_ok=True)
    # Beside a tokenizer, say, the folder shows whose the directory is.
    if {path.name for path in output.iterdir()} <= {PARTS, LOCK}:
        (output / PARTS).rmdir()


def as_named(places: Sequence[str | Path], name: str) -> list[str]:
    """Returns places as texts. Raises UsageError for one text where a list is wanted."""
    if isinstance(places, str | Path):
        raise UsageError(f"`{name}` is one place, {places}; make it a list")
    return [str(place) for place in places]


def require_named(source: Sequence[str], **others: Sequence[str]) -> None:
    """Raises UsageError where there is no source, or one of these places is an empty name."""
    if not source:
        raise UsageError("no `source` given")
    for name, places in {"source": source, **others}.items():
        if not all(place.strip() for place in places):
            raise UsageError(f"`{name}` names nothing: is a variable of the shell not set?")


def require_outside(sources: Sequence[str], output: Path) -> None:
    """Raises UsageError for a corpus directory within a folder that is read."""
    for source in sources:
        if Path(source).is_dir() and output.resolve().is_relative_to(Path(source).resolve()):
            raise UsageError(
                f"`output` {output} lies in the folder `source` {source}, and would itself be read "
                "as text; choose a place outside"
            )


def require_own(output: Path) -> None:
    """Raises UsageError where there is something that `prepare` did not make."""
    if not output.exists() or (output / PARTS).is_dir():
        return
    if output.is_file() or any(path.name != LOCK for path in output.iterdir()):
        raise UsageError(f"{output} exists and is not a corpus: choose another `output`")
