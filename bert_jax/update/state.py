"""The state that training carries from one step to the next.

It has no random key, because seed and step determine all randomness.
"""

from dataclasses import dataclass
from typing import Any, Self

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from bert_jax.config import TrainConfig
from bert_jax.model import bert, sharding
from bert_jax.update import optimizers, skip_updates


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TrainState:
    """`step` counts finished updates (int32 scalar); moments and parameters are float32.

    `recent_norms` are the last gradient norms (skip_updates.py).
    """

    step: jax.Array
    params: bert.Params
    opt_state: Any
    recent_norms: jax.Array

    @classmethod
    def create(cls, config: TrainConfig, params: bert.Params | None = None) -> Self:
        """Returns the start of a run: new parameters from the seed, or the given ones; zero
        moments.
        """
        if params is None:
            params = bert.init_params(config.model, config.head, seed=config.seed)
        opt_state = optimizers.make(config.optimizer).init(params)
        return cls(jnp.zeros([], jnp.int32), params, opt_state, skip_updates.empty_norms())

    @classmethod
    def initial(cls, config: TrainConfig, mesh: Mesh) -> Self:
        """Returns `create(config)`, with each array computed on the devices that store it."""
        if jax.process_count() == 1:
            # One operation at a time, each compiled once for all runs of this process.
            return cls.create(config).to_mesh(mesh, shard_weights=config.mesh.shard_weights)
        layout = jax.tree.map(lambda leaf: leaf.sharding, cls.abstract(config, mesh))
        return jax.jit(lambda: cls.create(config), out_shardings=layout)()

    @classmethod
    def abstract(cls, config: TrainConfig, mesh: Mesh) -> Self:
        """Returns the shapes, types and shardings of a state, without its values."""
        params = bert.abstract_params(config.model, config.head)
        shapes = jax.eval_shape(lambda params: cls.create(config, params), params)
        layout = sharding.param_shardings(
            shapes, mesh=mesh, shard_weights=config.mesh.shard_weights
        )
        return jax.tree.map(
            lambda leaf, where: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where),
            shapes,
            layout,
        )

    def to_mesh(self, mesh: Mesh, *, shard_weights: bool = True) -> Self:
        """Returns the same state, sharded over the mesh."""
        return jax.device_put(
            self, sharding.param_shardings(self, mesh=mesh, shard_weights=shard_weights)
        )
