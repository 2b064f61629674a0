"""A custom mixer: attention in which a token only attends to its neighbors.

Local attention as in Longformer (Beltagy et al. 2020), in every layer. `model.attention_window` is
the built-in alternative.

    bert-jax pretrain examples/extend/window.py --corpus CORPUS --workdir RUN
"""

import dataclasses

from bert_jax.config import TrainConfig
from bert_jax.config_loader import load_config
from bert_jax.model.mixers.self_attention import SelfAttention
from bert_jax.registry import MIXERS

WINDOW = 16


class Windowed(SelfAttention):
    """Attends to half of the window on either side; the attention page shows the mask."""

    def __call__(self, block, x_BLD, x_BRD, *, mask, **rest):
        near = dataclasses.replace(mask, window=WINDOW)
        return super().__call__(block, x_BLD, x_BRD, mask=near, **rest)

    def flops(self, model, layer, **sizes):
        return super().flops(model, dataclasses.replace(layer, window=WINDOW), **sizes)


MIXERS.register("windowed-attention", Windowed())


def config() -> TrainConfig:
    return load_config("tiny_docs_cpu", ["name=windowed", "model.mixer=windowed-attention"])
