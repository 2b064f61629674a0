"""Implementations of attention, forward and backward, compiled by the TPU compiler."""

import importlib.util
from typing import Any

import jax
import pytest

from bert_jax.model import sharding
from bert_jax.model.mask import Mask
from bert_jax.registry import ATTENTION
from bert_jax.update import compiler_options
from bert_jax_lab.planning import topologies
from bert_jax_lab.planning.topologies import CHIPS

pytestmark = [
    pytest.mark.tpu_compiler,
    pytest.mark.skipif(
        importlib.util.find_spec("libtpu") is None,
        reason="needs the TPU compiler: the extra `plan`",
    ),
]

_ROWS, _HEADS, _SIZE = 4, 2, 64


@pytest.mark.parametrize("generation", CHIPS)
def test_what_serves_long_rows_compiles_without_their_square(generation):
    # The square of 4,096 fits into a second memory of v4 (CMEM, 128 MB), which is not counted.
    length = 8192 if generation == "v4" else 4096
    topologies.prepare_environment()
    shape = "2x2x1" if CHIPS[generation].dimensions == 3 else "2x2"
    topology = topologies.parse(f"{generation}:{shape}")
    devices = topologies.devices(topology)
    mesh = sharding.make_mesh(fsdp=len(devices) // 2, tensor=2, devices=devices)

    def all_of_them(q, k, v, ids, positions):
        total = 0.0
        for name, window in (("chunked", None), ("local", 128)):
            mask = Mask.of_rows(ids, positions, window=window)
            out = ATTENTION[name](q, k, v, mask=mask, key=None, dropout_rate=0.0)
            total += out.astype("float32").sum()
        return total

    with jax.set_mesh(mesh):
        rows = sharding.batch_sharding(mesh)
        by_heads = jax.NamedSharding(mesh, jax.P(rows.spec[0], "tensor", None, None))
        x = jax.ShapeDtypeStruct((_ROWS, _HEADS, _SIZE, length), "bfloat16", sharding=by_heads)
        ids = jax.ShapeDtypeStruct((_ROWS, length), "int32", sharding=rows)
        step = jax.jit(jax.grad(all_of_them, argnums=(0, 1, 2)))
        lowered = step.trace(x, x, x, ids, ids).lower(lowering_platforms=("tpu",))
        options: Any = compiler_options.for_platform("tpu")
        memory: Any = lowered.compile(compiler_options=options).memory_analysis()
    square = 2 * length**2  # of one head of one row
    assert memory.temp_size_in_bytes < square
