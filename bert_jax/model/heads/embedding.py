"""The embedding head: one vector per text of a row, without parameters.

Dims: B rows, L length, P texts of a row, D width.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.config import HeadConfig, ModelConfig
from bert_jax.model.heads.part import EVERY, Context, Part
from bert_jax.model.heads.pooler import beginnings, means
from bert_jax.model.layers import gather_ids, gather_positions


class Embedding(nnx.Module):
    """Stores the name of the pooling."""

    def __init__(self, pooling: str):
        self.pooling = pooling


def pooled(x_BLD: jax.Array, batch: Mapping[str, jax.Array], pooling: str) -> jax.Array:
    """Returns the vector of each text `[B, P, D]`, float32, [CLS] and [SEP] included.

    `text_positions` `[B, P]` is the first token of each text. The poolings equal those in
    sentence-transformers (sentence_transformer/modules/pooling.py).
    """
    if pooling == "mean":
        return means(x_BLD, batch)
    begins_BP = beginnings(batch)
    if pooling == "cls":
        return gather_positions(x_BLD, begins_BP).astype(jnp.float32)
    ids_BL = batch["sequence_ids"]
    is_of_BPL = ids_BL[:, None] == gather_ids(ids_BL, begins_BP)[..., None]
    if pooling == "lasttoken":
        last_BP = begins_BP + jnp.maximum(jnp.sum(is_of_BPL, axis=-1), 1) - 1
        return gather_positions(x_BLD, last_BP).astype(jnp.float32)
    x_BPLD = jnp.where(is_of_BPL[..., None], x_BLD[:, None], -jnp.inf)
    return jnp.max(x_BPLD, axis=2).astype(jnp.float32)


class _Embedding(Part):
    def build(self, config: ModelConfig, head: HeadConfig, *, rngs: nnx.Rngs) -> Embedding:
        return Embedding(head.pooling)

    def positions(self, batch: Mapping[str, jax.Array]) -> str:
        return EVERY

    def __call__(self, module: Any, x_BRD: Any, context: Context) -> dict[str, jax.Array]:
        return {"embeddings": pooled(x_BRD, context.batch, module.pooling)}


EMBEDDING = _Embedding()
