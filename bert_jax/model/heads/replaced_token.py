"""Replaced-token detection: a small generator, and a head that detects the tokens it replaced
(Clark et al. 2020, ELECTRA).

The generator is a complete `Bert` with a masked-LM head that shares embedding tables with the
encoder. The parameters it does not share are the subtree of its part.

Dims: B batch, L length, D width.
"""

from collections.abc import Mapping
from typing import Any

import jax
from flax import nnx

from bert_jax.config import HeadConfig, ModelConfig
from bert_jax.model.encoder import Encoder
from bert_jax.model.heads.masked_lm import MaskedLMHead
from bert_jax.model.heads.part import EVERY, Context, Part
from bert_jax.model.layers import Linear, activation
from bert_jax.registry import POSITIONS

_TABLES = ("word", "position", "token_type")
# Modules that the generator shares with the encoder, by `embedding_sharing`; most first.
SHARED = {"all": (*_TABLES, "layer_norm"), "embeddings": _TABLES, "none": ()}
# The heads of the generator.
GENERATOR_HEAD = HeadConfig(parts=("mlm",))


class Generator(nnx.Module):
    """The parameters that the generator does not share with the encoder."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        generator = config.generator()
        self.encoder = Encoder(generator, rngs=rngs)
        for name in SHARED[config.embedding_sharing]:
            delattr(self.encoder.embeddings, name)
        self.mlm = MaskedLMHead(generator, rngs=rngs)


def generator_params(params: Mapping[str, Any], model: ModelConfig) -> dict[str, Any]:
    """Returns the parameters of the generator as a model: `model.generator()` with a masked-LM
    head.

    `params` belong to `model`; shared arrays are those in the encoder.
    """
    own, tables = params["generator"], params["encoder"]["embeddings"]
    shared = {name: tables[name] for name in SHARED[model.embedding_sharing] if name in tables}
    embeddings = shared | own["encoder"].get("embeddings", {})
    return {**own, "encoder": own["encoder"] | {"embeddings": embeddings}}


def own_params(generator: Mapping[str, Any], sharing: str) -> dict[str, Any]:
    """Returns the parameters that a generator does not share: inverse of `generator_params`."""
    encoder = dict(generator["encoder"])
    tables = encoder.pop("embeddings")
    kept = {name: table for name, table in tables.items() if name not in SHARED[sharing]}
    return {**generator, "encoder": encoder | ({"embeddings": kept} if kept else {})}


class _GeneratorPart(Part):
    """Only parameters: the objective runs the generator (objectives/replaced_token.py)."""

    output_bias = ("mlm", "bias")

    def build(self, config: ModelConfig, head: HeadConfig, *, rngs: nnx.Rngs) -> Generator:
        return Generator(config, rngs=rngs)

    def positions(self, batch: Mapping[str, jax.Array]) -> None:
        return None

    def can_share_positions(self, model: ModelConfig) -> bool:
        """Returns whether the positions of model and generator have equal shapes."""
        kind = POSITIONS[model.position_embedding_type]

        def shapes(model: ModelConfig) -> Any:
            made = nnx.eval_shape(lambda: kind(model, rngs=nnx.Rngs(0)))
            return jax.tree.map(lambda leaf: leaf.shape, nnx.to_pure_dict(nnx.state(made)))

        return kind.is_per_block or shapes(model) == shapes(model.generator())


class Discriminator(nnx.Module):
    """A transformation and one score per token: above 0 if the token was replaced."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        width = config.hidden_size
        self.hidden_act = config.hidden_act
        self.dense = Linear(width, width, config=config, rngs=rngs)
        self.prediction = Linear(width, 1, config=config, rngs=rngs)

    def __call__(self, x_BLD: jax.Array) -> jax.Array:
        return self.prediction.scores(activation(self.hidden_act, self.dense(x_BLD)))[..., 0]


class _DiscriminatorPart(Part):
    def build(self, config: ModelConfig, head: HeadConfig, *, rngs: nnx.Rngs) -> Discriminator:
        return Discriminator(config, rngs=rngs)

    def positions(self, batch: Mapping[str, jax.Array]) -> str:
        return EVERY

    def __call__(self, module: Any, x_BRD: Any, context: Context) -> dict[str, jax.Array]:
        return {"replaced_logits": module(x_BRD)}


GENERATOR = _GeneratorPart()
DISCRIMINATOR = _DiscriminatorPart()
