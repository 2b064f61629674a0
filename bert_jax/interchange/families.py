"""Families with BERT's blocks: BERT, RoBERTa, ELECTRA, RoFormer; and the choice of a family.

RoBERTa is BERT with other names, positions that start after two unused rows, and one segment
(transformers `modeling_roberta.py`); its pre-norm form is RoBERTa-PreLayerNorm
(`modeling_roberta_prelayernorm.py`). Its sentence classifier has a dense layer with tanh instead of
the pooler: the same computation under another name. RoFormer is BERT with rotary positions
(`modeling_roformer.py`).
"""

import dataclasses
from collections.abc import Mapping

import numpy as np

from bert_jax.config import HeadConfig, ModelConfig
from bert_jax.interchange.family import BERT_KEYS, LEARNED, MODEL_KEYS, PAD, Family, Item, same
from bert_jax.interchange.name_map import NameMap
from bert_jax.progress import note_once

_LAYER = {
    "query": "attention.self.query",
    "key": "attention.self.key",
    "value": "attention.self.value",
    "attention_output": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "intermediate": "intermediate.dense",
    "output": "output.dense",
    "output_norm": "output.LayerNorm",
    # The table of relative positions.
    "position": "attention.self.distance_embedding",
}
_PRE_NORM_LAYER = {"attention_norm": "attention.LayerNorm", "output_norm": "intermediate.LayerNorm"}
_EMBEDDINGS = {
    "encoder.embeddings.word": "embeddings.word_embeddings",
    "encoder.embeddings.position": "embeddings.position_embeddings",
    "encoder.embeddings.token_type": "embeddings.token_type_embeddings",
    "encoder.embeddings.layer_norm": "embeddings.LayerNorm",
}
_MASKED_LM = {
    "mlm": "cls.predictions",
    "mlm.transform": "cls.predictions.transform.dense",
    "mlm.layer_norm": "cls.predictions.transform.LayerNorm",
    "mlm.decoder": "cls.predictions.decoder",
}
_TASKS = {
    "sequence_classifier": "classifier",
    "token_classifier": "classifier",
    "span_classifier": "qa_outputs",
}
# The sentence classifier has a separate dense layer before the output.
_OWN_DENSE = _TASKS | {"sequence_classifier": "classifier.out_proj"}
_ROBERTA = _OWN_DENSE | {
    "pooler.dense": "roberta.pooler.dense",
    "mlm": "lm_head",
    "mlm.transform": "lm_head.dense",
    "mlm.layer_norm": "lm_head.layer_norm",
    "mlm.decoder": "lm_head.decoder",
    # The encoder was trained without this head.
    "nsp": "cls.seq_relationship",
}
_PRE_NORM = _ROBERTA | {
    "encoder.final_norm": "roberta_prelayernorm.LayerNorm",
    "pooler.dense": "roberta_prelayernorm.pooler.dense",
}
# The heads of a generator and of a discriminator, two models in transformers.
_ELECTRA = _OWN_DENSE | {
    "encoder.embeddings.project": "electra.embeddings_project",
    "mlm": "generator_lm_head",
    "mlm.transform": "generator_predictions.dense",
    "mlm.layer_norm": "generator_predictions.LayerNorm",
    "mlm.decoder": "generator_lm_head",
    "discriminator.dense": "discriminator_predictions.dense",
    "discriminator.prediction": "discriminator_predictions.dense_prediction",
}
_ROFORMER = _MASKED_LM | _OWN_DENSE | {"encoder.embeddings.project": "roformer.embeddings_project"}


def _names(base: str, fixed: Mapping[str, str], layer: Mapping[str, str] = _LAYER) -> NameMap:
    return NameMap(
        fixed={ours: f"{base}.{theirs}" for ours, theirs in _EMBEDDINGS.items()} | dict(fixed),
        layer=layer,
        layer_prefix=f"{base}.encoder.layer.{{}}.",
    )


def _with_own_dense(names: NameMap) -> NameMap:
    return dataclasses.replace(names, fixed={**names.fixed, "pooler.dense": "classifier.dense"})


BERT = _names(
    "bert",
    _MASKED_LM | _TASKS | {"pooler.dense": "bert.pooler.dense", "nsp": "cls.seq_relationship"},
)
_ROBERTA_NAMES = _names("roberta", _ROBERTA)
_PRE_NORM_NAMES = _names("roberta_prelayernorm", _PRE_NORM, _LAYER | _PRE_NORM_LAYER)
_ELECTRA_NAMES = _names("electra", _ELECTRA)
_ROFORMER_NAMES = _names("roformer", _ROFORMER)

# Only transformers 4 supports relative positions, and only for BERT: in a RoBERTa, distances would
# include the unused rows of the position table.
_POSITIONS = {
    "absolute": "learned",
    "relative_key": "relative_key",
    "relative_key_query": "relative_key_query",
}

BERT_FAMILY = Family(
    base="bert",
    names=BERT,
    keys={
        **BERT_KEYS,
        "position_embedding_type": Item("position_embedding_type", "absolute", _POSITIONS),
    },
)
ROBERTA_FAMILY = Family(
    base="roberta",
    names=_ROBERTA_NAMES,
    class_prefix="Roberta",
    pooled_names=_with_own_dense(_ROBERTA_NAMES),
    pooled_classifier="classifier.out_proj.weight",
    default_pad=1,
    token_ids={"bos_token_id": "cls", "eos_token_id": "sep"},
    lacks=frozenset({"nsp"}),
    mlm_act="gelu",
)
XLM_ROBERTA_FAMILY = dataclasses.replace(ROBERTA_FAMILY, class_prefix="XLMRoberta")
CAMEMBERT_FAMILY = dataclasses.replace(ROBERTA_FAMILY, class_prefix="Camembert")
PRE_NORM_FAMILY = dataclasses.replace(
    ROBERTA_FAMILY,
    base="roberta_prelayernorm",
    names=_PRE_NORM_NAMES,
    class_prefix="RobertaPreLayerNorm",
    pooled_names=_with_own_dense(_PRE_NORM_NAMES),
    fixed={"norm_placement": "pre"},
)
ELECTRA_FAMILY = Family(
    base="electra",
    names=_ELECTRA_NAMES,
    class_prefix="Electra",
    # transformers configuration_electra.py
    keys={
        **MODEL_KEYS,
        **same(hidden_size=256, num_attention_heads=4, intermediate_size=1024),
        "pad_token_id": PAD,
        **LEARNED,
        **same(embedding_size=128, tie_word_embeddings=True),
    },
    pooled_names=_with_own_dense(_ELECTRA_NAMES),
    pooled_classifier="classifier.out_proj.weight",
    pooler_act="gelu",
    mlm_act="gelu",
)
ROFORMER_FAMILY = Family(
    base="roformer",
    names=_ROFORMER_NAMES,
    class_prefix="RoFormer",
    # transformers configuration_roformer.py
    keys={
        **MODEL_KEYS,
        **same(vocab_size=50_000, max_position_embeddings=1536),
        "pad_token_id": PAD,
        **same(embedding_size=None, tie_word_embeddings=True),
    },
    refused=("rotary_value",),
    pooled_names=_with_own_dense(_ROFORMER_NAMES),
    pooled_classifier="classifier.out_proj.weight",
    pooler_act=None,
    lacks=frozenset({"nsp"}),
    fixed={"position_embedding_type": "rotary_interleaved", "rope_theta": 10_000.0},
    sinusoids="roformer.encoder.embed_positions.weight",
)


def sinusoids(model: ModelConfig) -> np.ndarray:
    """Returns RoFormer's sines and cosines, `[positions, head size]` (transformers
    modeling_roformer.py, `RoFormerSinusoidalPositionalEmbedding`).
    """
    half = model.hidden_size // model.num_attention_heads // 2
    rates = model.rope_theta ** (-np.arange(half) / half)
    angles = np.arange(model.max_position_embeddings)[:, None] * rates
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)


def family_of(model: ModelConfig, head: HeadConfig, *, pair_separators: int) -> str:
    """Returns the default `model_type` of a model.

    A pre-norm model is a RoBERTa-PreLayerNorm, or with rotary positions a ModernBERT, and with
    RMSNorm also a EuroBERT or (two dense layers in the head) an UltraBERT. Interleaved rotary
    positions make a RoFormer, and features that only ELECTRA has make an ELECTRA. RoBERTa
    tokenizers put two separators between the texts of a pair; a model with such a tokenizer that
    RoBERTa's classes do not compute is a BERT, with a note unless it has a next-sentence head.
    """
    if model.norm_placement == "pre":
        if model.position_embedding_type != "rotary":
            return "roberta-prelayernorm"
        if model.norm != "rmsnorm":
            return "modernbert"
        return "ultrabert" if model.masked_lm_inner_size else "eurobert"
    if model.position_embedding_type == "rotary_interleaved":
        return "roformer"
    is_electra = "discriminator" in head.parts or head.pooler_act == "gelu"
    if is_electra or model.table_size != model.hidden_size:
        return "electra"
    if pair_separators < 2 or ROBERTA_FAMILY.lacks & set(head.parts):
        return "bert"
    if model.position_embedding_type != "learned":
        return "bert"
    if problem := ROBERTA_FAMILY.misreads(model, head):
        note_once(f"exporting as model_type bert, not roberta: {problem}")
        return "bert"
    return "roberta"
