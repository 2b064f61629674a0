"""The names of the parameters in Hugging Face's files: a table for each family of BERT's form.

RoBERTa is BERT with other names, byte-level sub-words, positions that begin behind two unused rows
and one segment (transformers `modeling_roberta.py`). Its sentence classifier has a dense layer and
tanh of its own, where BERT has the pooler: the same computation under another name. Its pre-norm
form is RoBERTa-PreLayerNorm (`modeling_roberta_prelayernorm.py`). RoFormer is BERT with rotary
positions (`modeling_roformer.py`).
"""

import dataclasses

import numpy as np

from bert_jax.config import HeadConfig, ModelConfig
from bert_jax.interchange.family import ELECTRA_CLASSES, Family
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
    # A table of distances, where positions are relative.
    "position": "attention.self.distance_embedding",
}
# A norm before each part, and one behind the last block.
_PRE_NORM_LAYER = _LAYER | {
    "attention_norm": "attention.LayerNorm",
    "output_norm": "intermediate.LayerNorm",
}
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
# Where a sentence classifier has a dense layer of its own before it.
_CLASSIFIERS = {
    "sequence_classifier": "classifier.out_proj",
    "token_classifier": "classifier",
    "span_classifier": "qa_outputs",
}
_BERT = _MASKED_LM | {
    "pooler.dense": "bert.pooler.dense",
    "nsp": "cls.seq_relationship",
    "sequence_classifier": "classifier",
    "token_classifier": "classifier",
    "span_classifier": "qa_outputs",
}
_ROBERTA = _CLASSIFIERS | {
    "pooler.dense": "roberta.pooler.dense",
    "mlm": "lm_head",
    "mlm.transform": "lm_head.dense",
    "mlm.layer_norm": "lm_head.layer_norm",
    "mlm.decoder": "lm_head.decoder",
    # Their encoder was trained without it.
    "nsp": "cls.seq_relationship",
}


def _layout(base: str, fixed: dict[str, str], layer: dict[str, str] = _LAYER) -> NameMap:
    return NameMap(
        fixed={ours: f"{base}.{theirs}" for ours, theirs in _EMBEDDINGS.items()} | fixed,
        layer=layer,
        layer_prefix=f"{base}.encoder.layer.{{}}.",
    )


BERT = _layout("bert", _BERT)
ROBERTA = _layout("roberta", _ROBERTA)
# A generator's head and a discriminator's, which are of two models there.
_ELECTRA = _CLASSIFIERS | {
    "encoder.embeddings.project": "electra.embeddings_project",
    "mlm": "generator_lm_head",
    "mlm.transform": "generator_predictions.dense",
    "mlm.layer_norm": "generator_predictions.LayerNorm",
    "mlm.decoder": "generator_lm_head",
    "discriminator.dense": "discriminator_predictions.dense",
    "discriminator.prediction": "discriminator_predictions.dense_prediction",
}
ELECTRA = _layout("electra", _ELECTRA)
ELECTRA_CLASSIFIER = _layout("electra", _ELECTRA | {"pooler.dense": "classifier.dense"})
ROBERTA_CLASSIFIER = _layout("roberta", _ROBERTA | {"pooler.dense": "classifier.dense"})
_PRE_NORM = _ROBERTA | {
    "encoder.final_norm": "roberta_prelayernorm.LayerNorm",
    "pooler.dense": "roberta_prelayernorm.pooler.dense",
}
PRE_NORM = _layout("roberta_prelayernorm", _PRE_NORM, _PRE_NORM_LAYER)
PRE_NORM_CLASSIFIER = _layout(
    "roberta_prelayernorm", _PRE_NORM | {"pooler.dense": "classifier.dense"}, _PRE_NORM_LAYER
)

_PROJECTION = {"encoder.embeddings.project": "roformer.embeddings_project"}
_ROFORMER = _PROJECTION | _MASKED_LM | _CLASSIFIERS
ROFORMER = _layout("roformer", _ROFORMER)
ROFORMER_CLASSIFIER = _layout("roformer", _ROFORMER | {"pooler.dense": "classifier.dense"})

# Only transformers 4 computes the last two kinds of position. Only BERT has them: a RoBERTa's
# distances would count the unused rows of its positions, too.
BERT_FAMILY = Family(
    base="bert",
    names=BERT,
    fields=("tie_word_embeddings",),
    positions={
        "learned": "absolute",
        "relative_key": "relative_key",
        "relative_key_query": "relative_key_query",
    },
)
ROBERTA_FAMILY = Family(
    base="roberta",
    names=ROBERTA,
    class_prefix="Roberta",
    pooled_names=ROBERTA_CLASSIFIER,
    pooled_classifier="classifier.out_proj.weight",
    default_pad=1,
    token_ids={"bos_token_id": "cls", "eos_token_id": "sep"},
    lacks=frozenset({"nsp"}),
    mlm_act="gelu",
    fields=("tie_word_embeddings",),
)
XLM_ROBERTA_FAMILY = dataclasses.replace(ROBERTA_FAMILY, class_prefix="XLMRoberta")
CAMEMBERT_FAMILY = dataclasses.replace(ROBERTA_FAMILY, class_prefix="Camembert")

PRE_NORM_FAMILY = dataclasses.replace(
    ROBERTA_FAMILY,
    base="roberta_prelayernorm",
    names=PRE_NORM,
    class_prefix="RobertaPreLayerNorm",
    pooled_names=PRE_NORM_CLASSIFIER,
    fixed={"norm_placement": "pre"},
)

ROFORMER_FAMILY = Family(
    base="roformer",
    names=ROFORMER,
    class_prefix="RoFormer",
    pooled_names=ROFORMER_CLASSIFIER,
    pooled_classifier="classifier.out_proj.weight",
    pooler_act=None,
    lacks=frozenset({"nsp"}),
    bare=frozenset(),
    fields=("embedding_size", "tie_word_embeddings"),
    # transformers configuration_roformer.py
    defaults={"vocab_size": 50_000, "max_position_embeddings": 1536},
    fixed={"position_embedding_type": "rotary_interleaved", "rope_theta": 10_000.0},
    positions={},
    sinusoids="roformer.encoder.embed_positions.weight",
)

ELECTRA_FAMILY = Family(
    base="electra",
    names=ELECTRA,
    class_prefix="Electra",
    pooled_names=ELECTRA_CLASSIFIER,
    pooled_classifier="classifier.out_proj.weight",
    pooler_act="gelu",
    mlm_act="gelu",
    classes=ELECTRA_CLASSES,
    bare=frozenset(),
    fields=("embedding_size", "tie_word_embeddings"),
    # transformers configuration_electra.py
    defaults={
        "embedding_size": 128,
        "hidden_size": 256,
        "num_attention_heads": 4,
        "intermediate_size": 1024,
    },
)


def sinusoids(model: ModelConfig) -> np.ndarray:
    """Returns the sines and cosines that RoFormer turns queries and keys by, `[positions, width of
    a head]` (transformers modeling_roformer.py, `RoFormerSinusoidalPositionalEmbedding`).
    """
    half = model.hidden_size // model.num_attention_heads // 2
    rates = model.rope_theta ** (-np.arange(half) / half)
    angles = np.arange(model.max_position_embeddings)[:, None] * rates
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)


def family_of(model: ModelConfig, head: HeadConfig, *, pair_separators: int) -> str:
    """Returns the `model_type` that a model is written as where nobody chooses one.

    What only an ELECTRA has makes one. RoBERTa's tokenizers put two separators between the texts of
    a pair: those that were imported, and those of byte-level BPE that were trained here. What
    RoBERTa's classes do not compute is a BERT, with a note unless it has a next-sentence head.
    Norms that come first make a RoBERTa-PreLayerNorm, with rotary positions a ModernBERT, or where
    they are RMSNorm a EuroBERT (an UltraBERT with two maps in the head), and these alone a
    RoFormer, whatever the tokenizer.
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
    if model.position_embedding_type not in ROBERTA_FAMILY.positions:
        return "bert"
    if problem := ROBERTA_FAMILY.misreads(model, head):
        note_once(f"written as BERT's class, not as RoBERTa's: {problem}")
        return "bert"
    return "roberta"
