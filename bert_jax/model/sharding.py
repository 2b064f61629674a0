"""The device mesh and the sharding of all arrays.

The mesh has four axes of size 1 or more: `slice` (groups of devices joined by a slower network),
`fsdp` and `fsdp_inner` (split the batch and, optionally, the stored weights; both are called `fsdp`
below) and `tensor` (splits matrices). `slice` and `fsdp` shard the batch. Parameters are *stored*
in one layout and *used* in another:

- `tensor` shards the dim that a parameter's role names (roles.py), stored and used.
- `fsdp` shards the stored copy, in the largest dim that it divides (the last dim only if no other
  fits); a working copy in the compute type is gathered for use. The gradient returns in the stored
  layout, so that master weights, moments and the update are sharded over `fsdp` (Rajbhandari et al.
  2020, ZeRO). Every slice has a full copy: gradients are summed across slices once, after sharding.
- Each device accumulates the gradient of its rows over all uses of a parameter. These are then
  reduced and scattered over one `fsdp` axis after another: the compiler of most TPUs would
  all-reduce over both at once, with twice the traffic.
- A dim that an axis does not divide is not sharded: 30,522 tokens are 2 x 3 x 5,087. A TPU gathers
  such a table with zero rows as padding; the stored table has none.

The sharding of activations follows. Axis types are explicit: every array's type has its sharding,
and inconsistent shardings fail during tracing. "axis" is a mesh axis, "dim" a tensor dimension.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.mesh_utils import create_device_mesh
from jax.sharding import AxisType, Mesh, NamedSharding

from bert_jax.model.roles import role_of

FSDP = ("fsdp", "fsdp_inner")
AXES = ("slice", *FSDP, "tensor")
BATCH = ("slice", *FSDP)

# Parameters with fewer elements are replicated: gathering a bias costs a message and saves only
# kilobytes.
_SMALL = 2**16
# A TPU stores the last two dims of an array in tiles of this many rows and 128 columns.
_ROWS_OF_A_TILE = 8


def make_mesh(
    *, fsdp: int, tensor: int, slices: int = 1, fsdp_inner: int | None = None, devices=None
) -> Mesh:
    """Returns a mesh over `devices` (default: all devices of all processes); `fsdp=-1` uses the
    rest.

    `fsdp_inner` is the size of the second `fsdp` axis (default: chosen for the devices' topology).
    Raises ValueError unless `slices` x `fsdp` x `tensor` equals the number of devices.
    """
    devices = list(jax.devices() if devices is None else devices)
    if fsdp == -1:
        fsdp = len(devices) // (slices * tensor)
    if slices * fsdp * tensor != len(devices):
        raise ValueError(
            f"mesh.slices={slices} x mesh.fsdp={fsdp} x mesh.tensor={tensor} must equal the "
            f"number of devices, {len(devices)}"
        )
    if len({getattr(d, "slice_index", 0) for d in devices}) == slices:
        # Real slices: the devices of a slice are adjacent, so that only the axis `slice` crosses
        # slices.
        devices.sort(key=lambda d: getattr(d, "slice_index", 0))
    a_slice = len(devices) // slices
    if fsdp_inner is None:
        fsdp_inner = _second_axis(devices[:a_slice], tensor=tensor)
    shape = (1, fsdp // fsdp_inner, fsdp_inner, tensor)
    parts = [_arranged(list(part), shape) for part in np.split(np.array(devices), slices)]
    return Mesh(np.concatenate(parts), AXES, axis_types=(AxisType.Explicit,) * len(AXES))


def _arranged(devices: Sequence[Any], shape: tuple[int, ...]) -> np.ndarray:
    """Returns the devices of a slice in an order that suits its links: mesh axes are whole physical
    axes, or parts of them if there is no such order.
    """
    try:
        return create_device_mesh(shape, devices)
    except NotImplementedError:
        return create_device_mesh(shape, devices, allow_split_physical_axes=True)


def _second_axis(devices: Sequence[Any], *, tensor: int) -> int:
    """Returns the size of the second `fsdp` axis: 1 except on TPUs with one device per chip.

    An axis consists of whole physical axes of the slice, so that it has direct links; the two sizes
    are as equal as possible, and the first one is the larger. If a device is a core, one axis uses
    all links at once, and two axes would each use a part of them (benchmarks/results/tpu-plans.md).
    """
    places = {(*getattr(d, "coords", ()), getattr(d, "core_on_chip", 0)) for d in devices}
    sizes = [len(set(along)) for along in zip(*places, strict=True)]
    if math.prod(sizes) != len(devices) or sizes[-1] > 1:
        return 1
    fsdp = len(devices) // tensor
    # Each physical axis belongs to the first `fsdp` axis, the second one or `tensor`.
    choices = (
        [math.prod(n for n, to in zip(sizes, side, strict=True) if to == axis) for axis in range(2)]
        for side in itertools.product(range(3), repeat=len(sizes))
    )
    return max(
        (inner for first, inner in choices if first * inner == fsdp and inner <= first), default=1
    )


def batch_spec(*rest: Any) -> jax.P:
    """Returns the partition of an array with batch rows as its first dim; `rest` names further
    axes.
    """
    return jax.P(BATCH, *rest)


def over_batch(*rest: Any) -> jax.P | None:
    """Returns `batch_spec(*rest)` for the current mesh; None without a mesh (one device)."""
    return batch_spec(*rest) if _has_mesh() else None


def reshaped(x: jax.Array, shape: tuple[int, ...], *rest: str | None) -> jax.Array:
    """Returns activations in another shape; the rows of the batch stay the outermost part of the
    first dim.

    `rest` are the axes that shard the dims after the first.
    """
    return jnp.reshape(x, shape, out_sharding=over_batch(*rest))


def on_every_device(x: jax.Array) -> jax.Array:
    """Returns the batch array `[B, ...]` replicated on every device.

    The gradient of a float array is summed once, in the backward pass. Therefore the copy may only
    be used in matmuls, slices, concatenations and lookups (JAX's "reduced" arrays).
    """
    is_float = jnp.issubdtype(x.dtype, jnp.floating)
    return laid_out(x, jax.P(reduced=frozenset(BATCH)) if is_float else jax.P())


def laid_out(x: jax.Array, spec: jax.P) -> jax.Array:
    """Returns an array with another partition; without a mesh, the array itself."""
    return jax.reshard(x, spec) if _has_mesh() else x


def fsdp_size(mesh: Any) -> int:
    """Returns how many devices of a slice share a batch."""
    return math.prod(mesh.shape[axis] for axis in FSDP)


def mesh_size(axis: str) -> int:
    """Returns the devices along an axis of the current mesh; 1 without a mesh."""
    return jax.sharding.get_abstract_mesh().shape[axis] if _has_mesh() else 1


def device_kind() -> str:
    """Returns the kind of the devices of the current mesh, which may be an abstract one."""
    return _device().device_kind


def is_on_gpu() -> bool:
    """Returns whether the program is for GPUs."""
    return _device().platform == "gpu"


def is_on_cpu() -> bool:
    """Returns whether the program is for CPUs."""
    return _device().platform == "cpu"


def _device() -> Any:
    return jax.sharding.get_abstract_mesh().abstract_device or jax.devices()[0]


def _has_mesh() -> bool:
    return jax.sharding.get_abstract_mesh().axis_names == AXES


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Returns the sharding of every array of a batch."""
    return NamedSharding(mesh, batch_spec())


def row_shards(mesh: Any) -> int:
    """Returns the number of shards of the rows of a batch; 1 for an empty mesh."""
    return math.prod(mesh.shape.get(axis, 1) for axis in BATCH)


def rows_per_device(mesh: Mesh, rows: int) -> int:
    """Returns how many rows of a global batch each device has.

    Raises ValueError if the devices cannot share the rows equally.
    """
    shards = row_shards(mesh)
    if rows % shards:
        raise ValueError(f"{shards} devices cannot share a batch of {rows} rows equally")
    return rows // shards


def compute_spec(path: tuple, shape: tuple[int, ...], *, mesh: Any) -> jax.P:
    """Returns the partition in which the step uses a parameter: sharded only over `tensor`."""
    role = role_of(path)
    dim = None if role is None else role.tensor_dim
    # An optimizer may store a moment with fewer dims than the parameter.
    if dim is None or dim >= len(shape):
        return jax.P()
    if mesh.shape["tensor"] == 1 or shape[dim] % mesh.shape["tensor"]:
        return jax.P()
    return jax.P(*(None,) * dim, "tensor")


def param_spec(path: tuple, shape: tuple[int, ...], *, mesh: Any, shard_weights: bool) -> jax.P:
    """Returns the partition in which a parameter, or a moment of it, is stored."""
    spec = list(compute_spec(path, shape, mesh=mesh)) + [None] * len(shape)
    spec, size = spec[: len(shape)], fsdp_size(mesh)
    if shard_weights and size > 1 and math.prod(shape) >= _SMALL:
        free = [i for i, axis in enumerate(spec) if axis is None and shape[i] % size == 0]
        if free:
            # A TPU cannot reduce-scatter the last dim in shards narrower than a tile (128 columns).
            spec[max(free, key=lambda i: (i < len(shape) - 1, shape[i]))] = FSDP
    while spec and spec[-1] is None:
        spec.pop()
    return jax.P(*spec)


def param_shardings(tree: Any, *, mesh: Mesh, shard_weights: bool) -> Any:
    """Returns the stored sharding of every leaf of `tree`: parameters, moments, counters."""

    def of(path, leaf):
        return NamedSharding(
            mesh, param_spec(path, leaf.shape, mesh=mesh, shard_weights=shard_weights)
        )

    return jax.tree_util.tree_map_with_path(of, tree)


def to_compute_params(params: Any, *, dtype: Any) -> Any:
    """Returns the working copy of stored parameters, with matrices in the compute type.

    The cast comes first, which halves the traffic. The gradient takes the reverse path.
    """
    mesh = jax.sharding.get_abstract_mesh()

    def copy(path, leaf):
        role = role_of(path)
        if role is not None and role.in_compute_type:
            leaf = leaf.astype(dtype)
        if not _has_mesh() or FSDP not in spec_of(leaf):
            return leaf
        is_whole = compute_spec(path, leaf.shape, mesh=mesh) == jax.P()
        if is_whole and _is_cut_by_columns(leaf) and _gathers_rows():
            leaf = _cut_by_rows(leaf)
        return _gathered(leaf, is_summed_late=role is not None and role.is_factor)

    return jax.tree_util.tree_map_with_path(copy, params)


def _gathered(leaf: jax.Array, *, is_summed_late: bool) -> jax.Array:
    """Returns a copy gathered over one `fsdp` axis after another.

    With `is_summed_late` each device computes the gradient of its own rows, and the backward pass
    reduces it over one axis at a time, in the reverse order of the gathers. Such a copy may only be
    used in matmuls, slices, concatenations and lookups (JAX's "reduced" arrays). Across slices
    there is nothing to gather, but the gradient is summed: last, when it is smallest.
    """
    done: tuple[str, ...] = ()
    stored = spec_of(leaf)
    for axis in ("slice", *reversed(FSDP)):
        done = (*done, axis)
        left = tuple(axis for axis in FSDP if axis not in done)
        partition = [(left or None) if cut == FSDP else cut for cut in stored]
        leaf = jax.reshard(
            leaf, jax.P(*partition, reduced=frozenset(done if is_summed_late else ()))
        )
    return leaf


def axes_summed_late(x: jax.Array) -> frozenset[str]:
    """Returns the axes over which the backward pass sums the gradient of a parameter later: custom
    derivatives return each device's term, `jax.P(..., unreduced=axes)`.
    """
    return jax.typeof(x).sharding.spec.reduced


def stack(leaves: Sequence[jax.Array]) -> jax.Array:
    """Returns arrays stacked along a new first dim; they may be working copies of parameters.

    Like `jnp.stack`, which has no derivative for gradients that are summed late (jax 0.10.2).
    """
    return jnp.concatenate([leaf[None] for leaf in leaves])


def _is_cut_by_columns(leaf: jax.Array) -> bool:
    """Returns whether a matrix with more rows than columns (a vocabulary) is stored in column
    shards because its rows do not divide.
    """
    return leaf.ndim == 2 and leaf.shape[0] > leaf.shape[1] and spec_of(leaf) == [None, FSDP]


def _gathers_rows() -> bool:
    """Returns whether a vocabulary is gathered by rows. On a CPU this gains nothing, and its
    matmuls would round differently with another number of rows.
    """
    return device_kind().startswith("TPU")


def _cut_by_rows(leaf: jax.Array) -> jax.Array:
    """Returns a matrix stored in columns, sharded by rows and padded with zero rows.

    A TPU stores a table that was gathered by columns column by column: it would have to transpose
    the table before row lookups, and its gradient, which would be all-reduced instead of scattered.
    Without the padding rows the gathered copy would also have such a gradient, and if a device's
    rows were not whole tiles, the copy would need another layout.
    """
    rows = fsdp_size(jax.sharding.get_abstract_mesh()) * _ROWS_OF_A_TILE
    filled = jnp.pad(leaf, ((0, -leaf.shape[0] % rows), (0, 0)))
    return jax.reshard(filled, jax.P(FSDP))


def in_automatic_layout(function: Callable, *, like: Any) -> Callable:
    """Returns `function` with shardings inside chosen by the compiler.

    Its result, a tree such as `like`, has the sharding of `like`. This is for code without mesh
    awareness, which would otherwise have to name the sharding of its results.
    """
    if not _has_mesh():
        return function
    layout = jax.tree.map(lambda x: jax.typeof(x).sharding.spec, like)
    return jax.sharding.auto_axes(function, axes=AXES, out_sharding=layout)


def on_each_device(function: Callable, *, takes: Any, gives: Any) -> Callable:
    """Returns `function`, applied on each device to its own shards (shard_map).

    `takes` and `gives` are the partitions of the arguments and of the result. Inside, devices
    communicate only through the three functions below. Without a mesh, it is the function itself.
    It has no derivative, because it is used inside custom derivatives.
    """
    if not _has_mesh():
        return function
    return jax.shard_map(function, in_specs=takes, out_specs=gives, check_vma=False)


def sum_over(axes: Any, x: jax.Array) -> jax.Array:
    """Returns the sum of `x` over the devices along `axes`."""
    return jax.lax.psum(x, axes) if _has_mesh() else x


def highest_over(axes: Any, x: jax.Array) -> jax.Array:
    """Returns the elementwise maximum of `x` over the devices along `axes`."""
    return jax.lax.pmax(x, axes) if _has_mesh() else x


def index_along(axis: str) -> Any:
    """Returns the index of this device along an axis."""
    return jax.lax.axis_index(axis) if _has_mesh() else 0


def spec_of(x: jax.Array) -> list:
    """Returns the axes that shard each dim of `x`, one entry per dim."""
    spec = list(jax.typeof(x).sharding.spec.partitions)
    return spec + [None] * (jnp.ndim(x) - len(spec))


def bytes_per_device(tree: Any) -> int:
    """Returns the bytes of the described arrays on one device, without padding."""

    def size(leaf):
        shape = leaf.sharding.shard_shape(leaf.shape)
        return math.prod(shape) * np.dtype(leaf.dtype).itemsize

    return sum(size(leaf) for leaf in jax.tree.leaves(tree))
