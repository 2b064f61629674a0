"""Self-attention, the mixer of BERT.

Dims: B batch, L length, R positions that are read, D width, H heads, K head size.
"""

from collections.abc import Callable, Iterator
from functools import partial
from types import MappingProxyType
from typing import Any

import jax
from flax import nnx

from bert_jax.config import ModelConfig
from bert_jax.config.model import SelfAttentionOptions
from bert_jax.model.attention.heads import join_heads, repeat_heads, split_heads
from bert_jax.model.attention.local import keys_seen
from bert_jax.model.attention.need import Need
from bert_jax.model.dropout import DropoutKey
from bert_jax.model.layer_spec import LayerSpec
from bert_jax.model.layers import Linear
from bert_jax.model.mask import Mask
from bert_jax.model.mixers.mixer import Mixer
from bert_jax.model.mixers.scores import Score
from bert_jax.model.positions import Position
from bert_jax.model.roles import COLUMNS, CUT_BIAS, ROWS
from bert_jax.registry import POSITIONS, SCORES


class SelfAttention(Mixer):
    """Self-attention with several heads (Vaswani et al. 2017)."""

    # Sharded by heads, as in Megatron-LM (Shoeybi et al. 2019, section 3).
    roles = MappingProxyType(
        {
            **{
                f"{name}.kernel": COLUMNS._replace(joined="qkv")
                for name in ("query", "key", "value")
            },
            **{f"{name}.bias": CUT_BIAS for name in ("query", "key", "value")},
            "attention_output.kernel": ROWS,
        }
    )

    def problems(self, model: ModelConfig) -> Iterator[tuple[str, str]]:
        yield from POSITIONS[model.position_embedding_type].problems(model)
        yield from _score(model).problems(model)

    def build(
        self, config: ModelConfig, layer: LayerSpec, *, rngs: nnx.Rngs
    ) -> dict[str, nnx.Module]:
        width, kind = config.hidden_size, POSITIONS[config.position_embedding_type]
        score = _score(config)
        linear = partial(Linear, width, config=config, rngs=rngs, has_bias=config.linear_bias)
        # For most positions and scores, the bias of a key adds the same value to all scores of a
        # query, which softmax ignores: its exact gradient is zero, so that it is not trained.
        return {
            "query": linear(width),
            "key": linear(
                config.key_value_size, is_bias_trained=kind.sees_key_bias() or score.is_added
            ),
            "value": linear(config.key_value_size),
            "attention_output": linear(width, stddev=config.output_init),
            "score": score(config, rngs=rngs),
        }

    def __call__(
        self,
        block: Any,
        x_BLD: jax.Array,
        x_BRD: jax.Array,
        *,
        mask: Mask,
        position: Position,
        attend: Callable[..., jax.Array],
        key: DropoutKey | None,
        read_BR: jax.Array | None,
    ) -> jax.Array:
        heads = block.config.num_attention_heads
        fewer = block.config.num_key_value_heads or heads
        query_BHKR = split_heads(block.query.to_columns(x_BRD), heads)
        key_BHKL = split_heads(block.key.to_columns(x_BLD), fewer)
        value_BHKL = split_heads(block.value.to_columns(x_BLD), fewer)
        if fewer != heads:
            key_BHKL, value_BHKL = (repeat_heads(x, heads) for x in (key_BHKL, value_BHKL))
        query_BHKR, key_BHKL, bias_BHRL = block.score(query_BHKR, key_BHKL)
        if position.is_in_attention():
            where = {
                "query_positions_BL": mask.query_positions_BL,
                "key_positions_BS": mask.key_positions_BS,
            }
            query_BHKR, key_BHKL = position.rotate(query_BHKR, key_BHKL, **where)
            more_BHRL = position.scores(query_BHKR, key_BHKL, **where)
            if more_BHRL is not None:
                bias_BHRL = more_BHRL if bias_BHRL is None else bias_BHRL + more_BHRL
        context_BHKR = attend(
            query_BHKR,
            key_BHKL,
            value_BHKL,
            mask=mask,
            bias_BHLS=bias_BHRL,
            key=key,
            dropout_rate=block.config.attention_probs_dropout_prob,
        )
        return block.attention_output.from_columns(join_heads(context_BHKR))

    def flops(self, model: ModelConfig, layer: LayerSpec, *, length: int, queries: int) -> int:
        d, keys = model.hidden_size, _keys(model, layer, length, queries)
        keys_and_values = 2 * length * 2 * d * model.key_value_size
        attention = 2 * queries * (2 * d * d + keys * d)
        score, kind = _score(model), POSITIONS[model.position_embedding_type]
        scores = score.flops(model, length=length, queries=queries, keys=keys)
        scores += kind.flops(model, length=length, queries=queries)
        return keys_and_values + attention + scores


def _score(model: ModelConfig) -> type[Score]:
    """Returns the score class of a model. Mixer options of another kind may lack a score."""
    options = model.mixer
    if not isinstance(options, SelfAttentionOptions):
        options = SelfAttentionOptions()
    return SCORES[options.score]


def _keys(model: ModelConfig, layer: LayerSpec, length: int, queries: int) -> int:
    """Returns the number of keys that each query is multiplied with."""
    return length if queries < length else keys_seen(Need.of_layer(model, layer, length=length))


SELF_ATTENTION = SelfAttention()
