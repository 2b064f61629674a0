"""Adafactor: a second moment of rows and columns instead of one for each weight, and no first.

Shazeer and Stern 2018, "Adafactor: Adaptive Learning Rates with Sublinear Memory Cost"
(arXiv:1804.04235).
"""

from typing import ClassVar

import optax

from bert_jax.config import OptimizerConfig
from bert_jax.config.entries import entry
from bert_jax.update.optimizers import decay_mask


@entry
class Adafactor:
    """Adafactor at a learning rate of 1, made of optax's parts.

    The rate is relative to a tensor's own size (at least 0.001, in root mean square), so that it is
    some hundred times AdamW's.
    """

    reads: ClassVar = ("weight_decay", "clip_norm")

    def __call__(self, config: OptimizerConfig) -> optax.GradientTransformation:
        return optax.chain(
            optax.scale_by_factored_rms(),
            optax.clip_by_block_rms(1.0),
            # At the relative rate, as transformers has it; optax.adafactor's own is at no rate.
            optax.add_decayed_weights(config.weight_decay, mask=decay_mask),
            optax.scale_by_param_block_rms(),
            optax.scale(-1.0),
        )
