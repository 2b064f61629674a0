"""The pre-training heads, and the model they complete.

Dims: B batch, L length, D width, M masked positions, P pairs in a row (1), V vocabulary.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.config import ComputeConfig, ModelConfig
from bert_jax.model.dropout import DropoutKey
from bert_jax.model.encoder import Encoder, gather_early
from bert_jax.model.layers import Embed, LayerNorm, Linear, activation, pick, split_rows

Params = dict[str, Any]


class Pooler(nnx.Module):
    """Linear and tanh of the [CLS] token."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        self.dense = Linear(config.hidden_size, config.hidden_size, config=config, rngs=rngs)

    def __call__(self, x_BLD: jax.Array, positions_BP: jax.Array) -> jax.Array:
        return jnp.tanh(self.dense(pick(x_BLD, positions_BP)))


class MaskedLanguageModel(nnx.Module):
    """Scores over the vocabulary at the masked positions; the matrix is the word embedding."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        width = config.hidden_size
        self.hidden_act = config.hidden_act
        self.transform = Linear(width, width, config=config, rngs=rngs)
        self.layer_norm = LayerNorm(width, config=config)
        self.bias = nnx.Param(jnp.zeros(config.vocab_size, jnp.float32))

    def __call__(self, x_BLD: jax.Array, positions_BM: jax.Array, word: Embed) -> jax.Array:
        h_BMD = activation(self.hidden_act, self.transform(pick(x_BLD, positions_BM)))
        # The sub-words that tensor parallelism adds can never be the answer.
        return word.attend(self.layer_norm(h_BMD)) + split_rows(self.bias[...], fill=-jnp.inf)


class BertForPreTraining(nnx.Module):
    """Encoder, pooler, masked-LM head and next-sentence head (Devlin et al. 2019)."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        self.encoder = Encoder(config, rngs=rngs)
        self.pooler = Pooler(config, rngs=rngs)
        self.mlm = MaskedLanguageModel(config, rngs=rngs)
        self.nsp = Linear(config.hidden_size, 2, config=config, rngs=rngs)

    def __call__(
        self, batch: dict[str, jax.Array], *, compute: ComputeConfig, key: DropoutKey | None
    ) -> dict[str, jax.Array]:
        x_BLD = self.encoder(batch, compute=compute, key=key)
        pooled_BPD = self.pooler(x_BLD, batch["nsp_positions"])
        return {
            "mlm_logits": self.mlm(x_BLD, batch["mlm_positions"], self.encoder.embeddings.word),
            "nsp_logits": self.nsp(pooled_BPD).astype(jnp.float32),
        }


def init_params(config: ModelConfig, *, seed: int) -> Params:
    """Fresh float32 parameters: a nested dict, one subtree a layer."""
    model = BertForPreTraining(config, rngs=nnx.Rngs(seed))
    return nnx.to_pure_dict(nnx.split(model)[1])


def abstract_params(config: ModelConfig) -> Params:
    """Shapes and types of `init_params`, without computing anything."""
    return jax.eval_shape(lambda: init_params(config, seed=0))


def parameter_count(params: Params) -> int:
    """Numbers in `params`: 110,106,428 for Base with both heads, 336,226,108 for Large."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params))


def apply(
    params: Params,
    batch: dict[str, jax.Array],
    *,
    config: ModelConfig,
    compute: ComputeConfig,
    key: DropoutKey | None = None,
) -> dict[str, jax.Array]:
    """float32 `mlm_logits` `[B, M, V]`, `nsp_logits` `[B, P, 2]`. `key=None` means evaluation.

    `params` lie as they are stored. Under tensor parallelism V is filled up to what divides.
    """
    abstract = nnx.eval_shape(lambda: BertForPreTraining(config, rngs=nnx.Rngs(0)))
    graph, state = nnx.split(abstract)
    nnx.replace_by_pure_dict(state, gather_early(params, compute))
    return nnx.merge(graph, state)(batch, compute=compute, key=key)
