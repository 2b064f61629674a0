"""Task heads: a class or a number per text, a class per token, a span of tokens."""

from collections.abc import Mapping
from typing import Any

import jax
from flax import nnx

from bert_jax.config import HeadConfig, ModelConfig
from bert_jax.model.dropout import dropout
from bert_jax.model.heads.part import EVERY, Context, Part
from bert_jax.model.heads.transform import Transform
from bert_jax.model.layers import Linear


def classes(head: HeadConfig) -> int:
    """Returns the number of outputs: one per label, or one number for regression."""
    return max(1, len(head.labels))


class _SequenceClassifier(Part):
    needs = "pooler"

    def build(self, config: ModelConfig, head: HeadConfig, *, rngs: nnx.Rngs) -> Linear:
        return Linear(config.hidden_size, classes(head), config=config, rngs=rngs)

    def __call__(self, module: Any, x_BRD: Any, context: Context) -> dict[str, jax.Array]:
        pooled = dropout(context.outputs["pooled"], context.key, rate=context.dropout_rate)
        return {"sequence_logits": module.scores(pooled)}


class _OfTokens(Linear):
    """A linear layer on each token, optionally after a `Transform`."""

    def __init__(self, outputs: int, config: ModelConfig, head: HeadConfig, *, rngs: nnx.Rngs):
        super().__init__(config.hidden_size, outputs, config=config, rngs=rngs)
        self.transform = Transform(config, rngs=rngs) if head.transform else None

    def read(self, x_BLD: jax.Array) -> jax.Array:
        """Returns the input of the linear layer, before dropout."""
        return x_BLD if self.transform is None else self.transform(x_BLD)


class _EveryToken(Part):
    def positions(self, batch: Mapping[str, jax.Array]) -> str:
        return EVERY


class _TokenClassifier(_EveryToken):
    def build(self, config: ModelConfig, head: HeadConfig, *, rngs: nnx.Rngs) -> _OfTokens:
        return _OfTokens(classes(head), config, head, rngs=rngs)

    def __call__(self, module: Any, x_BRD: Any, context: Context) -> dict[str, jax.Array]:
        dropped_BLD = dropout(module.read(x_BRD), context.key, rate=context.dropout_rate)
        return {"token_logits": module.scores(dropped_BLD)}


class _SpanClassifier(_EveryToken):
    def build(self, config: ModelConfig, head: HeadConfig, *, rngs: nnx.Rngs) -> _OfTokens:
        return _OfTokens(2, config, head, rngs=rngs)

    def __call__(self, module: Any, x_BRD: Any, context: Context) -> dict[str, jax.Array]:
        # No dropout, as in google-research/bert run_squad.py.
        return {"span_logits": module.scores(module.read(x_BRD))}


SEQUENCE_CLASSIFIER = _SequenceClassifier()
TOKEN_CLASSIFIER = _TokenClassifier()
SPAN_CLASSIFIER = _SpanClassifier()
