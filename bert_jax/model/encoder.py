"""The stack of post-norm blocks (Vaswani et al. 2017, as google-research/bert modeling.py has it).

Dims: B batch, L length, R positions that are read, D width, H heads, K head size, F feed-forward
width, N layers.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.config import ComputeConfig, ModelConfig
from bert_jax.model.attention import attend, join_heads, split_heads
from bert_jax.model.dropout import DropoutKey, dropout
from bert_jax.model.layers import (
    Embeddings,
    LayerNorm,
    Linear,
    activation,
    pick,
    pick_numbers,
)
from bert_jax.model.sharding import gather

# Numbers of the places where dropout is drawn, folded into the key of a layer.
_PROBABILITIES, _ATTENTION_OUTPUT, _FEED_FORWARD_OUTPUT = range(3)
# The embeddings' dropout counts as a layer of its own; the blocks count from 0.
_EMBEDDINGS_LAYER = 2**31


class Block(nnx.Module):
    """Self-attention and feed-forward, each added to its input and then normalised."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        width = config.hidden_size
        linear = partial(Linear, config=config, rngs=rngs)
        self.hidden_act = config.hidden_act
        self.hidden_dropout = config.hidden_dropout_prob
        self.attention_dropout = config.attention_probs_dropout_prob
        self.num_heads = config.num_attention_heads
        self.query = linear(width, width)
        # A key's bias adds the same to all scores of a query, which softmax does not see: its
        # gradient is zero, and what could be computed would be rounding.
        self.key = linear(width, width, is_bias_trained=False)
        self.value = linear(width, width)
        self.attention_output = linear(width, width)
        self.attention_norm = LayerNorm(width, config=config)
        self.intermediate = linear(width, config.intermediate_size)
        self.output = linear(config.intermediate_size, width)
        self.output_norm = LayerNorm(width, config=config)

    def __call__(
        self,
        x_BLD: jax.Array,
        *,
        sequence_ids_BL: jax.Array,
        key: DropoutKey | None,
        read_BR: jax.Array | None = None,
    ) -> jax.Array:
        """`[B, L, D]`; with the positions `read_BR`, `[B, R, D]`: nothing else is computed.

        Every position is still attended to. A dropout mask is that of a place in the result.
        """

        def site(number):
            return None if key is None else key.fold(number)

        x_BRD, ids_BR = x_BLD, sequence_ids_BL
        if read_BR is not None:
            x_BRD, ids_BR = pick(x_BLD, read_BR), pick_numbers(sequence_ids_BL, read_BR)
        context_BHKR = attend(
            split_heads(self.query.to_columns(x_BRD), self.num_heads),
            split_heads(self.key.to_columns(x_BLD), self.num_heads),
            split_heads(self.value.to_columns(x_BLD), self.num_heads),
            query_ids_BL=ids_BR,
            key_ids_BS=sequence_ids_BL,
            key=site(_PROBABILITIES),
            dropout_rate=self.attention_dropout,
        )
        y_BRD = self.attention_output.from_columns(join_heads(context_BHKR))
        y_BRD = dropout(y_BRD, site(_ATTENTION_OUTPUT), rate=self.hidden_dropout)
        x_BRD = self.attention_norm(x_BRD + y_BRD)
        h_BRF = activation(self.hidden_act, self.intermediate(x_BRD))
        y_BRD = dropout(self.output(h_BRF), site(_FEED_FORWARD_OUTPUT), rate=self.hidden_dropout)
        return self.output_norm(x_BRD + y_BRD)


class Encoder(nnx.Module):
    """Embeddings and N blocks, each a subtree of its own: `layer_0`, `layer_1`, ..."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        self.num_layers = config.num_hidden_layers
        self.embeddings = Embeddings(config, rngs=rngs)
        for i in range(self.num_layers):
            setattr(self, f"layer_{i}", Block(config, rngs=rngs))

    def __call__(
        self,
        batch: dict[str, jax.Array],
        *,
        compute: ComputeConfig,
        key: DropoutKey | None,
        read_BR: jax.Array | None = None,
    ) -> jax.Array:
        """`[B, L, D]` in the compute type. Reads the four `[B, L]` arrays of `batch`.

        With the positions `read_BR`, `[B, R, D]`: the last block computes these alone. Pre-training
        reads a sixth of the positions, a classifier one of them.
        """
        x_BLD = self.embeddings(
            input_ids=batch["input_ids"],
            position_ids=batch["position_ids"],
            token_type_ids=batch["token_type_ids"],
            dtype=jnp.dtype(compute.dtype),
            key=None if key is None else key.fold(_EMBEDDINGS_LAYER),
        )
        blocks = [nnx.split(getattr(self, f"layer_{i}")) for i in range(self.num_layers)]
        if not blocks:  # as for the vectors of layer 0
            return x_BLD if read_BR is None else pick(x_BLD, read_BR)
        graph = blocks[0][0]

        def apply_block(x_BLD, layer, params, read_BR=None):
            layer_key = None if key is None else key.fold(layer)
            block = nnx.merge(graph, gather(params, dtype=compute.dtype))
            ids_BL = batch["sequence_ids"]
            return block(x_BLD, sequence_ids_BL=ids_BL, key=layer_key, read_BR=read_BR)

        apply_block = _rematerialised(apply_block, compute)
        # All blocks but the last are alike.
        *alike, (_, last) = blocks
        if compute.layers == "scan" and alike:
            stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *[p for _, p in alike])
            layers = jnp.arange(len(alike))
            x_BLD, _ = jax.lax.scan(
                lambda x, layer: (apply_block(x, *layer), None), x_BLD, (layers, stacked)
            )
        else:
            for i, (_, params) in enumerate(alike):
                x_BLD = apply_block(x_BLD, i, params)
        return apply_block(x_BLD, len(alike), last, read_BR)


def gather_early(params: dict[str, Any], compute: ComputeConfig) -> dict[str, Any]:
    """Working copies of all of a model's parameters but those that its blocks gather themselves."""
    encoder = params["encoder"]
    late = encoder.keys() - {"embeddings"} if compute.gather == "per_layer" else set()
    early = {name: part for name, part in encoder.items() if name not in late}
    gathered = gather(params | {"encoder": early}, dtype=compute.dtype)
    return gathered | {"encoder": encoder | gathered["encoder"]}


# What a working copy of the weights goes through on its way into a product.
_WAY_OF_WEIGHTS = {"convert_element_type", "reshard", "reshape"}


def _rematerialised(function, compute: ComputeConfig):
    """`function`, whose backward pass computes again what `compute` says."""
    if compute.remat == "full":
        return jax.checkpoint(function)
    if compute.remat == "dots":
        policy = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
        return jax.checkpoint(function, policy=policy)
    if compute.gather == "per_layer":
        return jax.checkpoint(function, policy=_all_but_weights)
    return function


def _all_but_weights(primitive: Any, *_: Any, **__: Any) -> bool:
    return primitive.name not in _WAY_OF_WEIGHTS
