"""The model: an encoder with any of the heads ("parts") that `registry.PARTS` lists.

Parameters are a nested dict with one subtree for the encoder and one for each part of the model.

Dims: B batch, L length, D width, M masked positions, P texts in a row, R = P + M, C classes, V
vocabulary, N layers.
"""

import functools
import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.config import ComputeConfig, HeadConfig, ModelConfig
from bert_jax.model.dropout import DropoutKey
from bert_jax.model.encoder import Encoder, gather_early
from bert_jax.model.heads.part import EVERY, Context, Part
from bert_jax.model.layers import gather_positions
from bert_jax.registry import PARTS

Params = dict[str, Any]
Attend = Callable[..., jax.Array]

# Pooler, masked language model and next sentence (Devlin et al. 2019).
PRE_TRAINING = HeadConfig()

# The dropout of the heads counts as one more layer, after the embeddings (encoder.py).
_HEAD_LAYER = 2**31 + 1


class _Keys(nnx.RngStream):
    """The keys of `nnx.RngStream`, counted in Python.

    Its own count is an array, and in a trace Flax compares the array's sharding after each key. A
    tracer has none, and the message of that error prints a part of the trace.
    """

    def __init__(self, seed: int):
        super().__init__(seed, tag="default")
        self.drawn = 0

    def __call__(self) -> jax.Array:
        key = jax.random.fold_in(self.key[...], self.drawn)
        self.drawn += 1
        return key


def _rngs(seed: int) -> nnx.Rngs:
    rngs = nnx.Rngs(seed)
    rngs.default = _Keys(seed)
    return rngs


class Bert(nnx.Module):
    """The encoder and the parts that `head` names."""

    def __init__(self, config: ModelConfig, head: HeadConfig, *, rngs: nnx.Rngs):
        # In registry order, so that the same parts always get the same initial values.
        self.parts = tuple(name for name in PARTS.names() if name in head.parts)
        self.config = config
        self.dropout_rate = config.dropout_at("classifier")
        self.encoder = Encoder(config, rngs=rngs)
        for name, part in self._entries().items():
            setattr(self, name, part.build(config, head, rngs=rngs))

    def __call__(
        self,
        batch: dict[str, jax.Array],
        *,
        compute: ComputeConfig,
        key: DropoutKey | None,
        attend: Attend | None = None,
        hidden_states: bool = False,
        loss_slices: int = 1,
    ) -> dict[str, Any]:
        outputs: dict[str, Any] = {}
        positions = self._positions(batch)
        read: dict[str, jax.Array] = {}
        if hidden_states or not positions or any(where is EVERY for where in positions.values()):
            states: list[jax.Array] | None = [] if hidden_states else None
            x_BLD = self.encoder(
                batch, compute=compute, key=key, attend=attend, hidden_states=states
            )
            outputs["last_hidden_state"] = x_BLD
            if states is not None:
                outputs["hidden_states"] = states
            for part, where in positions.items():
                read[part] = x_BLD if isinstance(where, str) else gather_positions(x_BLD, where)
        else:
            read_BR = jnp.concatenate([*positions.values()], axis=1)
            x_BRD = self.encoder(batch, compute=compute, key=key, attend=attend, read_BR=read_BR)
            ends = itertools.accumulate(where.shape[1] for where in positions.values())
            parts = jnp.split(x_BRD, [*ends][:-1], axis=1)
            read = dict(zip(positions, parts, strict=True))
        context = Context(
            batch=batch,
            outputs=outputs,
            word=self.encoder.embeddings.word,
            key=None if key is None else key.fold(_HEAD_LAYER),
            dropout_rate=self.dropout_rate,
            loss_slices=loss_slices,
        )
        entries = self._entries()
        for name in read:
            outputs |= entries[name](getattr(self, name), read[name], context)
            for other, part in entries.items():
                if part.needs == name:
                    outputs |= part(getattr(self, other), None, context)
        return outputs

    def _entries(self) -> dict[str, Part]:
        return {name: PARTS[name].of(self.config) for name in self.parts}

    def _positions(self, batch: Mapping[str, jax.Array]) -> dict[str, Any]:
        """Returns the positions that each part reads from the encoder's output."""
        entries = self._entries().items()
        found = {name: part.positions(batch) for name, part in entries if part.needs is None}
        return {name: where for name, where in found.items() if where is not None}


def init_params(config: ModelConfig, head: HeadConfig = PRE_TRAINING, *, seed: int) -> Params:
    """Returns new float32 parameters: a nested dict with a subtree per part, and in it one per
    layer.
    """
    return nnx.to_pure_dict(nnx.split(Bert(config, head, rngs=_rngs(seed)))[1])


def abstract_params(config: ModelConfig, head: HeadConfig = PRE_TRAINING) -> Params:
    """Returns the shapes and types of `init_params`, without computing anything."""
    # A new dict, because the caller may modify it.
    return jax.tree.map(lambda leaf: leaf, _abstract_params(config, head))


def parameter_count(params: Params) -> int:
    """Returns the number of parameters: 110,106,428 for Base with both heads, 336,226,108 for
    Large.
    """
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params))


def apply(
    params: Params,
    batch: dict[str, jax.Array],
    *,
    config: ModelConfig,
    compute: ComputeConfig,
    head: HeadConfig = PRE_TRAINING,
    key: DropoutKey | None = None,
    attend: Attend | None = None,
    hidden_states: bool = False,
    loss_slices: int = 1,
) -> dict[str, Any]:
    """Returns the outputs of all parts by name; `key=None` means evaluation.

    `params` have their stored layout; without a mesh they are on one device. `attend`, with the
    signature of `attention.plain`, replaces the attention that `compute` names. Each part adds its
    outputs: `pooled` `[B, D]`, and in float32 `nsp_logits` `[B, P, 2]`, `sequence_logits` `[B, C]`,
    `token_logits` `[B, L, C]`, `span_logits` `[B, L, 2]` (start, end) and, if the batch has masked
    positions, `mlm_logits` `[B, M, V]`. V is padded if the mesh does not divide it. With more than
    one of `loss_slices` the output is `mlm_scores`, a `SlicedScores`, instead. Pooler and
    next-sentence head read the first token by default; with `text_positions` `[B, P]`, for rows
    with several texts, `pooled` is `[B, P, D]` and `sequence_logits` `[B, P, C]`.

    `last_hidden_state` `[B, L, D]`, in the compute type, is returned if the model has no parts, if
    a part reads every position, or with `hidden_states`, which also adds the list `hidden_states`:
    the embeddings and the output of each of the N blocks. Otherwise the last block computes only
    the positions that are read.
    """
    params, batch = jax.tree.map(jnp.asarray, (params, batch))  # also accepts NumPy arrays
    graph, empty = _structure(config, head)
    state = jax.tree.map(lambda shape: shape, empty)  # a copy: the next line writes into it
    nnx.replace_by_pure_dict(state, gather_early(params, compute))
    bert = nnx.merge(graph, state)
    options = {"attend": attend, "hidden_states": hidden_states, "loss_slices": loss_slices}
    return bert(batch, compute=compute, key=key, **options)


@functools.cache
def _abstract_params(config: ModelConfig, head: HeadConfig) -> Params:
    """Traced once per process: reading one checkpoint calls it three times."""
    shapes = jax.eval_shape(lambda: init_params(config, head, seed=0))
    # Without the current mesh, because the next caller may have another one.
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), shapes)


@functools.cache
def _structure(config: ModelConfig, head: HeadConfig) -> tuple[Any, Any]:
    """Returns the graph of a `Bert` and its state without values; computed once per process."""
    return nnx.split(nnx.eval_shape(lambda: Bert(config, head, rngs=_rngs(0))))
