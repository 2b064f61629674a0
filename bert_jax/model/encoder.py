"""The stack of transformer blocks (Vaswani et al. 2017; google-research/bert modeling.py) and its
published variants.

Dims: B batch, L length, R positions that are read, D width, H heads, K head size, F feed-forward
width, N layers.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.config import ComputeConfig, ModelConfig
from bert_jax.model.dropout import DropoutKey, dropout
from bert_jax.model.layer_spec import LayerSpec, layer_specs
from bert_jax.model.layers import Embeddings, Linear, Norm, activation, gather_positions
from bert_jax.model.mask import Mask
from bert_jax.model.positions import Position
from bert_jax.model.sharding import stack, to_compute_params
from bert_jax.registry import ATTENTION, MIXERS, POSITIONS

# Numbers of the dropout sites in a layer, folded into the layer's key.
_MIXER, _MIXER_OUTPUT, _FEED_FORWARD_OUTPUT = range(3)
# The dropout of the embeddings counts as a separate layer; the blocks count from 0.
_EMBEDDINGS_LAYER = 2**31


class Block(nnx.Module):
    """A mixer (self-attention in BERT) and a feed-forward sublayer, each with a residual
    connection.

    Each sublayer computes after(x + f(before(x))), where one of the two functions is its norm and
    the other one the identity.
    """

    def __init__(self, config: ModelConfig, layer: LayerSpec, *, rngs: nnx.Rngs):
        width = config.hidden_size
        self.config, self.layer = config, layer
        mixing = MIXERS[layer.mixer].build(config, layer, rngs=rngs)
        for name, module in mixing.items():
            setattr(self, name, module)
        linear = partial(Linear, config=config, rngs=rngs, has_bias=config.linear_bias)
        has_norm = layer.has_attention_norm
        self.attention_norm = Norm(width, config=config, kind=layer.norm) if has_norm else None
        self.intermediate = linear(width, config.intermediate_size)
        self.output = linear(config.intermediate_size, width, stddev=config.output_init)
        self.output_norm = Norm(width, config=config, kind=layer.norm)
        if layer.feed_forward == "gated":
            self.gate = linear(width, config.intermediate_size)
        kind = POSITIONS[config.position_embedding_type]
        self.has_position = kind.is_per_block
        if kind.is_per_block:
            own = dataclasses.replace(config, rope_theta=layer.rope_theta)
            self.position = kind(own, rngs=rngs)
        for name, module in mixing.items():
            if getattr(self, name) is not module:
                raise ValueError(f"mixer {layer.mixer}: {name} is a name of the block; rename it")

    def __call__(
        self,
        x_BLD: jax.Array,
        *,
        mask: Mask,
        position: Position,
        attend: Callable[..., jax.Array],
        key: DropoutKey | None,
        read_BR: jax.Array | None = None,
    ) -> jax.Array:
        """Returns `[B, L, D]`; with the positions `read_BR`, only these: `[B, R, D]`.

        Attention still covers every position. Dropout masks depend on the position in the result.
        """
        is_pre_norm, rate = self.layer.norm_placement == "pre", self.config.dropout_at

        def site(number):
            return None if key is None else key.fold(number)

        def before(norm, x):
            return norm(x) if is_pre_norm and norm is not None else x

        def after(norm, x):
            return x if is_pre_norm else norm(x)

        if self.layer.window is not None:
            mask = dataclasses.replace(mask, window=self.layer.window)
        x_BRD = x_BLD
        seen_BLD = asking_BRD = before(self.attention_norm, x_BLD)
        if read_BR is not None:
            x_BRD, mask = gather_positions(x_BLD, read_BR), mask.at(read_BR)
            asking_BRD = before(self.attention_norm, x_BRD)
        y_BRD = MIXERS[self.layer.mixer](
            self,
            seen_BLD,
            asking_BRD,
            mask=mask,
            position=self.position if self.has_position else position,
            attend=attend,
            key=site(_MIXER),
            read_BR=read_BR,
        )
        y_BRD = dropout(y_BRD, site(_MIXER_OUTPUT), rate=rate("attention"))
        x_BRD = after(self.attention_norm, x_BRD + y_BRD)
        y_BRD = self.output(self._inner(before(self.output_norm, x_BRD)))
        y_BRD = dropout(y_BRD, site(_FEED_FORWARD_OUTPUT), rate=rate("feed_forward"))
        return after(self.output_norm, x_BRD + y_BRD)

    def _inner(self, x_BRD: jax.Array) -> jax.Array:
        """Returns `[B, R, F]`, activated; if gated, multiplied by the activated gate."""
        h_BRF, name = self.intermediate(x_BRD), self.config.hidden_act
        if self.layer.feed_forward == "gated":
            return activation(name, self.gate(x_BRD)) * h_BRF
        return activation(name, h_BRF)


class Encoder(nnx.Module):
    """Embeddings and N blocks, which are the subtrees `layer_0`, `layer_1`, ...

    By default the embeddings are normalized, also with pre-norm: word and position vectors with a
    standard deviation of 0.02 would be negligible next to the block outputs, and training is more
    stable (Le Scao et al. 2022, BLOOM; ModernBERT). The first norm of the first block then repeats
    it except for the scale: `first_norm` can omit it.
    """

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        self.num_layers = config.num_hidden_layers
        self.embeddings = Embeddings(config, rngs=rngs)
        for i, layer in enumerate(layer_specs(config)):
            setattr(self, f"layer_{i}", Block(config, layer, rngs=rngs))
        # With pre-norm, the residual stream itself is not normalized in the blocks.
        is_pre_norm = config.norm_placement == "pre"
        self.final_norm = Norm(config.hidden_size, config=config) if is_pre_norm else None

    def __call__(
        self,
        batch: dict[str, jax.Array],
        *,
        compute: ComputeConfig,
        key: DropoutKey | None,
        attend: Callable[..., jax.Array] | None = None,
        read_BR: jax.Array | None = None,
        hidden_states: list[jax.Array] | None = None,
    ) -> jax.Array:
        """Returns `[B, L, D]` in the compute type. Reads the four `[B, L]` arrays of `batch`.

        With `read_BR`, `[B, R]`, the last block computes only these positions: a sixth of all in
        pre-training, one in a classifier. `attend` replaces the attention that `compute` names. To
        the list `hidden_states` are added the embeddings and the output of each block, the last one
        as returned.
        """
        x_BLD = self.embeddings(
            input_ids=batch["input_ids"],
            position_ids=batch["position_ids"],
            token_type_ids=batch["token_type_ids"],
            dtype=jnp.dtype(compute.dtype),
            key=None if key is None else key.fold(_EMBEDDINGS_LAYER),
        )
        if hidden_states is not None:
            hidden_states.append(x_BLD)
        attend = attend or ATTENTION[compute.attention]
        mask = Mask.of_rows(batch["sequence_ids"], batch["position_ids"])
        position = self.embeddings.position
        blocks = [nnx.split(getattr(self, f"layer_{i}")) for i in range(self.num_layers)]

        def block_of(graph: Any) -> Callable[..., jax.Array]:
            def apply_block(x_BLD, layer, params, read_BR=None):
                layer_key = None if key is None else key.fold(layer)
                block = nnx.merge(graph, to_compute_params(params, dtype=compute.dtype))
                return block(
                    x_BLD,
                    mask=mask,
                    position=position,
                    attend=attend,
                    key=layer_key,
                    read_BR=read_BR,
                )

            return _rematerialised(apply_block, compute)

        # The last block may compute fewer positions than the others.
        *others, (last, last_params) = blocks
        if compute.layer_loop == "scan":
            for start, period, times in repeated([graph for graph, _ in others]):
                x_BLD, states = _scan(
                    [block_of(graph) for graph, _ in others[start : start + period]],
                    x_BLD,
                    [params for _, params in others[start : start + period * times]],
                    first=start,
                    with_states=hidden_states is not None,
                )
                if hidden_states is not None:
                    hidden_states += states
        else:
            for i, (graph, params) in enumerate(others):
                x_BLD = block_of(graph)(x_BLD, i, params)
                if hidden_states is not None:
                    hidden_states.append(x_BLD)
        x_BLD = block_of(last)(x_BLD, len(others), last_params, read_BR)
        if self.final_norm is not None:
            x_BLD = self.final_norm(x_BLD)
        if hidden_states is not None:
            hidden_states.append(x_BLD)
        return x_BLD


def repeated(kinds: Sequence[Any]) -> Iterator[tuple[int, int, int]]:
    """Yields (start, period, times) for stretches of `kinds` that repeat their first `period`
    items: at each start the longest such stretch, with its shortest period.
    """
    start = 0
    while start < len(kinds):
        best, rest = (1, 1), kinds[start:]
        for period in range(1, len(rest) // 2 + 1):
            times = 1
            while rest[times * period : (times + 1) * period] == rest[:period]:
                times += 1
            if times > 1 and period * times > best[0] * best[1]:
                best = (period, times)
        yield start, *best
        start += best[0] * best[1]


def _scan(
    period: Sequence[Callable[..., jax.Array]],
    x_BLD: jax.Array,
    params: Sequence[Any],
    *,
    first: int,
    with_states: bool,
) -> tuple[jax.Array, list[jax.Array]]:
    """Applies the blocks of a period one after another, in a loop over all of `params`, which begin
    with layer `first`. Returns the last output and, with `with_states`, the output of each layer.
    """
    step = len(period)
    turns = [
        (
            jnp.arange(first + len(params))[first + place :: step],
            jax.tree.map(lambda *leaves: stack(leaves), *params[place::step]),
        )
        for place in range(step)
    ]

    def scanned(x_BLD, turn):
        states = []
        for apply_block, layer in zip(period, turn, strict=True):
            x_BLD = apply_block(x_BLD, *layer)
            states.append(x_BLD)
        return x_BLD, states if with_states else []

    x_BLD, states = jax.lax.scan(scanned, x_BLD, turns)
    return x_BLD, [state for turn in zip(*states, strict=True) for state in turn]


def gather_early(params: dict[str, Any], compute: ComputeConfig) -> dict[str, Any]:
    """Returns working copies of all parameters except those that the blocks gather themselves."""
    encoder = params["encoder"]
    is_late = compute.weight_gather == "per_layer"
    late = {name for name in encoder if is_late and name.startswith("layer_")}
    early = {name: part for name, part in encoder.items() if name not in late}
    gathered = to_compute_params(params | {"encoder": early}, dtype=compute.dtype)
    return gathered | {"encoder": encoder | gathered["encoder"]}


# The operations between stored weights and the matmul that uses them.
_WAY_OF_WEIGHTS = {"convert_element_type", "reshard", "reshape"}


def _rematerialised(function, compute: ComputeConfig):
    """Returns `function` with a backward pass that recomputes the activations `compute` names."""
    if compute.remat == "full":
        return jax.checkpoint(function)
    if compute.remat == "dots":
        policy = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
        return jax.checkpoint(function, policy=policy)
    if compute.weight_gather == "per_layer":
        return jax.checkpoint(function, policy=_all_but_weights)
    return function


def _all_but_weights(primitive: Any, *_: Any, **__: Any) -> bool:
    return primitive.name not in _WAY_OF_WEIGHTS
