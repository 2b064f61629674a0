"""The masked language model: scores over the vocabulary at the masked positions.

Dims: B batch, M masked positions, D width, V vocabulary.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.config import HeadConfig, ModelConfig
from bert_jax.model.heads.part import Context, Part
from bert_jax.model.layers import Embed, Linear, Norm, activation, split_rows


class MaskedLMHead(nnx.Module):
    """A transformation and the word embedding as output matrix (Devlin et al. 2019)."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        width = config.table_size
        self.hidden_act = config.hidden_act
        self.transform = Linear(
            config.hidden_size, width, config=config, rngs=rngs, has_bias=config.linear_bias
        )
        self.layer_norm = Norm(width, config=config)
        self.bias = nnx.Param(jnp.zeros(config.vocab_size, jnp.float32))

    def __call__(self, x_BMD: jax.Array, word: Embed) -> jax.Array:
        h_BMD = activation(self.hidden_act, self.transform(x_BMD))
        # The sub-words that tensor parallelism adds can never be the answer.
        return word.logits(self.layer_norm(h_BMD)) + split_rows(self.bias[...], fill=-jnp.inf)


class _Part(Part):
    output_bias = ("bias",)

    def build(self, config: ModelConfig, head: HeadConfig, *, rngs: nnx.Rngs) -> MaskedLMHead:
        return MaskedLMHead(config, rngs=rngs)

    def positions(self, batch: Mapping[str, jax.Array]) -> jax.Array | None:
        return batch.get("mlm_positions")

    def __call__(self, module: Any, x_BRD: Any, context: Context) -> dict[str, jax.Array]:
        return {"mlm_logits": module(x_BRD, context.word)}


MASKED_LM = _Part()
