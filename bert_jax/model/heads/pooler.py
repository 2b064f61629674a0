"""The pooler: one vector for each text, from its [CLS] token (Devlin et al. 2019)."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.config import HeadConfig, ModelConfig
from bert_jax.model.heads.part import Context, Part
from bert_jax.model.layers import Linear
from bert_jax.model.sharding import over_batch


class Pooler(nnx.Module):
    """A linear map and tanh of the [CLS] token."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        self.dense = Linear(config.hidden_size, config.hidden_size, config=config, rngs=rngs)

    def __call__(self, x_BPD: jax.Array) -> jax.Array:
        return jnp.tanh(self.dense(x_BPD))


class _Part(Part):
    """Reads the first token, or where the batch says that texts begin."""

    def build(self, config: ModelConfig, head: HeadConfig, *, rngs: nnx.Rngs) -> Pooler:
        return Pooler(config, rngs=rngs)

    def positions(self, batch: Mapping[str, jax.Array]) -> jax.Array:
        rows = batch["input_ids"].shape[0]
        first_B1 = jnp.zeros((rows, 1), jnp.int32, out_sharding=over_batch())
        pairs_BP = batch.get("nsp_positions", first_B1)
        return batch.get("text_positions", pairs_BP)

    def __call__(self, module: Any, x_BRD: Any, context: Context) -> dict[str, jax.Array]:
        pooled_BPD = module(x_BRD)
        is_packed = "text_positions" in context.batch
        return {
            "pooled": pooled_BPD if is_packed else pooled_BPD[:, 0],
            "pooled_texts": pooled_BPD,
        }


POOLER = _Part()
