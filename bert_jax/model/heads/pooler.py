"""The pooler: one vector for each text, from its [CLS] token (Devlin et al. 2019)."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.config import HeadConfig, ModelConfig
from bert_jax.model.dropout import dropout
from bert_jax.model.heads.part import Context, Part
from bert_jax.model.heads.transform import Transform
from bert_jax.model.layers import Linear, activation
from bert_jax.model.sharding import over_batch

# The number of the place where dropout is drawn; the classifier's own draw takes the key itself.
_BEFORE = 1


class Pooler(nnx.Module):
    """A linear map of the [CLS] token, and tanh; or as ELECTRA's classifiers have it exact GELU,
    with dropout before the map.
    """

    def __init__(self, config: ModelConfig, head: HeadConfig, *, rngs: nnx.Rngs):
        self.act = head.pooler_act
        self.dense = Linear(config.hidden_size, config.hidden_size, config=config, rngs=rngs)

    def __call__(self, x_BPD: jax.Array, context: Context) -> jax.Array:
        if self.act == "tanh":
            return jnp.tanh(self.dense(x_BPD))
        key = None if context.key is None else context.key.fold(_BEFORE)
        return activation(self.act, self.dense(dropout(x_BPD, key, rate=context.dropout_rate)))


class _Part(Part):
    """Reads the first token, or where the batch says that texts begin."""

    def build(self, config: ModelConfig, head: HeadConfig, *, rngs: nnx.Rngs) -> nnx.Module:
        return Transform(config, rngs=rngs) if head.transform else Pooler(config, head, rngs=rngs)

    def positions(self, batch: Mapping[str, jax.Array]) -> jax.Array:
        rows = batch["input_ids"].shape[0]
        first_B1 = jnp.zeros((rows, 1), jnp.int32, out_sharding=over_batch())
        pairs_BP = batch.get("nsp_positions", first_B1)
        return batch.get("text_positions", pairs_BP)

    def __call__(self, module: Any, x_BRD: Any, context: Context) -> dict[str, jax.Array]:
        is_transform = isinstance(module, Transform)
        pooled_BPD = module(x_BRD) if is_transform else module(x_BRD, context)
        is_packed = "text_positions" in context.batch
        return {
            "pooled": pooled_BPD if is_packed else pooled_BPD[:, 0],
            "pooled_texts": pooled_BPD,
        }


POOLER = _Part()
