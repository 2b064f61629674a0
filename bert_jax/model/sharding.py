"""The device mesh, and the one table that says how anything lies on it.

Call sites name what a dimension means ("batch", "vocab"); `_RULES` alone says which mesh axis that
is. "axis" is a mesh axis, "dim" a tensor dimension. Axis types are explicit: every array's type
carries its sharding, and a program whose shardings do not add up fails while it is traced.
"""

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding

AXES = ("fsdp", "tensor")

# Logical dim -> mesh axis. Parameters are replicated: a later change of layout is made here.
_RULES: dict[str, str | None] = {
    "batch": "fsdp",
    "length": None,
    "width": None,
    "heads": None,
    "vocab": None,
}


def spec(*dims: str | None) -> jax.P:
    """The partition of an array whose leading dims are `dims`; the rest is not partitioned."""
    return jax.P(*(None if dim is None else _RULES[dim] for dim in dims))


def make_mesh(*, fsdp: int, tensor: int, devices=None) -> Mesh:
    """A mesh over all of `devices` (default: every device of every process).

    Raises ValueError when `fsdp` x `tensor` does not use each device exactly once.
    """
    devices = jax.devices() if devices is None else list(devices)
    if fsdp == -1:
        fsdp = len(devices) // tensor
    if fsdp * tensor != len(devices):
        raise ValueError(f"a mesh of {fsdp} x {tensor} does not cover {len(devices)} devices")
    return jax.make_mesh((fsdp, tensor), AXES, axis_types=(AxisType.Explicit,) * 2, devices=devices)


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """How every array of a batch lies: rows over the `fsdp` axis."""
    return NamedSharding(mesh, spec("batch"))


def replicated(mesh: Mesh) -> NamedSharding:
    return NamedSharding(mesh, jax.P())


def parameter_sharding(mesh: Mesh, shape: tuple[int, ...]) -> NamedSharding:
    """How a parameter or an optimiser moment of that shape lies."""
    del shape  # pure data parallelism: each device has a copy
    return replicated(mesh)


def rows_per_device(mesh: Mesh, rows: int) -> int:
    """Rows of a global batch that one device holds. Raises ValueError if they do not divide."""
    shards = int(np.prod([mesh.shape[a] for a in AXES if a == _RULES["batch"]]))
    if rows % shards:
        raise ValueError(f"{rows} rows do not divide over {shards} devices")
    return rows // shards
