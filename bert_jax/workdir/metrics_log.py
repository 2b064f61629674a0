"""The records that a run writes about itself: rows of numbers (JSON lines, TensorBoard) and
events.
"""

import contextlib
import json
import math
import os
import socket
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bert_jax.workdir.trackers import Trackers

METRICS, EVENTS, TENSORBOARD = "metrics.jsonl", "events.jsonl", "tensorboard"
DISCARDED = "metrics.aside.jsonl"


class MetricsLogger:
    """Appends rows to `metrics.jsonl`, TensorBoard and trackers, and events to `events.jsonl`.

    With `is_writer=False` it writes nothing: of several processes, one keeps the journal.
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
        """`name` is what TensorBoard and the trackers call the run, by default the workdir's.

        `trackers` receive the rows (registry.TRACKERS), and keep the `config`.
        """
        self._workdir = workdir
        self._name = name or workdir.absolute().name
        self._wanted, self._config = trackers, config or {}
        self._trackers: Trackers | None = None
        self._curves: dict[str, _EventFile] | None = None
        self._is_writer = is_writer
        if not is_writer:
            return
        self._metrics = JsonLines(workdir / METRICS)
        self._events = JsonLines(workdir / EVENTS)

    def open_curves(self, past_rows: Iterable[dict[str, Any]]) -> None:
        """Starts fresh event files, and a run of each tracker, with the rows of the run so far.

        Event files cannot be rewound, so a resumed run writes its curve anew instead of doubling
        back. Does nothing where an earlier phase of this process has started it.
        """
        if self._curves is not None or not self._is_writer:
            return
        directory = self._workdir / TENSORBOARD
        directory.mkdir(exist_ok=True)
        for old in directory.rglob("events.out.tfevents.*"):
            old.unlink()
        self._curves = {}
        self._trackers = Trackers(
            self._wanted, run=self._name, config=self._config, workdir=self._workdir
        )
        for row in past_rows:
            self._draw(row)

    def _draw(self, values: dict[str, Any]) -> None:
        """Adds a row to its curve: those of training and of each split have one name, and are
        runs of their own, which TensorBoard draws in one chart.
        """
        assert self._curves is not None and self._trackers is not None
        split = values.get("split", "train")
        # A full disk may take the file at a later row; the next process draws all of them.
        with contextlib.suppress(OSError):
            if split not in self._curves:
                directory = self._workdir / TENSORBOARD / self._name / split
                directory.mkdir(parents=True, exist_ok=True)
                self._curves[split] = _EventFile(directory)
            self._curves[split].row(values)
        self._trackers.row(values)

    def row(self, **values: Any) -> None:
        if not self._is_writer:
            return
        # A loss that is not finite is null: JSON has no other word for it.
        is_number = {k: not isinstance(v, float) or math.isfinite(v) for k, v in values.items()}
        self._metrics.row({k: v if is_number[k] else None for k, v in values.items()})
        if self._curves is not None:
            self._draw(values)

    def event(self, name: str, **values: Any) -> None:
        """`seconds` is how long it took, where it took any."""
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
        if self._trackers is not None:
            self._trackers.close()


class _Appended:
    """Appends to a file. What a full disk does not take is kept and written when it does."""

    def __init__(self, path: Path):
        self._file = path.open("ab", buffering=0)
        self._pending = b""
        self._lock = threading.Lock()  # events come from the thread that saves, too

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
    """A file of JSON lines, which goes on after a line that a kill cut short."""

    def __init__(self, path: Path):
        super().__init__(path)
        if self._file.tell() and not path.read_bytes().endswith(b"\n"):
            self._pending = b"\n"

    def row(self, values: dict[str, Any]) -> None:
        self.write(json.dumps(values).encode() + b"\n")


class _EventFile(_Appended):
    """A file of TensorBoard, with one event for each row, in TensorBoard's framing and messages.

    Without TensorFlow, whose operations took fifty times as long: a resumed run writes all rows
    before its first step (docs/reliability.md, "What it costs").
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
    """Writes one event outside of a run's journal: from before it is opened, or from another
    verb.
    """
    journal = MetricsLogger(workdir)
    journal.event(name, **values)
    journal.close()
