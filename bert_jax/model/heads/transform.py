"""The transformation of a masked-LM head, which ModernBERT's classifiers also use."""

from typing import Any

import jax
from flax import nnx

from bert_jax.config import ModelConfig
from bert_jax.model.heads.part import Context
from bert_jax.model.layers import Linear, Norm, activation


class Transform(nnx.Module):
    """A linear layer, the activation of the encoder, and a norm."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        width, has_bias = config.hidden_size, config.linear_bias
        self.hidden_act = config.hidden_act
        self.dense = Linear(width, width, config=config, rngs=rngs, has_bias=has_bias)
        self.layer_norm = Norm(width, config=config)

    def __call__(self, x: jax.Array, context: Context | None = None) -> jax.Array:
        # `context` is unused: the signature is that of `Pooler`, which this class can replace.
        return self.layer_norm(activation(self.hidden_act, self.dense(x)))


def from_masked_lm(mlm: dict[str, Any]) -> dict[str, Any]:
    """Returns the transformation of a masked-LM head as parameters of a `Transform`."""
    return {"dense": mlm["transform"], "layer_norm": mlm["layer_norm"]}
