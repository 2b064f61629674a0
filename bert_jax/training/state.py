"""What training carries from one step to the next. No random key: it follows from seed and step."""

from dataclasses import dataclass
from typing import Any, Self

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from bert_jax.config import TrainConfig
from bert_jax.model import heads, sharding
from bert_jax.training import guard
from bert_jax.training.optimizer import adamw


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TrainState:
    """`step` counts finished updates (int32 scalar); moments and parameters are float32.

    `recent_norms` are the last gradient norms (guard.py).
    """

    step: jax.Array
    params: heads.Params
    opt_state: Any
    recent_norms: jax.Array

    @classmethod
    def create(cls, config: TrainConfig, params: heads.Params | None = None) -> Self:
        """A run's beginning: fresh parameters from the seed, or the given ones; zero moments."""
        if params is None:
            params = heads.init_params(config.model, config.head, seed=config.seed)
        opt_state = adamw(config.optimizer).init(params)
        return cls(jnp.zeros([], jnp.int32), params, opt_state, guard.no_norms())

    @classmethod
    def initial(cls, config: TrainConfig, mesh: Mesh) -> Self:
        """`create(config)`, each part of it computed where it is to lie."""
        if jax.process_count() == 1:
            # One operation at a time, each compiled once for all runs of this process.
            return cls.create(config).place(mesh, shard_weights=config.mesh.shard_weights)
        layout = jax.tree.map(lambda leaf: leaf.sharding, cls.abstract(config, mesh))
        return jax.jit(lambda: cls.create(config), out_shardings=layout)()

    @classmethod
    def abstract(cls, config: TrainConfig, mesh: Mesh) -> Self:
        """Shapes, types and shardings of a state, without its values."""
        shapes = jax.eval_shape(lambda: cls.create(config))
        layout = sharding.layout(shapes, mesh=mesh, shard_weights=config.mesh.shard_weights)
        return jax.tree.map(
            lambda leaf, where: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where),
            shapes,
            layout,
        )

    def place(self, mesh: Mesh, *, shard_weights: bool = True) -> Self:
        """The same state, laid out over the mesh."""
        return jax.device_put(self, sharding.layout(self, mesh=mesh, shard_weights=shard_weights))
