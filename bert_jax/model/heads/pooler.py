"""The pooler: one vector per text, from its [CLS] token (Devlin et al. 2019) or all its tokens.

Dims: B rows, L length, P texts of a row, D width.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.config import HeadConfig, ModelConfig
from bert_jax.model.dropout import dropout
from bert_jax.model.heads.part import EVERY, Context, Part
from bert_jax.model.heads.transform import Transform
from bert_jax.model.layers import Linear, activation, gather_ids
from bert_jax.model.sharding import over_batch

# The number of the pooler's dropout site; the classifier uses the key itself.
_BEFORE = 1


class Pooler(nnx.Module):
    """A linear layer on the [CLS] token, and tanh; or, as in ELECTRA's classifiers, dropout, a
    linear layer and exact GELU.
    """

    def __init__(self, config: ModelConfig, head: HeadConfig, *, rngs: nnx.Rngs):
        self.act = head.pooler_act
        self.dense = Linear(config.hidden_size, config.hidden_size, config=config, rngs=rngs)

    def __call__(self, x_BPD: jax.Array, context: Context) -> jax.Array:
        if self.act == "tanh":
            return jnp.tanh(self.dense(x_BPD))
        key = None if context.key is None else context.key.fold(_BEFORE)
        return activation(self.act, self.dense(dropout(x_BPD, key, rate=context.dropout_rate)))


def beginnings(batch: Mapping[str, jax.Array]) -> jax.Array:
    """Returns the first token of each text `[B, P]`: token 0, or `text_positions` of the batch."""
    rows = batch["input_ids"].shape[0]
    first_B1 = jnp.zeros((rows, 1), jnp.int32, out_sharding=over_batch())
    pairs_BP = batch.get("nsp_positions", first_B1)
    return batch.get("text_positions", pairs_BP)


def means(x_BLD: jax.Array, batch: Mapping[str, jax.Array]) -> jax.Array:
    """Returns the mean over the tokens of each text without padding: float32 `[B, P, D]`. A text
    without tokens gets zeros.
    """
    ids_BL = batch["sequence_ids"]
    ids_BP = gather_ids(ids_BL, beginnings(batch))
    is_of_BPL = (ids_BL[:, None] == ids_BP[..., None]) & (ids_BL[:, None] > 0)
    sums_BPD = jnp.einsum(
        "bpl,bld->bpd",
        is_of_BPL.astype(x_BLD.dtype),
        x_BLD,
        precision=jax.lax.Precision.HIGHEST,
        preferred_element_type=jnp.float32,
    )
    counts_BP1 = jnp.maximum(jnp.sum(is_of_BPL, axis=-1, keepdims=True), 1)
    return sums_BPD / counts_BP1


class _Part(Part):
    """Reads the first token of the row, or of each text of the batch."""

    def of(self, config: ModelConfig) -> Part:
        return _POOLINGS[config.classifier_pooling]

    def build(self, config: ModelConfig, head: HeadConfig, *, rngs: nnx.Rngs) -> nnx.Module:
        return Transform(config, rngs=rngs) if head.transform else Pooler(config, head, rngs=rngs)

    def positions(self, batch: Mapping[str, jax.Array]) -> jax.Array:
        return beginnings(batch)

    def pooled(self, module: Any, x_BRD: jax.Array, context: Context) -> jax.Array:
        """Returns the vectors of the texts, `[B, P, D]`."""
        return module(x_BRD, context)

    def __call__(self, module: Any, x_BRD: Any, context: Context) -> dict[str, jax.Array]:
        pooled_BPD = self.pooled(module, x_BRD, context)
        is_packed = "text_positions" in context.batch
        return {
            "pooled": pooled_BPD if is_packed else pooled_BPD[:, 0],
            "pooled_texts": pooled_BPD,
        }


class _OfMean(_Part):
    """Reads every position, and applies the pooler to the mean of each text."""

    def positions(self, batch: Mapping[str, jax.Array]) -> Any:
        return EVERY

    def pooled(self, module: Any, x_BRD: jax.Array, context: Context) -> jax.Array:
        return super().pooled(module, means(x_BRD, context.batch).astype(x_BRD.dtype), context)


class _Late(_OfMean):
    """Applies the pooler to every position, and returns the mean of each text."""

    def pooled(self, module: Any, x_BRD: jax.Array, context: Context) -> jax.Array:
        mapped_BLD = _Part.pooled(self, module, x_BRD, context)
        return means(mapped_BLD, context.batch).astype(mapped_BLD.dtype)


POOLER = _Part()
_POOLINGS = {"cls": POOLER, "mean": _OfMean(), "late": _Late()}
