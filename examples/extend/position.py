"""A custom kind of position: a penalty for distance, added to the scores (ALiBi).

Press et al. 2022, "Train short, test long", adapted to encoders: the distance counts both ways.

    bert-jax pretrain examples/extend/position.py --corpus CORPUS --workdir RUN
    bert-jax fill-mask RUN --extend examples/extend/position.py "a [MASK] text"
"""

import jax.numpy as jnp

from bert_jax.config import TrainConfig
from bert_jax.config_loader import load_config
from bert_jax.model.positions import Position
from bert_jax.registry import POSITIONS


class LinearBias(Position):
    """Each head has a different slope: 2^(-8/H), 2^(-16/H), ..., as in the paper."""

    def bias(self, *, query_positions_BL, key_positions_BS, num_heads):
        slopes_H = 2.0 ** (-8.0 * (jnp.arange(num_heads) + 1) / num_heads)
        distance_BLS = jnp.abs(query_positions_BL[:, :, None] - key_positions_BS[:, None, :])
        return -slopes_H[:, None, None] * distance_BLS[:, None].astype(jnp.float32)


POSITIONS.register("linear-bias", LinearBias)


def config() -> TrainConfig:
    changes = ["name=linear_bias", "model.position_embedding_type=linear-bias"]
    return load_config("tiny_docs_cpu", changes)
