"""Reports from a job's machines to the command: notes for the user, and the error that ends the
job.
"""

import contextlib
import hashlib
import json
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from logging.handlers import MemoryHandler
from typing import Any, TypeVar

from bert_jax import errors
from bert_jax.data.corpus.folder import Folder
from bert_jax.data.corpus.job import Job
from bert_jax.errors import BertJaxError, shown

_T = TypeVar("_T")
_ERROR = "error.json"
# Lines that this process has logged: the command's process has already shown them.
_logged: set[str] = set()


def reported(job: Job, stage: Callable[..., _T], *arguments: Any) -> _T:
    """Runs a stage, and writes its report to the folder of this attempt."""
    folder = job.scratch / "reports"
    lines: list[str] = []
    try:
        job.require_versions()
        with _noted(lines):
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
    """Returns the error that a stage reported, if any. `folder` is the folder of the attempt."""
    if not (folder / "reports").has(_ERROR):
        return None
    report = json.loads((folder / "reports").read(_ERROR))
    kind = getattr(errors, str(report["kind"]), None)
    if not (isinstance(kind, type) and issubclass(kind, BertJaxError)):
        kind = BertJaxError
    # Everyone with access to the folder could have written the report.
    return kind(*(shown(str(line)) for line in report["lines"]))


def new_notes(folder: Folder, seen: set[str]) -> Iterator[str]:
    """Yields the lines of notes that are not in `seen`, and adds the notes to it. `folder` is the
    folder of the attempt.
    """
    notes = folder / "reports/notes"
    for name in sorted(notes.names() - seen):
        seen.add(name)
        for line in json.loads(notes.read(name)):
            if line not in _logged:
                yield shown(str(line))


@contextlib.contextmanager
def _noted(lines: list[str]) -> Iterator[None]:
    """Adds the notes inside the block to `lines`. Keeps the log level of notes afterwards."""
    logger, handler = logging.getLogger("bert_jax"), MemoryHandler(sys.maxsize)
    thread = threading.get_ident()  # a process may run several stages at once
    handler.addFilter(lambda record: record.thread == thread)
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        lines += [record.getMessage() for record in handler.buffer]
        _logged.update(lines)
