"""What a run writes about itself: rows of numbers, events, throughput, MFU."""

import contextlib
import json
import math
import os
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.config import ModelConfig, PhaseConfig

METRICS, EVENTS, TENSORBOARD = "metrics.jsonl", "events.jsonl", "tensorboard"
ASIDE = "metrics.aside.jsonl"

# Peak dense bf16 FLOP/s of one jax device. TPU v2/v3 devices are cores, half a chip.
# Sources: cloud.google.com/tpu/docs/system-architecture-tpu-vm (v2 to v6e), NVIDIA data sheets.
_PEAK_BF16 = {
    "TPU v2": 22.5e12,
    "TPU v3": 61.5e12,
    "TPU v4": 275e12,
    "TPU v5 lite": 197e12,
    "TPU v5e": 197e12,
    "TPU v5": 459e12,
    "TPU v5p": 459e12,
    "TPU v6 lite": 918e12,
    "TPU v6e": 918e12,
    "TPU7x": 1153.5e12,
    "NVIDIA A100-SXM4-40GB": 312e12,
    "NVIDIA A100-SXM4-80GB": 312e12,
    "NVIDIA H100 80GB HBM3": 989e12,
    "NVIDIA H200": 989e12,
}


def forward_flops(model: ModelConfig, phase: PhaseConfig) -> int:
    """FLOPs of the matrix products of one row's forward pass; a multiply and an add count two.

    The last block has keys and values of every position, and everything else of those only that
    the heads read: the masked ones and the first.
    """
    d, f, v = model.hidden_size, model.intermediate_size, model.vocab_size
    length, predictions = phase.sequence_length, phase.max_predictions

    def block(queries: int) -> int:
        keys_and_values = 2 * length * 2 * d * d
        return keys_and_values + 2 * queries * (2 * d * d + 2 * length * d + 2 * d * f)

    head = 2 * predictions * (d * d + d * v)
    pooler = 2 * (d * d + 2 * d)
    last = block(predictions + 1)
    return (model.num_hidden_layers - 1) * block(length) + last + head + pooler


def train_flops(model: ModelConfig, phase: PhaseConfig) -> int:
    """FLOPs of one update on a global batch: the backward pass costs two forward passes.

    Recomputation is not counted: MFU measures useful work (Chowdhery et al. 2022, appendix B).
    """
    return 3 * phase.global_batch_size * forward_flops(model, phase)


def peak_flops(dtype: str) -> float:
    """FLOP/s all devices together can reach: from the table, or measured where the table is silent.

    Measured means the best of a few products of two square matrices (1,024 wide on a CPU, 8,192
    elsewhere) on one device; devices that share a host's cores count once.
    """
    device = jax.devices()[0]
    if device.device_kind in _PEAK_BF16:
        return _PEAK_BF16[device.device_kind] * jax.device_count()
    size = 1024 if device.platform == "cpu" else 8192
    x = jax.device_put(jnp.ones((size, size), jnp.dtype(dtype)), device)
    product = jax.jit(jnp.matmul).lower(x, x).compile()
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        jax.block_until_ready(product(x, x))
        seconds.append(time.perf_counter() - start)
    devices = jax.process_count() if device.platform == "cpu" else jax.device_count()
    return 2 * size**3 / min(seconds) * devices


class Clock:
    """Seconds a step, over the steps since the last row, without evaluation and saving."""

    def __init__(self):
        self.restart()

    def restart(self) -> None:
        self.steps, self.waited, self._began = 0, 0.0, time.monotonic()

    def seconds_per_step(self) -> float:
        return max(time.monotonic() - self._began, 1e-9) / max(self.steps, 1)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """What happens inside does not count."""
        entered = time.monotonic()
        try:
            yield
        finally:
            self._began += time.monotonic() - entered

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """What happens inside is counted as `waited`, too."""
        entered = time.monotonic()
        try:
            yield
        finally:
            self.waited += time.monotonic() - entered


class Journal:
    """Appends rows to `metrics.jsonl` and TensorBoard, and events to `events.jsonl`.

    With `is_writer=False` it writes nothing: of several processes, one keeps the journal.
    """

    def __init__(self, workdir: Path, *, is_writer: bool = True):
        self._workdir = workdir
        self._tensorboard: _EventFile | None = None
        self._is_writer = is_writer
        if not is_writer:
            return
        self._metrics = _Lines(workdir / METRICS)
        self._events = _Lines(workdir / EVENTS)

    def open_tensorboard(self, past_rows: Iterable[dict[str, Any]]) -> None:
        """Starts a fresh event file that begins with the rows of the run so far.

        Event files cannot be rewound, so a resumed run writes its curve anew instead of doubling
        back. Does nothing where an earlier phase of this process has started it.
        """
        if self._tensorboard is not None or not self._is_writer:
            return
        directory = self._workdir / TENSORBOARD
        directory.mkdir(exist_ok=True)
        for old in directory.glob("events.out.tfevents.*"):
            old.unlink()
        self._tensorboard = _EventFile(directory)
        for row in past_rows:
            self._tensorboard.row(row)

    def row(self, **values: Any) -> None:
        if not self._is_writer:
            return
        # A loss that is not finite is null: JSON has no other word for it.
        is_number = {k: not isinstance(v, float) or math.isfinite(v) for k, v in values.items()}
        self._metrics.row({k: v if is_number[k] else None for k, v in values.items()})
        if self._tensorboard is not None:
            self._tensorboard.row(values)

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
        if self._tensorboard is not None:
            self._tensorboard.close()


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


class _Lines(_Appended):
    """Of JSON."""

    def __init__(self, path: Path):
        super().__init__(path)
        if self._file.tell() and not path.read_bytes().endswith(b"\n"):
            self._pending = b"\n"  # after a line that a kill cut short

    def row(self, values: dict[str, Any]) -> None:
        self.write(json.dumps(values).encode() + b"\n")


class _EventFile(_Appended):
    """Of TensorBoard, an event a row, by its own framing and messages.

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
        split = values.get("split", "train")
        scalars = [
            self._value(tag=f"{split}/{name}", simple_value=value)
            for name, value in values.items()
            if isinstance(value, float)
        ]
        self._add(step=values["step"], summary={"value": scalars})

    def _add(self, **fields: Any) -> None:
        self._records.write(self._event(wall_time=time.time(), **fields).SerializeToString())


def append_event(workdir: Path, name: str, **values: Any) -> None:
    """One event outside of a run's journal: from before it is opened, or from another verb."""
    journal = Journal(workdir)
    journal.event(name, **values)
    journal.close()


def read_rows(workdir: Path) -> list[dict[str, Any]]:
    """The rows written so far. A line cut short by a kill is left out."""
    return read_lines(workdir / METRICS)


def read_events(workdir: Path) -> list[dict[str, Any]]:
    """The events written so far, over all processes that worked on the run."""
    return read_lines(workdir / EVENTS)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Lines of JSON; none where there is no file, and without one that a kill cut short."""
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return rows


def skipped_steps(workdir: Path, step: int) -> int:
    """How many updates up to `step` were left out, in all processes that worked on the run.

    A process that starts at an earlier step abandons what came after it, updates left out included.
    """
    skipped: set[int] = set()
    for event in read_events(workdir):
        if event.get("event") == "start":
            skipped = {s for s in skipped if s <= event["step"]}
        elif event.get("event") == "skip":
            skipped.add(event["step"])
    return sum(s <= step for s in skipped)


def set_aside_after(workdir: Path, step: int) -> list[dict[str, Any]]:
    """Rewinds `metrics.jsonl` to `step` and returns what stays.

    Rows of later steps, which the resumed run will write again, move to
    `metrics.aside.jsonl`: nothing is lost and the curve never doubles back.
    """
    rows = read_rows(workdir)
    kept = [row for row in rows if row["step"] <= step]
    aside = [row for row in rows if row["step"] > step]
    if aside:
        with open(workdir / ASIDE, "a", encoding="utf-8") as file:
            file.writelines(json.dumps({"resumed_at": step, **row}) + "\n" for row in aside)
    rewound = workdir / f"{METRICS}.new"
    rewound.write_text("".join(json.dumps(row) + "\n" for row in kept), encoding="utf-8")
    rewound.replace(workdir / METRICS)
    return kept


def closing_rows(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The last row of training and of evaluation, from the logs of a finished run."""
    last = {row.get("split", "train"): row for row in rows}
    return last.get("train", {}) | {"validation": last.get("validation", {})}
