"""Turns host batches into global arrays, a few steps ahead of training."""

import collections
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

import jax
import numpy as np
from jax.sharding import Mesh

from bert_jax.config import PhaseConfig
from bert_jax.data.pretraining.batch import Field, signature
from bert_jax.model import sharding

HostBatch = dict[str, np.ndarray]


def local_rows(mesh: Mesh, global_batch_size: int) -> list[range]:
    """Returns the rows of a global batch on this process's devices as maximal ranges, ascending.

    Two processes may hold the same rows, depending on the sharding.
    """
    indices = sharding.batch_sharding(mesh).addressable_devices_indices_map((global_batch_size,))
    rows = [index[0] for index in indices.values() if index is not None]
    starts_stops = sorted({s.indices(global_batch_size)[:2] for s in rows})
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
    """Returns the rows of `ranges`, concatenated."""
    parts = [batch_at(step, rows) for rows in ranges]
    if len(parts) == 1:
        return parts[0]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def to_global(batch: HostBatch, *, mesh: Mesh, global_rows: int) -> dict:
    """Returns global arrays `[global_rows, ...]` of a batch with the `local_rows` of each process,
    or with all rows in every process.
    """
    layout = sharding.batch_sharding(mesh)
    shapes = {name: (global_rows, *array.shape[1:]) for name, array in batch.items()}
    return {
        name: jax.make_array_from_process_local_data(layout, array, shapes[name])
        for name, array in batch.items()
    }


def whole_to_global(batch: HostBatch, *, mesh: Mesh) -> dict:
    """Returns global arrays of a batch that every process has completely."""
    return to_global(batch, mesh=mesh, global_rows=len(batch["input_ids"]))


def ahead(
    batches: Iterator[dict], *, depth: int, worker: ThreadPoolExecutor
) -> Iterator[Future[dict | None]]:
    """Yields the same batches with `depth` of them in transfer to the devices; None after the last.

    `worker`, with one thread, makes them. They are futures, so that the caller can react to signals
    while waiting. To abandon the iterator, shut down the worker: it returns at once.
    """
    waiting = collections.deque(worker.submit(next, batches, None) for _ in range(depth))
    while True:
        yield waiting.popleft()
        waiting.append(worker.submit(next, batches, None))


def abstract_batch(
    phase: PhaseConfig, *, fields: Mapping[str, Field], mesh: Mesh
) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns shapes, types and shardings of a phase's batch with the arrays `fields`."""
    rows = phase.global_batch_size
    sharding.rows_per_device(mesh, rows)
    layout = sharding.batch_sharding(mesh)
    return {
        name: jax.ShapeDtypeStruct(spec.shape, spec.dtype, sharding=layout)
        for name, spec in signature(fields, phase, rows=rows).items()
    }
