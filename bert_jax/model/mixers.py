"""Mixers, by which the tokens of a sequence exchange what they know: one object a kind.

Dims: B batch, L length, R positions that are read, D width, H heads, K head size.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
from flax import nnx

from bert_jax.config import ModelConfig
from bert_jax.model.attention import join_heads, split_heads
from bert_jax.model.dropout import DropoutKey
from bert_jax.model.layer_spec import LayerSpec
from bert_jax.model.layers import Linear
from bert_jax.model.mask import Mask
from bert_jax.model.positions import Position
from bert_jax.model.roles import COLUMNS, CUT_BIAS, ROWS, Role
from bert_jax.registry import POSITIONS


class Kept(NamedTuple):
    """How many arrays a mixer keeps for the backward pass, beside those of the block."""

    # Of [B, L, D].
    width: float
    # Of [B, H, L, L]: what attention keeps of its scores counts as 1 here, whatever that is.
    scores: float = 0.0
    # The same of the products of queries and keys with each distance.
    distances: float = 0.0


class Mixer:
    """One entry of `registry.MIXERS`: its parameters, what it computes, and what that costs.

    A mixer is built into each block. The last block computes only the positions that are read.
    """

    # "MODULE.PARAMETER" of `build` -> role, where the last name does not say it: kernels and
    # embeddings are decayed, biases and scales are not, and all are whole on each device.
    roles: Mapping[str, Role] = MappingProxyType({})

    def problems(self, model: ModelConfig) -> Iterator[tuple[str, str]]:
        """Yields the name of each field that a model with this mixer cannot have so, and why."""
        kind = model.position_embedding_type
        if POSITIONS[kind].is_in_attention():
            yield (
                "position_embedding_type",
                f"is {kind}, which works in attention, and mixer {model.mixer} is none; choose "
                "learned, sinusoidal or none",
            )
        if model.attention_window:
            yield (
                "attention_window",
                f"is {model.attention_window}, which mixer {model.mixer} does not read",
            )

    def build(
        self, config: ModelConfig, layer: LayerSpec, *, rngs: nnx.Rngs
    ) -> dict[str, nnx.Module]:
        """Returns the modules that hold its parameters: subtrees of the layer, initialised."""
        raise NotImplementedError

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
        """Returns what is added to the tokens at `read_BR`, `[B, R, D]`; None reads all L.

        `block` has the modules of `build` and `config`. `x_BLD` are all tokens and `x_BRD` those
        read; queries of `mask` are those read. A token may depend on tokens of its own sequence
        only. `key=None` means evaluation.
        """
        raise NotImplementedError

    def flops(self, model: ModelConfig, *, length: int, queries: int) -> int:
        """Returns the FLOPs of its matrix products for one row, of which `queries` are read."""
        raise NotImplementedError

    def kept(self, model: ModelConfig, *, length: int) -> Kept:
        """Returns the arrays that one layer keeps for the backward pass."""
        raise NotImplementedError


class SelfAttention(Mixer):
    """Self-attention with several heads (Vaswani et al. 2017)."""

    # Cut by heads, as in Megatron-LM (Shoeybi et al. 2019, section 3).
    roles = MappingProxyType(
        {
            **{f"{name}.kernel": COLUMNS for name in ("query", "key", "value")},
            **{f"{name}.bias": CUT_BIAS for name in ("query", "key", "value")},
            "attention_output.kernel": ROWS,
        }
    )

    def problems(self, model: ModelConfig) -> Iterator[tuple[str, str]]:
        yield from POSITIONS[model.position_embedding_type].problems(model)

    def build(
        self, config: ModelConfig, layer: LayerSpec, *, rngs: nnx.Rngs
    ) -> dict[str, nnx.Module]:
        width, kind = config.hidden_size, POSITIONS[config.position_embedding_type]
        linear = partial(
            Linear, width, width, config=config, rngs=rngs, has_bias=config.linear_bias
        )
        # Where no position kind says otherwise, a key's bias adds the same to all scores of a
        # query, which softmax does not see: its gradient is zero, and what could be computed would
        # be rounding.
        return {
            "query": linear(),
            "key": linear(is_bias_trained=kind.sees_key_bias()),
            "value": linear(),
            "attention_output": linear(),
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
        query_BHKR = split_heads(block.query.to_columns(x_BRD), heads)
        key_BHKL = split_heads(block.key.to_columns(x_BLD), heads)
        bias_BHRL = None
        if position.is_in_attention():
            where = {
                "query_positions_BL": mask.query_positions_BL,
                "key_positions_BS": mask.key_positions_BS,
            }
            query_BHKR, key_BHKL = position.rotate(query_BHKR, key_BHKL, **where)
            bias_BHRL = position.scores(query_BHKR, key_BHKL, **where)
        context_BHKR = attend(
            query_BHKR,
            key_BHKL,
            split_heads(block.value.to_columns(x_BLD), heads),
            mask=mask,
            bias_BHLS=bias_BHRL,
            key=key,
            dropout_rate=block.config.attention_probs_dropout_prob,
        )
        return block.attention_output.from_columns(join_heads(context_BHKR))

    def flops(self, model: ModelConfig, *, length: int, queries: int) -> int:
        """A window costs what all keys do: back ends leave out scores, not products."""
        d = model.hidden_size
        keys_and_values = 2 * length * 2 * d * d
        attention = 2 * queries * (2 * d * d + 2 * length * d)
        kind = POSITIONS[model.position_embedding_type]
        return kind.flops(model, length=length, queries=queries) + keys_and_values + attention

    def kept(self, model: ModelConfig, *, length: int) -> Kept:
        kind = POSITIONS[model.position_embedding_type]
        # Queries, keys, values and what goes into the output's map.
        return Kept(width=4, scores=1, distances=kind.kept_distances(model, length=length))


ATTENTION = SelfAttention()
