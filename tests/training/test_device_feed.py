"""Host batches to global arrays: the same rows on the devices as on the host, in order."""

import time
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import pytest

from bert_jax.data.corpus.store import open_corpus
from bert_jax.data.pretraining.pipeline import Pipeline
from bert_jax.model import sharding
from bert_jax.objectives.mlm_nsp import MLM_NSP
from bert_jax.training import device_feed
from tests.batches import mesh_of, random_batch
from tests.limits import HUNG
from tests.tiny_corpus import tiny_config

_ROWS = 16


def batch_at(step: int, rows: range) -> dict[str, np.ndarray]:
    whole = random_batch(rows=_ROWS, length=32, predictions=5, vocab_size=211, seed=step)
    return {name: values[rows.start : rows.stop] for name, values in whole.items()}


@pytest.mark.parametrize("shape", [1, 2, 8, (1, 4, 2)])
def test_one_process_holds_every_row_once(shape):
    assert device_feed.local_rows(mesh_of(shape), _ROWS) == [range(_ROWS)]


def test_rows_of_a_process_are_maximal_ranges(monkeypatch):
    """Devices 0, 1, 4 and 5 of eight are local: two ranges, whatever order they come in."""

    class Layout:
        def addressable_devices_indices_map(self, shape):
            size = shape[0] // 8
            return {d: (slice(d * size, (d + 1) * size),) for d in (5, 0, 4, 1)}

    monkeypatch.setattr(sharding, "batch_sharding", lambda mesh: Layout())
    assert device_feed.local_rows(mesh_of(8), _ROWS) == [range(0, 4), range(8, 12)]


def test_a_host_batch_is_its_ranges_one_after_the_other():
    ranges = [range(0, 4), range(8, 16)]
    batch, whole = device_feed.host_batch(batch_at, 3, ranges), batch_at(3, range(_ROWS))
    assert set(batch) == set(MLM_NSP.fields)
    for name, values in batch.items():
        np.testing.assert_array_equal(values, np.delete(whole[name], range(4, 8), axis=0))


@pytest.mark.parametrize(
    "devices, ranges",
    [(1, [range(16)]), (2, [range(16)]), (8, [range(16)]), (8, [range(6), range(6, 16)])],
)
def test_a_global_array_is_the_host_batch(devices, ranges):
    mesh = mesh_of(devices)
    host = device_feed.host_batch(batch_at, 0, ranges)
    placed = device_feed.to_global(host, mesh=mesh, global_rows=_ROWS)
    whole = batch_at(0, range(_ROWS))
    assert set(placed) == set(whole)
    for name, array in placed.items():
        assert array.dtype == whole[name].dtype
        np.testing.assert_array_equal(jax.device_get(array), whole[name])
        assert array.sharding.is_equivalent_to(sharding.batch_sharding(mesh), array.ndim)
        # Device d has the d-th share of the rows and no other.
        assert len(array.addressable_shards) == devices
        for shard in array.addressable_shards:
            first = mesh.devices.ravel().tolist().index(shard.device) * _ROWS // devices
            share = whole[name][first : first + _ROWS // devices]
            np.testing.assert_array_equal(jax.device_get(shard.data), share)


@pytest.fixture
def worker():
    with ThreadPoolExecutor(max_workers=1) as started:
        yield started


@pytest.mark.parametrize("depth", [1, 2, 5, 9])
def test_ahead_keeps_order_and_depth(depth, worker):
    made = []

    def source():
        for number in range(6):
            made.append(number)
            yield {"number": number}

    seen = []
    for future in device_feed.ahead(source(), depth=depth, worker=worker):
        # `depth` batches, this one among them, are under way when it is handed out.
        deadline = time.monotonic() + HUNG
        while len(made) < min(len(seen) + depth, 6) and time.monotonic() < deadline:
            time.sleep(0.001)
        assert len(made) == min(len(seen) + depth, 6)
        batch = future.result()
        if batch is None:
            break
        seen.append(batch["number"])
    assert seen == list(range(6))


@pytest.mark.parametrize("number", [0, 1])
def test_the_step_is_compiled_for_what_the_pipeline_makes(corpus, number):
    opened, config = open_corpus(corpus), tiny_config()
    pipeline = Pipeline(
        opened.train,
        collator=MLM_NSP,
        vocabulary=opened.vocabulary,
        options=config.data,
        phases=config.phases,
        seed=0,
    )
    phase, mesh = config.phases[number], mesh_of(8)
    step = sum(earlier.steps for earlier in config.phases[:number])
    ranges = device_feed.local_rows(mesh, phase.global_batch_size)
    host = device_feed.host_batch(pipeline.batch_at, step, ranges)
    batch = device_feed.to_global(host, mesh=mesh, global_rows=phase.global_batch_size)
    abstract = device_feed.abstract_batch(phase, fields=MLM_NSP.fields, mesh=mesh)
    assert set(abstract) == set(batch)
    for name, array in batch.items():
        assert (array.shape, array.dtype) == (abstract[name].shape, abstract[name].dtype), name
        assert array.sharding == abstract[name].sharding
