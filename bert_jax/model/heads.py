"""The heads, and the model they complete: an encoder with any of its parts.

A checkpoint is an encoder and the parts it has: those of pre-training (pooler, masked language
model, next sentence), or one task head. Parameters are a nested dict with a subtree for each part;
a part that is not there has no subtree.

Dims: B batch, L length, D width, M masked positions, P pairs in a row (1), R = P + M, C classes, V
vocabulary.
"""

import functools
import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.config import ComputeConfig, HeadConfig, ModelConfig
from bert_jax.model.dropout import DropoutKey, dropout
from bert_jax.model.encoder import Encoder, gather_early
from bert_jax.model.layers import Embed, LayerNorm, Linear, activation, pick, split_rows
from bert_jax.model.sharding import batch_spec

Params = dict[str, Any]

# Pooler, masked language model and next sentence (Devlin et al. 2019).
PRE_TRAINING = HeadConfig()

# The heads' dropout counts as a layer of its own, after that of the embeddings (encoder.py).
_HEAD_LAYER = 2**31 + 1

# For the other parts the last block computes no more positions than they read.
_READ_EVERY_POSITION = {"token_classifier", "span_classifier"}


class Pooler(nnx.Module):
    """Linear and tanh of the [CLS] token."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        self.dense = Linear(config.hidden_size, config.hidden_size, config=config, rngs=rngs)

    def __call__(self, x_BPD: jax.Array) -> jax.Array:
        return jnp.tanh(self.dense(x_BPD))


class MaskedLanguageModel(nnx.Module):
    """Scores over the vocabulary at the masked positions; the matrix is the word embedding."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        width = config.hidden_size
        self.hidden_act = config.hidden_act
        self.transform = Linear(width, width, config=config, rngs=rngs)
        self.layer_norm = LayerNorm(width, config=config)
        self.bias = nnx.Param(jnp.zeros(config.vocab_size, jnp.float32))

    def __call__(self, x_BMD: jax.Array, word: Embed) -> jax.Array:
        h_BMD = activation(self.hidden_act, self.transform(x_BMD))
        # The sub-words that tensor parallelism adds can never be the answer.
        return word.attend(self.layer_norm(h_BMD)) + split_rows(self.bias[...], fill=-jnp.inf)


class Bert(nnx.Module):
    """The encoder and the parts that `head` names."""

    def __init__(self, config: ModelConfig, head: HeadConfig, *, rngs: nnx.Rngs):
        width = config.hidden_size
        self.parts = head.parts
        self.dropout_rate = config.hidden_dropout_prob
        self.encoder = Encoder(config, rngs=rngs)
        if "pooler" in self.parts:
            self.pooler = Pooler(config, rngs=rngs)
        if "mlm" in self.parts:
            self.mlm = MaskedLanguageModel(config, rngs=rngs)
        if "nsp" in self.parts:
            self.nsp = Linear(width, 2, config=config, rngs=rngs)
        if "sequence_classifier" in self.parts:
            self.sequence_classifier = Linear(width, classes(head), config=config, rngs=rngs)
        if "token_classifier" in self.parts:
            self.token_classifier = Linear(width, classes(head), config=config, rngs=rngs)
        if "span_classifier" in self.parts:
            self.span_classifier = Linear(width, 2, config=config, rngs=rngs)

    def __call__(
        self,
        batch: dict[str, jax.Array],
        *,
        compute: ComputeConfig,
        key: DropoutKey | None,
        hidden_states: bool = False,
    ) -> dict[str, jax.Array]:
        outputs = {}
        positions = self._positions(batch)
        if hidden_states or not positions or not _READ_EVERY_POSITION.isdisjoint(self.parts):
            x_BLD = self.encoder(batch, compute=compute, key=key)
            outputs["hidden_states"] = x_BLD
            read = {part: pick(x_BLD, where) for part, where in positions.items()}
        else:
            read_BR = jnp.concatenate([*positions.values()], axis=1)
            x_BRD = self.encoder(batch, compute=compute, key=key, read_BR=read_BR)
            ends = itertools.accumulate(where.shape[1] for where in positions.values())
            parts = jnp.split(x_BRD, [*ends][:-1], axis=1)
            read = dict(zip(positions, parts, strict=True))
        head_key = None if key is None else key.fold(_HEAD_LAYER)
        if "pooler" in self.parts:
            pooled_BPD = self.pooler(read["pooler"])
            is_packed = "text_positions" in batch
            outputs["pooled"] = pooled_BPD if is_packed else pooled_BPD[:, 0]
            if "nsp" in self.parts:
                outputs["nsp_logits"] = self.nsp(pooled_BPD).astype(jnp.float32)
        if "mlm" in read:
            outputs["mlm_logits"] = self.mlm(read["mlm"], self.encoder.embeddings.word)
        if "sequence_classifier" in self.parts:
            pooled = dropout(outputs["pooled"], head_key, rate=self.dropout_rate)
            outputs["sequence_logits"] = self.sequence_classifier(pooled).astype(jnp.float32)
        if "token_classifier" in self.parts:
            dropped_BLD = dropout(outputs["hidden_states"], head_key, rate=self.dropout_rate)
            outputs["token_logits"] = self.token_classifier(dropped_BLD).astype(jnp.float32)
        if "span_classifier" in self.parts:
            # Without dropout, as google-research/bert run_squad.py.
            spans_BL2 = self.span_classifier(outputs["hidden_states"])
            outputs["span_logits"] = spans_BL2.astype(jnp.float32)
        return outputs

    def _positions(self, batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
        """`[B, ...]`: where the parts that read only some positions of a row read."""
        positions = {}
        if "pooler" in self.parts:
            rows = batch["input_ids"].shape[0]
            first_B1 = jnp.zeros((rows, 1), jnp.int32, out_sharding=batch_spec())
            pairs_BP = batch.get("nsp_positions", first_B1)
            positions["pooler"] = batch.get("text_positions", pairs_BP)
        if "mlm" in self.parts and "mlm_positions" in batch:
            positions["mlm"] = batch["mlm_positions"]
        return positions


def classes(head: HeadConfig) -> int:
    """Outputs of a sequence or token classifier: one for each label, or one number to regress."""
    return max(1, len(head.labels))


def init_params(config: ModelConfig, head: HeadConfig = PRE_TRAINING, *, seed: int) -> Params:
    """Fresh float32 parameters: a nested dict, one subtree a part and within it one a layer."""
    return nnx.to_pure_dict(nnx.split(Bert(config, head, rngs=nnx.Rngs(seed)))[1])


def abstract_params(config: ModelConfig, head: HeadConfig = PRE_TRAINING) -> Params:
    """Shapes and types of `init_params`, without computing anything."""
    return jax.eval_shape(lambda: init_params(config, head, seed=0))


def parameter_count(params: Params) -> int:
    """Numbers in `params`: 110,106,428 for Base with both heads, 336,226,108 for Large."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params))


def apply(
    params: Params,
    batch: dict[str, jax.Array],
    *,
    config: ModelConfig,
    compute: ComputeConfig,
    head: HeadConfig = PRE_TRAINING,
    key: DropoutKey | None = None,
    hidden_states: bool = False,
) -> dict[str, jax.Array]:
    """What the parts make of a batch; `key=None` means evaluation.

    `params` lie as they are stored. With their part: `pooled` `[B, D]`, and in float32 `nsp_logits`
    `[B, P, 2]`, `sequence_logits` `[B, C]`, `token_logits` `[B, L, C]`, `span_logits` `[B, L, 2]`
    (start, end), and where the batch has positions for it `mlm_logits` `[B, M, V]`; under tensor
    parallelism V is filled up to what divides. Pooler and next sentence read the first token unless
    the batch says where; with `text_positions` `[B, P]`, for rows that hold several texts, `pooled`
    is `[B, P, D]` and `sequence_logits` `[B, P, C]`.

    `hidden_states` `[B, L, D]` in the compute type where it is asked for, where there is no part,
    and where a part reads every position. Else the last block computes only what is read.
    """
    graph, empty = _structure(config, head)
    state = jax.tree.map(lambda shape: shape, empty)  # a copy: the next line writes into it
    nnx.replace_by_pure_dict(state, gather_early(params, compute))
    bert = nnx.merge(graph, state)
    return bert(batch, compute=compute, key=key, hidden_states=hidden_states)


@functools.cache
def _structure(config: ModelConfig, head: HeadConfig) -> tuple[Any, Any]:
    """Of `Bert`: its graph, and the state without numbers. Made once for all steps of a process."""
    return nnx.split(nnx.eval_shape(lambda: Bert(config, head, rngs=nnx.Rngs(0))))
