"""Lists the sharding of each parameter of a config on a mesh, without its devices."""

from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType

from bert_jax.config import TrainConfig
from bert_jax.errors import UsageError
from bert_jax.model import sharding
from bert_jax.update.state import TrainState
from bert_jax_lab.planning.topologies import Topology


def placements(config: TrainConfig, topology: Topology) -> list[dict[str, Any]]:
    """Returns for every parameter its `name`, `shape`, `spec`, the mesh axis that shards each dim,
    or None, and `bytes` per device. Needs neither devices nor a compiler.
    """
    mesh = abstract_mesh(config, topology)
    with jax.sharding.use_abstract_mesh(mesh):
        params = TrainState.abstract(config, mesh).params  # type: ignore[arg-type]
    return [
        {
            "name": ".".join(str(entry.key) for entry in path),  # type: ignore[attr-defined]
            "shape": leaf.shape,
            "spec": ["fsdp" if cut == sharding.FSDP else cut for cut in sharding.spec_of(leaf)],
            "bytes": sharding.bytes_per_device(leaf),
        }
        for path, leaf in jax.tree_util.tree_leaves_with_path(params)
    ]


def abstract_mesh(config: TrainConfig, topology: Topology) -> AbstractMesh:
    """Returns the config's mesh. Raises `UsageError` if it does not cover the topology."""
    tensor, fsdp = config.mesh.tensor, config.mesh.fsdp
    if fsdp == -1:
        fsdp = topology.devices // (topology.slices * tensor)
    if topology.slices * fsdp * tensor != topology.devices:
        raise UsageError(
            f"config {config.name!r} on {topology.name}: a mesh of {topology.slices} x {fsdp} x "
            f"{tensor} (slice x fsdp x tensor) does not cover {topology.devices} devices"
        )
    return AbstractMesh(
        (topology.slices, fsdp, 1, tensor),
        sharding.AXES,
        axis_types=(AxisType.Explicit,) * len(sharding.AXES),
    )
