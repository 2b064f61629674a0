"""The next-sentence head: whether segment b follows segment a (Devlin et al. 2019)."""

from typing import Any

import jax
from flax import nnx

from bert_jax.config import HeadConfig, ModelConfig
from bert_jax.model.heads.part import Context, Part
from bert_jax.model.layers import Linear


class _Part(Part):
    needs = "pooler"

    def build(self, config: ModelConfig, head: HeadConfig, *, rngs: nnx.Rngs) -> Linear:
        return Linear(config.hidden_size, 2, config=config, rngs=rngs)

    def __call__(self, module: Any, x_BRD: Any, context: Context) -> dict[str, jax.Array]:
        return {"nsp_logits": module.scores(context.outputs["pooled_texts"])}


NEXT_SENTENCE = _Part()
