"""A mixer of your own: attention in which a token sees its neighbours only.

Local attention as Longformer has it (Beltagy et al. 2020), in every layer. `model.attention_window`
is the built-in way to the same.

    bert-jax pretrain examples/extend/window.py --corpus CORPUS --workdir RUN
"""

import dataclasses

from bert_jax.config import TrainConfig
from bert_jax.config_loader import load_config
from bert_jax.model.mixers.self_attention import SelfAttention
from bert_jax.registry import MIXERS

WINDOW = 16


class Windowed(SelfAttention):
    """Sees half of the window on either side: what the mask says, the attention page shows."""

    def __call__(self, block, x_BLD, x_BRD, *, mask, **rest):
        near = dataclasses.replace(mask, window=WINDOW)
        return super().__call__(block, x_BLD, x_BRD, mask=near, **rest)

    def flops(self, model, layer, **sizes):
        return super().flops(model, dataclasses.replace(layer, window=WINDOW), **sizes)


MIXERS.register("windowed-attention", Windowed())


def config() -> TrainConfig:
    return load_config("tiny_docs_cpu", ["name=windowed", "model.mixer=windowed-attention"])
