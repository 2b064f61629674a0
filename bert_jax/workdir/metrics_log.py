"""The logs of a run: rows of numbers (JSON lines, TensorBoard, trackers), and events."""

import contextlib
import json
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bert_jax.errors import brief
from bert_jax.progress import say
from bert_jax.registry import TRACKERS
from bert_jax.workdir import location
from bert_jax.workdir.location import CURVES, EVENTS, METRICS


class MetricsLogger:
    """Appends rows to `metrics.jsonl`, TensorBoard and trackers, and events to `events.jsonl`.

    With `is_writer=False` it writes nothing: only one of several processes writes.
    """

    def __init__(
        self,
        workdir: Path,
        *,
        is_writer: bool = True,
        name: str | None = None,
        trackers: Sequence[str] = (),
        config: Mapping[str, Any] | None = None,
    ):
        """`name` is the run's name in TensorBoard and the trackers, by default the workdir's.

        `trackers` receive the rows (registry.TRACKERS), and the `config`.
        """
        self._workdir = workdir
        self._name = name or workdir.absolute().name
        self._wanted, self._config = trackers, config or {}
        self._trackers: dict[str, Any] = {}
        self._curves: dict[str, _EventFile] | None = None
        self._is_writer = is_writer
        if not is_writer:
            return
        self._metrics = JsonLines(workdir / METRICS)
        self._events = JsonLines(workdir / EVENTS)

    def open_curves(self, past_rows: Iterable[dict[str, Any]]) -> None:
        """Starts event files, and a run of each tracker, with the rows of the run so far.

        An event file cannot be rewound, so a resumed run writes its curves from the start. Does
        nothing if an earlier phase of this process has started them.
        """
        if self._curves is not None or not self._is_writer:
            return
        directory = self._workdir / CURVES
        directory.mkdir(exist_ok=True)
        for old in directory.rglob("events.out.tfevents.*"):
            old.unlink()
        self._curves = {}
        for name in self._wanted:
            self._track(name, lambda name=name: self._start(name))
        for row in past_rows:
            self._draw(row)

    def _start(self, name: str) -> None:
        self._trackers[name] = TRACKERS[name](self._name, self._config, self._workdir)

    def _track(self, name: str, call: Callable[[], None]) -> None:
        """Calls a tracker. If it fails, logs its name once; training continues without it."""
        try:
            call()
        # Some trackers end the process.
        except (Exception, SystemExit) as error:
            self._trackers.pop(name, None)
            what = f"{type(error).__name__} {brief(str(error)) if str(error) else ''}"
            say(f"tracker {name} failed ({what}); training continues without it")

    def _draw(self, values: dict[str, Any]) -> None:
        """Adds a row to the curve of its split: TensorBoard shows all splits in one chart."""
        assert self._curves is not None
        split = values.get("split", "train")
        # A full disk may accept the file at a later row.
        with contextlib.suppress(OSError):
            if split not in self._curves:
                directory = self._workdir / CURVES / self._name / split
                directory.mkdir(parents=True, exist_ok=True)
                self._curves[split] = _EventFile(directory)
            self._curves[split].row(values)
        for name, tracker in list(self._trackers.items()):
            self._track(name, lambda tracker=tracker: tracker.row(values))

    def row(self, **values: Any) -> None:
        if not self._is_writer:
            return
        # JSON has no numbers for non-finite values.
        is_number = {k: not isinstance(v, float) or math.isfinite(v) for k, v in values.items()}
        self._metrics.row({k: v if is_number[k] else None for k, v in values.items()})
        if self._curves is not None:
            self._draw(values)

    def event(self, name: str, **values: Any) -> None:
        """`seconds` is the duration of the event, if it has one."""
        if not self._is_writer:
            return
        self._events.row({"event": name, "time": time.time(), **values})

    def close(self) -> None:
        if not self._is_writer:
            return
        self._metrics.close()
        self._events.close()
        for curve in (self._curves or {}).values():
            curve.close()
        for name, tracker in list(self._trackers.items()):
            self._track(name, tracker.close)


class _Appended:
    """Appends to a file. Bytes that a full disk rejects are kept, and written with a later row."""

    def __init__(self, path: Path):
        self._file = path.open("ab", buffering=0)
        self._pending = b""
        self._lock = threading.Lock()  # the thread that saves writes events

    def write(self, data: bytes) -> None:
        with self._lock:
            self._pending += data
            with contextlib.suppress(OSError):
                self._drain()

    def _drain(self) -> None:
        while self._pending:
            self._pending = self._pending[self._file.write(self._pending) or 0 :]

    def close(self) -> None:
        with self._lock:
            self._drain()
            self._file.close()


class JsonLines(_Appended):
    """A log of JSON lines. After a truncated line, starts a new one."""

    def __init__(self, path: Path):
        path = [path, *location.log_files(path.parent, path.name)][-1]
        super().__init__(path)
        if self._file.tell() and not path.read_bytes().endswith(b"\n"):
            self._pending = b"\n"

    def row(self, values: dict[str, Any]) -> None:
        self.write(json.dumps(values).encode() + b"\n")


class _EventFile(_Appended):
    """A TensorBoard file with one event per row, in TensorBoard's framing and messages.

    TensorFlow's operations take fifty times as long, and a resumed run writes all rows before its
    first step.
    """

    def __init__(self, directory: Path):
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter

        name = f"events.out.tfevents.{int(time.time()):010}.{socket.gethostname()}.{os.getpid()}"
        super().__init__(directory / name)
        self._event, self._value, self._records = Event, Summary.Value, RecordWriter(self)
        self._add(file_version="brain.Event:2")

    def row(self, values: dict[str, Any]) -> None:
        scalars = [
            self._value(tag=name, simple_value=value)
            for name, value in values.items()
            if isinstance(value, float) and name != "time"
        ]
        self._add(step=values["step"], summary={"value": scalars})

    def _add(self, **fields: Any) -> None:
        self._records.write(self._event(wall_time=time.time(), **fields).SerializeToString())


def append_event(workdir: Path, name: str, **values: Any) -> None:
    """Writes one event outside of training."""
    journal = MetricsLogger(workdir)
    journal.event(name, **values)
    journal.close()
