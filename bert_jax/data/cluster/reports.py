"""The signs that machines of a job give to the one that has begun it: that they live, their notes
for the person watching, and the error that ends the job.
"""

import contextlib
import functools
import hashlib
import itertools
import json
import logging
import os
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from bert_jax import errors
from bert_jax.data.cluster.shared import Shared
from bert_jax.errors import BertJaxError, shown

# Seconds between two signs of life of a process.
BEAT = 5.0
_Function = TypeVar("_Function", bound=Callable[..., Any])
_ERROR, _GOES_ON = "error.json", "job"
# Of a job: how many of its stages this process is at.
_at_stages: Counter[Shared] = Counter()
# The thread that gives its signs of life, and what ends the thread.
_beating: dict[Shared, tuple[threading.Thread, threading.Event]] = {}
_lock = threading.Lock()
# Stages whose notes are kept, and the level of the log without them.
_hearing, _usual_level = 0, logging.NOTSET
# Lines that this process has logged itself, which are notes of its own stages.
_logged: set[str] = set()


def reported(stage: _Function) -> _Function:
    """Makes a stage, whose first argument is its Job, report to the folder of this try."""

    @functools.wraps(stage)
    def call(job: Any, *arguments: Any) -> Any:
        folder = job.scratch / "reports"
        lines: list[str] = []
        try:
            job.require_versions()
            with _at_work(folder), _noted(lines):
                return stage(job, *arguments)
        except BertJaxError as error:
            said = {"kind": type(error).__name__, "lines": [*map(str, error.args)]}
            folder.write(_ERROR, json.dumps(said).encode())
            raise
        finally:
            if lines:
                name = hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
                (folder / "notes").write(f"{name}.json", json.dumps(lines).encode())

    return call  # pyright: ignore


def error_of(folder: Shared) -> BertJaxError | None:
    """Returns the error that a stage has reported, if one has."""
    if not (folder / "reports").has(_ERROR):
        return None
    said = json.loads((folder / "reports").read(_ERROR))
    kind = getattr(errors, str(said["kind"]), None)
    if not (isinstance(kind, type) and issubclass(kind, BertJaxError)):
        kind = BertJaxError
    # Whoever writes to the folder could have written it.
    return kind(*(shown(str(line)) for line in said["lines"]))


class Reports:
    """The reports of a job, as they come. `folder` is that of the try."""

    def __init__(self, folder: Shared) -> None:
        self._folder = folder / "reports"
        self._shown: set[str] = set()
        self._folder.write(_GOES_ON, b"")

    def notes(self) -> Iterator[str]:
        """Yields the lines that came since it was called last."""
        for name in sorted((self._folder / "notes").names().keys() - self._shown):
            self._shown.add(name)
            for line in json.loads((self._folder / "notes").read(name)):
                if line not in _logged:
                    yield shown(str(line))

    def alive(self) -> dict[str, Any]:
        """Returns the processes that are at work, and of each what a sign of life changes."""
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
    global _hearing, _usual_level
    logger, heard = logging.getLogger("bert_jax"), _Lines(lines)
    with _lock:
        _hearing += 1
        if _hearing == 1:
            _usual_level = logger.level
        logger.setLevel(logging.INFO)
        logger.addHandler(heard)
    try:
        yield
    finally:
        with _lock:
            logger.removeHandler(heard)
            _hearing -= 1
            if _hearing == 0:  # no other stage of this process is still at work
                logger.setLevel(_usual_level)


@contextlib.contextmanager
def _at_work(folder: Shared) -> Iterator[None]:
    """Gives signs of life meanwhile: a file that is written again and again, and is removed when
    this process is at no stage of the job any more.
    """
    with _lock:
        _at_stages[folder] += 1
        if _at_stages[folder] == 1:
            ended = threading.Event()
            thread = threading.Thread(target=_beat, args=(folder, ended), daemon=True, name="beat")
            _beating[folder] = thread, ended
            thread.start()
    try:
        yield
    finally:
        with _lock:
            _at_stages[folder] -= 1
            if not _at_stages[folder]:
                thread, ended = _beating.pop(folder)
                ended.set()
                # A thread that is left behind would ask the network for a job that is over.
                thread.join()


def _beat(folder: Shared, ended: threading.Event) -> None:
    name = f"{socket.gethostname()}-{os.getpid()}"
    for number in itertools.count():
        with contextlib.suppress(BertJaxError, OSError):  # the next one may succeed
            if number and not folder.has(_GOES_ON):
                return
            (folder / "alive").write(name, str(number).encode())
        if ended.wait(BEAT):
            break
    with contextlib.suppress(BertJaxError, OSError):
        (folder / "alive").remove([name])
