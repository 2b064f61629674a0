"""An encoder with any of its parts: the pre-training heads, or one task head.

A checkpoint is an encoder and the parts it has. Parameters are a nested dict with a subtree for
each part, named as in `heads.py`; a part that is not there has no subtree.

Dims: B batch, L length, D width, M masked positions, P pairs in a row, C classes, V vocabulary.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.config import ComputeConfig, HeadConfig, ModelConfig
from bert_jax.model.dropout import DropoutKey, dropout
from bert_jax.model.encoder import Encoder, gather_early
from bert_jax.model.heads import MaskedLanguageModel, Params, Pooler
from bert_jax.model.layers import Linear
from bert_jax.model.sharding import batch_spec

# The heads' dropout counts as a layer of its own, after that of the embeddings (encoder.py).
_HEAD_LAYER = 2**31 + 1


class Bert(nnx.Module):
    """The encoder and the parts that `head` names."""

    def __init__(self, config: ModelConfig, head: HeadConfig, *, rngs: nnx.Rngs):
        width = config.hidden_size
        self.parts = head.parts
        self.dropout_rate = config.hidden_dropout_prob
        self.encoder = Encoder(config, rngs=rngs)
        # In the order of `BertForPreTraining`: the same seed gives the same parameters.
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
        self, batch: dict[str, jax.Array], *, compute: ComputeConfig, key: DropoutKey | None
    ) -> dict[str, jax.Array]:
        x_BLD = self.encoder(batch, compute=compute, key=key)
        outputs = {"hidden_states": x_BLD}
        head_key = None if key is None else key.fold(_HEAD_LAYER)
        if "pooler" in self.parts:
            first_B1 = jnp.zeros((x_BLD.shape[0], 1), jnp.int32, out_sharding=batch_spec())
            outputs["pooled"] = self.pooler(x_BLD, first_B1)[:, 0]
        if "mlm" in self.parts and "mlm_positions" in batch:
            word = self.encoder.embeddings.word
            outputs["mlm_logits"] = self.mlm(x_BLD, batch["mlm_positions"], word)
        if "nsp" in self.parts and "nsp_positions" in batch:
            pooled_BPD = self.pooler(x_BLD, batch["nsp_positions"])
            outputs["nsp_logits"] = self.nsp(pooled_BPD).astype(jnp.float32)
        if "sequence_classifier" in self.parts:
            pooled_BD = dropout(outputs["pooled"], head_key, rate=self.dropout_rate)
            outputs["sequence_logits"] = self.sequence_classifier(pooled_BD).astype(jnp.float32)
        if "token_classifier" in self.parts:
            dropped_BLD = dropout(x_BLD, head_key, rate=self.dropout_rate)
            outputs["token_logits"] = self.token_classifier(dropped_BLD).astype(jnp.float32)
        if "span_classifier" in self.parts:
            # Without dropout, as google-research/bert run_squad.py.
            outputs["span_logits"] = self.span_classifier(x_BLD).astype(jnp.float32)
        return outputs


def classes(head: HeadConfig) -> int:
    """Outputs of a sequence or token classifier: one for each label, or one number to regress."""
    return max(1, len(head.labels))


def init_params(config: ModelConfig, head: HeadConfig, *, seed: int) -> Params:
    """Fresh float32 parameters: a nested dict, one subtree a part and within it one a layer."""
    return nnx.to_pure_dict(nnx.split(Bert(config, head, rngs=nnx.Rngs(seed)))[1])


def abstract_params(config: ModelConfig, head: HeadConfig) -> Params:
    """Shapes and types of `init_params`, without computing anything."""
    return jax.eval_shape(lambda: init_params(config, head, seed=0))


def apply(
    params: Params,
    batch: dict[str, jax.Array],
    *,
    config: ModelConfig,
    head: HeadConfig,
    compute: ComputeConfig,
    key: DropoutKey | None = None,
) -> dict[str, Any]:
    """What the parts make of a batch; `key=None` means evaluation.

    Always `hidden_states` `[B, L, D]` in the compute type. With their part: `pooled` `[B, D]`, and
    in float32 `sequence_logits` `[B, C]`, `token_logits` `[B, L, C]`, `span_logits` `[B, L, 2]`
    (start, end); where the batch has the positions, `mlm_logits` `[B, M, V]` and `nsp_logits`
    `[B, P, 2]`.
    """
    abstract = nnx.eval_shape(lambda: Bert(config, head, rngs=nnx.Rngs(0)))
    graph, state = nnx.split(abstract)
    nnx.replace_by_pure_dict(state, gather_early(params, compute))
    return nnx.merge(graph, state)(batch, compute=compute, key=key)
