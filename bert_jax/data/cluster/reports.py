"""The reports of a job's machines to the command: signs of life, notes for the person watching, and
the error that ends the job.
"""

import contextlib
import hashlib
import itertools
import json
import logging
import os
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from bert_jax import errors
from bert_jax.data.corpus.folder import Folder
from bert_jax.data.corpus.job import Job
from bert_jax.errors import BertJaxError, shown

# Seconds between two signs of life of a stage.
BEAT = 5.0
_T = TypeVar("_T")
_ERROR, _RUNNING = "error.json", "job"
# Lines that this process has logged: in the command's process they are shown already.
_logged: set[str] = set()


def reported(job: Job, stage: Callable[..., _T], *arguments: Any) -> _T:
    """Runs a stage, and reports on it in the folder of this attempt."""
    folder = job.scratch / "reports"
    lines: list[str] = []
    try:
        job.require_versions()
        with _alive(folder), _noted(lines):
            return stage(job, *arguments)
    except BertJaxError as error:
        report = {"kind": type(error).__name__, "lines": [*map(str, error.args)]}
        folder.write(_ERROR, json.dumps(report).encode())
        raise
    finally:
        if lines:
            name = hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
            (folder / "notes").write(f"{name}.json", json.dumps(lines).encode())


def error_of(folder: Folder) -> BertJaxError | None:
    """Returns the error that a stage has reported, if one has. `folder` is that of the attempt."""
    if not (folder / "reports").has(_ERROR):
        return None
    report = json.loads((folder / "reports").read(_ERROR))
    kind = getattr(errors, str(report["kind"]), None)
    if not (isinstance(kind, type) and issubclass(kind, BertJaxError)):
        kind = BertJaxError
    # Anyone with access to the folder could have written the report.
    return kind(*(shown(str(line)) for line in report["lines"]))


class Reports:
    """The reports of a job, as they come. `folder` is that of the attempt."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder / "reports"
        self._shown: set[str] = set()
        self._folder.write(_RUNNING, b"")

    def notes(self) -> Iterator[str]:
        """Yields the lines that came since the last call."""
        for name in sorted((self._folder / "notes").names().keys() - self._shown):
            self._shown.add(name)
            for line in json.loads((self._folder / "notes").read(name)):
                if line not in _logged:
                    yield shown(str(line))

    def alive(self) -> dict[str, Any]:
        """Returns the stages that are at work, each with a value that a sign of life changes."""
        return (self._folder / "alive").names()


class _Lines(logging.Handler):
    def __init__(self, lines: list[str]) -> None:
        super().__init__(logging.INFO)
        self._lines, self._thread = lines, threading.get_ident()

    def emit(self, record: logging.LogRecord) -> None:
        if record.thread == self._thread:  # a process may run several stages at once
            self._lines.append(record.getMessage())
            _logged.add(record.getMessage())


@contextlib.contextmanager
def _noted(lines: list[str]) -> Iterator[None]:
    """Adds to `lines` what is noted inside. The log keeps the level of notes afterwards."""
    logger, handler = logging.getLogger("bert_jax"), _Lines(lines)
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


@contextlib.contextmanager
def _alive(folder: Folder) -> Iterator[None]:
    """Gives signs of life: a file that is written repeatedly, and is removed at the end."""
    ended = threading.Event()
    name = f"{socket.gethostname()}-{os.getpid()}-{threading.get_ident()}"
    thread = threading.Thread(target=_beat, args=(folder, name, ended), daemon=True, name="beat")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        # A remaining thread would use the network after the end of the job.
        thread.join()


def _beat(folder: Folder, name: str, ended: threading.Event) -> None:
    for number in itertools.count():
        with contextlib.suppress(BertJaxError, OSError):  # the next sign may succeed
            if number and not folder.has(_RUNNING):
                return
            (folder / "alive").write(name, str(number).encode())
        if ended.wait(BEAT):
            break
    with contextlib.suppress(BertJaxError, OSError):
        (folder / "alive").remove([name])
