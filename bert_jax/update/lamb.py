"""LAMB: Adam's direction, scaled for each tensor to the tensor's own size.

You et al. 2020, "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes"
(arXiv:1904.00962); which tensors are left out follows google-research/albert lamb_optimizer.py.
"""

from typing import ClassVar

import optax

from bert_jax.config import OptimizerConfig
from bert_jax.config.entries import entry
from bert_jax.update.optimizers import ADAMW, adam_with_decay, decay_mask


@entry
class Lamb:
    """LAMB at a learning rate of 1. The step of a tensor w is |w| / |r| times
    r = Adam(w) + decay x w.

    The factor is 1 where either norm is 0, and for biases and norm scales, which have no decay
    either. A norm is that of one layer's whole tensor. ALBERT's LAMB has no bias correction, the
    paper's has: `bias_correction` chooses.
    """

    reads: ClassVar = (*ADAMW, "bias_correction")

    def __call__(self, config: OptimizerConfig) -> optax.GradientTransformation:
        trust = optax.masked(optax.scale_by_trust_ratio(), decay_mask)
        return optax.chain(adam_with_decay(config, clip_norm=0.0), trust, optax.scale(-1.0))
