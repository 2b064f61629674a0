"""Host batches become global arrays, a few steps ahead of the step that wants them."""

import collections
import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import jax
import numpy as np
from jax.sharding import Mesh

from bert_jax.config import PhaseConfig
from bert_jax.model import sharding

HostBatch = dict[str, np.ndarray]


def local_rows(mesh: Mesh, global_batch_size: int) -> list[range]:
    """The rows of a global batch that this process's devices hold, as maximal ranges, ascending.

    Two processes may hold the same rows: what matters is what the sharding says, not who asks.
    """
    places = sharding.batch_sharding(mesh).addressable_devices_indices_map((global_batch_size,))
    slices = [index[0] for index in places.values() if index is not None]
    starts_stops = sorted({s.indices(global_batch_size)[:2] for s in slices})
    ranges: list[range] = []
    for start, stop in starts_stops:
        if ranges and ranges[-1].stop == start:
            ranges[-1] = range(ranges[-1].start, stop)
        else:
            ranges.append(range(start, stop))
    return ranges


def host_batch(
    batch_at: Callable[[int, range], HostBatch], step: int, ranges: list[range]
) -> HostBatch:
    """The rows of `ranges`, one after the other."""
    parts = [batch_at(step, rows) for rows in ranges]
    if len(parts) == 1:
        return parts[0]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def to_global(batch: HostBatch, *, mesh: Mesh, ranges: list[range], global_rows: int) -> dict:
    """Global arrays `[global_rows, ...]` of which this process contributes the rows of `ranges`."""
    layout = sharding.batch_sharding(mesh)
    offsets = dict(zip(ranges, itertools.accumulate(map(len, ranges), initial=0), strict=False))

    def place(array: np.ndarray) -> jax.Array:
        def rows(index):
            start, stop, _ = index[0].indices(global_rows)
            owner = next(r for r in ranges if r.start <= start and stop <= r.stop)
            first = offsets[owner] + start - owner.start
            return array[first : first + stop - start]

        return jax.make_array_from_callback((global_rows, *array.shape[1:]), layout, rows)

    return {name: place(array) for name, array in batch.items()}


def ahead(batches: Iterator[dict], *, depth: int) -> Iterator[Future[dict | None]]:
    """The same batches, `depth` of them on their way to the devices already; None after the last.

    They are made in a thread, and come as futures: who waits for one can listen for a signal.
    """
    worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="feed")
    waiting = collections.deque(worker.submit(next, batches, None) for _ in range(depth))
    try:
        while True:
            yield waiting.popleft()
            waiting.append(worker.submit(next, batches, None))
    finally:
        worker.shutdown(wait=False, cancel_futures=True)


def abstract_batch(phase: PhaseConfig, *, mesh: Mesh) -> dict[str, jax.ShapeDtypeStruct]:
    """Shapes, types and shardings of a phase's batch: the table of docs/architecture.md."""
    rows, length, predictions = (
        phase.global_batch_size,
        phase.sequence_length,
        phase.max_predictions,
    )
    sharding.rows_per_device(mesh, rows)
    layout = sharding.batch_sharding(mesh)

    def array(size: int, dtype: type = np.int32) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((rows, size), dtype, sharding=layout)

    tokens = ("input_ids", "token_type_ids", "position_ids", "sequence_ids")
    return {name: array(length) for name in tokens} | {
        "mlm_positions": array(predictions),
        "mlm_targets": array(predictions),
        "mlm_weights": array(predictions, np.float32),
        "nsp_positions": array(1),
        "nsp_labels": array(1),
        "nsp_weights": array(1, np.float32),
    }
