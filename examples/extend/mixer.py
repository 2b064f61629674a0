"""A custom mixer without attention: a short convolution over the sequence.

Each column of a token becomes a weighted sum of this column in its neighbors, as in lightweight
convolutions (Wu et al. 2019) and the first half of Hyena; a linear layer mixes the columns.

    bert-jax pretrain examples/extend/mixer.py --corpus CORPUS --workdir RUN
"""

import jax.numpy as jnp
from flax import nnx

from bert_jax.config import TrainConfig
from bert_jax.config_loader import load_config
from bert_jax.model.layers import Linear, gather_positions, truncated_normal
from bert_jax.model.mixers import Mixer
from bert_jax.model.roles import Role
from bert_jax.registry import MIXERS

TAPS = 5


class Filter(nnx.Module):
    def __init__(self, config, *, rngs):
        self.taps = truncated_normal(rngs, (TAPS, config.hidden_size), stddev=TAPS**-0.5)


class ShortConvolution(Mixer):
    # The default rules by parameter name do not cover this parameter.
    roles = {"filter.taps": Role(is_decayed=True, in_compute_type=True)}

    def build(self, config, layer, *, rngs):
        width = config.hidden_size
        return {
            "filter": Filter(config, rngs=rngs),
            "filter_output": Linear(width, width, config=config, rngs=rngs),
        }

    def __call__(self, block, x_BLD, x_BRD, *, mask, read_BR, **rest):
        ids_BL, place_BL = mask.key_ids_BS, mask.key_positions_BS
        y_BLD = jnp.zeros_like(x_BLD)
        for tap, weights_D in enumerate(block.filter.taps[...].astype(x_BLD.dtype)):
            ahead = tap - TAPS // 2
            moved = [jnp.roll(a, -ahead, axis=1) for a in (x_BLD, ids_BL, place_BL)]
            # The neighbor belongs to the same sequence and is not from the other end of the row.
            is_near_BL = (moved[1] == ids_BL) & (moved[2] - place_BL == ahead)
            y_BLD += jnp.where(is_near_BL[..., None], moved[0] * weights_D, 0)
        return block.filter_output(y_BLD if read_BR is None else gather_positions(y_BLD, read_BR))

    def flops(self, model, layer, *, length, queries):
        return 2 * queries * model.hidden_size**2


MIXERS.register("short-convolution", ShortConvolution())


def config() -> TrainConfig:
    return load_config("tiny_docs_cpu", ["name=convolution", "model.mixer=short-convolution"])
