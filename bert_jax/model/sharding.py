"""The device mesh, and the one place that says how anything lies on it.

Four axes, any of them of size 1: `slice` (groups of devices joined by a slower network), `fsdp` and
`fsdp_inner` (share the batch, and may share what is stored of the weights: two axes, which what
follows calls `fsdp`) and `tensor` (shares a matrix). A batch is cut over `slice` and `fsdp`. A
parameter is *stored* in one layout and *used* in another:

- `tensor` cuts the dim that a parameter's role names (roles.py), stored and used.
- `fsdp` cuts the largest dim that it divides, the last one if there is no other, stored only; a
  working copy, in the compute type, is gathered for use. Its gradient comes back in the stored
  layout, so that master weights, moments and the update are spread over `fsdp` (Rajbhandari et al.
  2020, ZeRO). Every slice has them whole: a gradient is summed across slices after it is cut, once.
- Each device keeps the gradient of its own rows until those of every use of a parameter are added
  up. They are summed and cut over one axis of `fsdp` after the other, since the compiler of most
  TPUs sums over both at once without cutting, which is twice the traffic.
- A dim that an axis does not divide is not cut: 30,522 sub-words are 2 x 3 x 5,087. A TPU gathers
  such a table with more rows than it has, of zeros; what is stored has none of them.

Activations follow from these two. Axis types are explicit: every array's type carries its sharding,
and a program whose shardings do not add up fails while it is traced. "axis" is a mesh axis, "dim" a
tensor dimension.
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

# Numbers in a parameter below which each device keeps a copy: gathering a bias costs a message and
# saves kilobytes.
_SMALL = 2**16
# A TPU lays the last two dims of an array out in tiles of so many rows, and 128 columns.
_ROWS_OF_A_TILE = 8


def make_mesh(
    *, fsdp: int, tensor: int, slices: int = 1, fsdp_inner: int | None = None, devices=None
) -> Mesh:
    """Returns a mesh over all of `devices` (default: every device of every process); `fsdp=-1` is
    the rest.

    `fsdp_inner` of the `fsdp` devices are the second of its two axes; by default as many as suit
    the devices. Raises ValueError when `slices` x `fsdp` x `tensor` does not use each device
    exactly once.
    """
    devices = list(jax.devices() if devices is None else devices)
    if fsdp == -1:
        fsdp = len(devices) // (slices * tensor)
    if slices * fsdp * tensor != len(devices):
        raise ValueError(
            f"a mesh of {slices} x {fsdp} x {tensor} (slice x fsdp x tensor) does not cover "
            f"{len(devices)} devices"
        )
    if len({getattr(d, "slice_index", 0) for d in devices}) == slices:
        # Real slices: the devices of one come together, so that only `slice` leaves it.
        devices.sort(key=lambda d: getattr(d, "slice_index", 0))
    a_slice = len(devices) // slices
    if fsdp_inner is None:
        fsdp_inner = _second_axis(devices[:a_slice], tensor=tensor)
    shape = (1, fsdp // fsdp_inner, fsdp_inner, tensor)
    parts = [_arranged(list(part), shape) for part in np.split(np.array(devices), slices)]
    return Mesh(np.concatenate(parts), AXES, axis_types=(AxisType.Explicit,) * len(AXES))


def _arranged(devices: Sequence[Any], shape: tuple[int, ...]) -> np.ndarray:
    """Returns the devices of a slice in the order that suits its links: axes of whole dimensions,
    or of parts of them where there are no such axes.
    """
    try:
        return create_device_mesh(shape, devices)
    except NotImplementedError:
        return create_device_mesh(shape, devices, allow_split_physical_axes=True)


def _second_axis(devices: Sequence[Any], *, tensor: int) -> int:
    """Returns how many devices of a slice make the second axis of `fsdp`: 1 but for TPUs whose
    devices are chips.

    An axis has whole dimensions of the slice, so that it is made of links; the two are as equal as
    they can be, and the first one is the larger. Where a device is a core, one axis has all links
    at once, and two would have those of a part each (benchmarks/results/tpu-plans.md).
    """
    places = {(*getattr(d, "coords", ()), getattr(d, "core_on_chip", 0)) for d in devices}
    sizes = [len(set(along)) for along in zip(*places, strict=True)]
    if math.prod(sizes) != len(devices) or sizes[-1] > 1:
        return 1
    fsdp = len(devices) // tensor
    # Each dimension makes the first axis, the second or that of `tensor`.
    choices = (
        [math.prod(n for n, to in zip(sizes, side, strict=True) if to == axis) for axis in range(2)]
        for side in itertools.product(range(3), repeat=len(sizes))
    )
    return max(
        (inner for first, inner in choices if first * inner == fsdp and inner <= first), default=1
    )


def batch_spec(*rest: Any) -> jax.P:
    """Returns the partition of an array whose first dim is rows of a batch; `rest` names further
    axes.
    """
    return jax.P(BATCH, *rest)


def over_batch(*rest: Any) -> jax.P | None:
    """Returns `batch_spec(*rest)` for the mesh that is set; None where none of ours is.

    So a model can be called without any mesh, on one device.
    """
    return batch_spec(*rest) if _has_mesh() else None


def reshaped(x: jax.Array, shape: tuple[int, ...], *rest: str | None) -> jax.Array:
    """Returns activations in another shape, whose first dim still has the rows of the batch
    outermost.

    `rest` are the axes that cut the dims after the first.
    """
    return jnp.reshape(x, shape, out_sharding=over_batch(*rest))


def row_parts() -> int:
    """Returns into how many parts the mesh that is set cuts the rows of a batch; 1 without one."""
    return math.prod(mesh_size(axis) for axis in BATCH)


def on_every_device(x: jax.Array) -> jax.Array:
    """Returns an array `[B, ...]` of rows of the batch, whole on every device.

    The gradient of a float array is summed once, on its way back. So the copy can be a factor of
    products, and be cut, joined and looked up in, and nothing else (jax's "reduced" arrays).
    """
    if not _has_mesh():
        return x
    is_float = jnp.issubdtype(x.dtype, jnp.floating)
    return jax.reshard(x, jax.P(reduced=frozenset(BATCH)) if is_float else jax.P())


def fsdp_size(mesh: Any) -> int:
    """Returns how many devices of a slice share a batch."""
    return math.prod(mesh.shape[axis] for axis in FSDP)


def mesh_size(axis: str) -> int:
    """Returns the devices along an axis of the mesh that is set; 1 where none of ours is."""
    return jax.sharding.get_abstract_mesh().shape[axis] if _has_mesh() else 1


def device_kind() -> str:
    """Returns the kind of the devices that the program is for: those of the mesh that is set, which
    may be described only.
    """
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


def row_shards(mesh: Mesh) -> int:
    """Returns into how many parts the rows of a batch are cut."""
    return math.prod(mesh.shape[axis] for axis in BATCH)


def rows_per_device(mesh: Mesh, rows: int) -> int:
    """Returns how many rows of a global batch one device holds.

    Raises ValueError if they do not divide.
    """
    shards = row_shards(mesh)
    if rows % shards:
        raise ValueError(f"{rows} rows do not divide over {shards} devices")
    return rows // shards


def compute_spec(path: tuple, shape: tuple[int, ...], *, mesh: Any) -> jax.P:
    """Returns the partition in which the step uses the parameter of that name: cut over `tensor`
    alone.
    """
    role = role_of(path)
    dim = None if role is None else role.tensor_dim
    # An optimiser may keep fewer dims of a parameter than it has.
    if dim is None or dim >= len(shape):
        return jax.P()
    if mesh.shape["tensor"] == 1 or shape[dim] % mesh.shape["tensor"]:
        return jax.P()
    return jax.P(*(None,) * dim, "tensor")


def param_spec(path: tuple, shape: tuple[int, ...], *, mesh: Any, shard_weights: bool) -> jax.P:
    """Returns the partition in which the parameter of that name, or a moment of it, is kept."""
    spec = list(compute_spec(path, shape, mesh=mesh)) + [None] * len(shape)
    spec, size = spec[: len(shape)], fsdp_size(mesh)
    if shard_weights and size > 1 and math.prod(shape) >= _SMALL:
        free = [i for i, axis in enumerate(spec) if axis is None and shape[i] % size == 0]
        if free:
            # A TPU scatters no sum along the last dim in parts of less than a tile's 128 columns.
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
    """Returns the working copy of stored parameters; matrices in the type that they are computed
    in.

    Cast first, so that half the bytes travel. The transpose takes the gradient the same way back.
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
    """Returns a copy that is whole along `fsdp`, gathered over one of its axes after the other.

    `is_summed_late`: its gradient comes back as each device has it of its own rows, and is summed
    on the way back, an axis at a time, where a copy is gathered on the way here. Such a copy can be
    a factor of products, and be cut, joined and looked up in, and nothing else (jax's "reduced"
    arrays). A slice has nothing to gather, but its gradient to sum: last, when it is smallest.
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
    """Returns the axes over which the gradient of a parameter in use is summed on its way back:
    a rule of derivatives hands over what each device has of it, `jax.P(..., unreduced=axes)`.
    """
    return jax.typeof(x).sharding.spec.reduced


def stack(leaves: Sequence[jax.Array]) -> jax.Array:
    """Returns arrays joined along a new first dim, parameters in use among them.

    As `jnp.stack`, which has no derivative for copies whose gradients are summed late (jax 0.10.2).
    """
    return jnp.concatenate([leaf[None] for leaf in leaves])


def _is_cut_by_columns(leaf: jax.Array) -> bool:
    """Returns whether a matrix is stored in columns because its rows, of which it has more, do not
    divide: a vocabulary.
    """
    return leaf.ndim == 2 and leaf.shape[0] > leaf.shape[1] and spec_of(leaf) == [None, FSDP]


def _gathers_rows() -> bool:
    """Returns whether a vocabulary is gathered by rows. On a CPU nothing is won, and the library
    for products rounds other elements in another way where the table has other rows.
    """
    return device_kind().startswith("TPU")


def _cut_by_rows(leaf: jax.Array) -> jax.Array:
    """Returns such a matrix cut by rows, of which it gets as many of zeros as it takes to divide.

    A TPU lays a table of gathered columns out column by column: it has to transpose it before rows
    are looked up, and so its gradient, which is then summed whole instead of scattered. Without the
    last rows the gathered copy would have such a gradient, too; and where a device's rows filled
    no whole tiles, the copy would be laid out anew.
    """
    rows = fsdp_size(jax.sharding.get_abstract_mesh()) * _ROWS_OF_A_TILE
    filled = jnp.pad(leaf, ((0, -leaf.shape[0] % rows), (0, 0)))
    return jax.reshard(filled, jax.P(FSDP))


def in_automatic_layout(function: Callable, *, like: Any) -> Callable:
    """Returns `function`, inside of which the compiler decides how things lie.

    What it returns, a tree such as `like`, lies as `like` does. For code that knows of no mesh:
    where axes are explicit, it would have to say how its results lie.
    """
    if not _has_mesh():
        return function
    layout = jax.tree.map(lambda x: jax.typeof(x).sharding.spec, like)
    return jax.sharding.auto_axes(function, axes=AXES, out_sharding=layout)


def on_each_device(function: Callable, *, takes: Any, gives: Any) -> Callable:
    """Returns `function` as each device applies it to the parts of arrays that lie on it.

    `takes` and `gives` are the partitions of its arguments and of what it returns. Inside, devices
    tell each other by the three functions below alone. Where no mesh of ours is set, that is the
    function itself. It has no derivative: it serves in rules of derivatives.
    """
    if not _has_mesh():
        return function
    return jax.shard_map(function, in_specs=takes, out_specs=gives, check_vma=False)


def sum_over(axes: Any, x: jax.Array) -> jax.Array:
    """Returns the sum of what each device along some axes has as `x`."""
    return jax.lax.psum(x, axes) if _has_mesh() else x


def highest_over(axes: Any, x: jax.Array) -> jax.Array:
    """Returns the highest of the same, element by element."""
    return jax.lax.pmax(x, axes) if _has_mesh() else x


def index_along(axis: str) -> Any:
    """Returns the number of the device along an axis."""
    return jax.lax.axis_index(axis) if _has_mesh() else 0


def spec_of(x: jax.Array) -> list:
    """Returns the axes over which each dim of `x` is cut, one entry a dim."""
    spec = list(jax.typeof(x).sharding.spec.partitions)
    return spec + [None] * (jnp.ndim(x) - len(spec))


def bytes_per_device(tree: Any) -> int:
    """Returns how many bytes of the described arrays one device holds, without padding."""

    def size(leaf):
        shape = leaf.sharding.shard_shape(leaf.shape)
        return math.prod(shape) * np.dtype(leaf.dtype).itemsize

    return sum(size(leaf) for leaf in jax.tree.leaves(tree))
