"""LAMB: Adam's direction, scaled per tensor to the norm of the tensor.

You et al. 2020, "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes"
(arXiv:1904.00962); the excluded tensors follow google-research/albert lamb_optimizer.py.
"""

import optax

from bert_jax.config import Optimizer
from bert_jax.config.fields import section, setting
from bert_jax.update.optimizers import adam_with_decay, decay_mask


@section
class Lamb(Optimizer, kind="lamb"):
    """LAMB at a learning rate of 1. The step of a tensor w is |w| / |r| times r = Adam(w) + decay x
    w.

    The factor is 1 if either norm is 0, and for biases and norm scales, which also have no decay. A
    norm covers the whole tensor of one layer. The paper's LAMB has bias correction, ALBERT's has
    not.
    """

    bias_correction: bool = setting(False, "Whether Adam corrects the bias, as in the paper.")

    def transformation(self) -> optax.GradientTransformation:
        trust = optax.masked(optax.scale_by_trust_ratio(), decay_mask)
        adam = adam_with_decay(self, bias_correction=self.bias_correction, clip_norm=0.0)
        return optax.chain(adam, trust, optax.scale(-1.0))
