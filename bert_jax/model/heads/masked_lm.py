"""The masked-LM head: scores over the vocabulary at the masked positions.

Dims: B batch, M masked positions, D width, V vocabulary.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.config import HeadConfig, ModelConfig
from bert_jax.model.heads.part import Context, Part
from bert_jax.model.heads.sliced_scores import SlicedScores
from bert_jax.model.layers import Embed, Linear, Norm, activation, split_rows


class MaskedLMHead(nnx.Module):
    """A transformation, and the word embedding (Devlin et al. 2019) or a separate matrix as output
    matrix. The transformation is a linear layer, an activation and a norm, or two activated linear
    layers.
    """

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        width, inner = config.table_size, config.masked_lm_inner_size
        act = config.masked_lm_act
        self.act = config.hidden_act if act == "hidden_act" else act
        linear = partial(Linear, config=config, rngs=rngs, has_bias=config.linear_bias)
        has_transform = config.masked_lm_transform
        self.transform = linear(config.hidden_size, inner or width) if has_transform else None
        has_two = has_transform and inner > 0
        self.transform_back = linear(inner, width) if has_two else None
        has_norm = has_transform and not has_two
        self.layer_norm = Norm(width, config=config) if has_norm else None
        words, is_tied = config.vocab_size, config.tie_word_embeddings
        self.num_words = words
        self.decoder = None if is_tied else Embed(words, width, config=config, rngs=rngs)
        self.bias = nnx.Param(jnp.zeros(words, jnp.float32)) if config.decoder_bias else None

    def __call__(self, x_BMD: jax.Array, word: Embed) -> jax.Array:
        x_BMD, output, bias_V = self._factors(x_BMD, word)
        return output.logits(x_BMD, bias_V)

    def sliced(self, x_BMD: jax.Array, word: Embed, slices: int) -> SlicedScores:
        """Returns the same scores, computed later in slices."""
        x_BMD, output, bias_V = self._factors(x_BMD, word)
        return SlicedScores(x_BMD, output.columns(x_BMD.dtype), bias_V, slices)

    def _factors(self, x_BMD: jax.Array, word: Embed) -> tuple[jax.Array, Embed, jax.Array]:
        if self.transform is not None:
            x_BMD = activation(self.act, self.transform(x_BMD))
        if self.transform_back is not None:
            x_BMD = activation(self.act, self.transform_back(x_BMD))
        if self.layer_norm is not None:
            x_BMD = self.layer_norm(x_BMD)
        # Tokens that the mesh adds as padding can never be predicted.
        bias = jnp.zeros(self.num_words) if self.bias is None else self.bias[...]
        output = word if self.decoder is None else self.decoder
        return x_BMD, output, split_rows(bias, fill=-jnp.inf, rows=output.embedding.shape[0])


class _Part(Part):
    output_bias = ("bias",)

    def build(self, config: ModelConfig, head: HeadConfig, *, rngs: nnx.Rngs) -> MaskedLMHead:
        return MaskedLMHead(config, rngs=rngs)

    def positions(self, batch: Mapping[str, jax.Array]) -> jax.Array | None:
        return batch.get("mlm_positions")

    def __call__(self, module: Any, x_BRD: Any, context: Context) -> dict[str, jax.Array]:
        if context.loss_slices == 1:
            return {"mlm_logits": module(x_BRD, context.word)}
        return {"mlm_scores": module.sliced(x_BRD, context.word, context.loss_slices)}


MASKED_LM = _Part()
