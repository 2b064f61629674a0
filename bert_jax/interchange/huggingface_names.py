"""The names of the parameters in Hugging Face's files: one table for BERT, one for RoBERTa, and the
classes.

RoBERTa is BERT with other names, byte-level sub-words, positions that begin behind two unused rows
and one segment (transformers `modeling_roberta.py`). Its sentence classifier has a dense layer and
tanh of its own, where BERT has the pooler: the same computation under another name.
"""

import dataclasses
from collections.abc import Container, Sequence
from dataclasses import dataclass

from bert_jax.config import HeadConfig, ModelConfig
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
_EMBEDDINGS = {
    "encoder.embeddings.word": "embeddings.word_embeddings",
    "encoder.embeddings.position": "embeddings.position_embeddings",
    "encoder.embeddings.token_type": "embeddings.token_type_embeddings",
    "encoder.embeddings.layer_norm": "embeddings.LayerNorm",
}
_BERT = {
    "pooler.dense": "bert.pooler.dense",
    "mlm": "cls.predictions",
    "mlm.transform": "cls.predictions.transform.dense",
    "mlm.layer_norm": "cls.predictions.transform.LayerNorm",
    "nsp": "cls.seq_relationship",
    "sequence_classifier": "classifier",
    "token_classifier": "classifier",
    "span_classifier": "qa_outputs",
}
_ROBERTA = {
    "pooler.dense": "roberta.pooler.dense",
    "mlm": "lm_head",
    "mlm.transform": "lm_head.dense",
    "mlm.layer_norm": "lm_head.layer_norm",
    # Their encoder was trained without it.
    "nsp": "cls.seq_relationship",
    "sequence_classifier": "classifier.out_proj",
    "token_classifier": "classifier",
    "span_classifier": "qa_outputs",
}
_LEAF = {
    "kernel": "weight",
    "embedding": "weight",
    "scale": "weight",
    "bias": "bias",
    "norm_bias": "bias",
}


def _layout(base: str, fixed: dict[str, str]) -> NameMap:
    return NameMap(
        fixed={ours: f"{base}.{theirs}" for ours, theirs in _EMBEDDINGS.items()} | fixed,
        layer=_LAYER,
        layer_prefix=f"{base}.encoder.layer.{{}}.",
        leaf=_LEAF,
        separator=".",
        # torch's Linear keeps `[outputs, inputs]`, and all heads in one dim.
        transposed=True,
    )


BERT = _layout("bert", _BERT)
ROBERTA = _layout("roberta", _ROBERTA)
ROBERTA_CLASSIFIER = _layout("roberta", _ROBERTA | {"pooler.dense": "classifier.dense"})


@dataclass(frozen=True, kw_only=True)
class Family:
    """An entry of `registry.FAMILIES`: how the models of one `model_type` map to ours."""

    # What the names of the encoder's tensors begin with, and those of the classes.
    base: str
    names: NameMap
    class_prefix: str = "Bert"
    # The names where the sentence classifier has a dense layer of its own in place of the pooler,
    # and the tensor that only such a classifier has.
    pooled_names: NameMap | None = None
    pooled_classifier: str | None = None
    # Rows of the position table before that of the first token: one more than `pad_token_id`, whose
    # default this is; None where the first row is the first token's.
    default_pad: int | None = None
    # Parts that none of its classes has.
    lacks: frozenset[str] = frozenset()
    # What its masked-LM head computes, whatever the config's `hidden_act` says; None: that.
    mlm_act: str | None = None

    def misreads(self, model: ModelConfig, head: HeadConfig) -> str:
        """Returns what its classes would compute otherwise than the model; nothing if all is
        well.
        """
        if self.mlm_act in (None, model.hidden_act) or "mlm" not in head.parts:
            return ""
        return (
            f"hidden_act is {model.hidden_act}, but the masked-LM head of {self.class_prefix}'s "
            f"class computes {self.mlm_act} whatever that says"
        )

    def names_with(self, parts: Container[str]) -> NameMap:
        """Returns the names of a model with these parts."""
        is_pooled = "sequence_classifier" in parts
        return self.pooled_names if self.pooled_names and is_pooled else self.names


BERT_FAMILY = Family(base="bert", names=BERT)
# RoBERTa's positions begin behind the number of its padding token, which is 1 unless it says so
# (transformers modeling_roberta.py, create_position_ids_from_input_ids).
ROBERTA_FAMILY = Family(
    base="roberta",
    names=ROBERTA,
    class_prefix="Roberta",
    pooled_names=ROBERTA_CLASSIFIER,
    pooled_classifier="classifier.out_proj.weight",
    default_pad=1,
    lacks=frozenset({"nsp"}),
    mlm_act="gelu",
)
XLM_ROBERTA_FAMILY = dataclasses.replace(ROBERTA_FAMILY, class_prefix="XLMRoberta")
CAMEMBERT_FAMILY = dataclasses.replace(ROBERTA_FAMILY, class_prefix="Camembert")

# Copies of other tensors that some writers store (the tied output and its bias), and counters:
# name -> what it must equal.
COPIES = {
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
    "lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight",
    "lm_head.decoder.bias": "lm_head.bias",
}
COUNTERS = ("bert.embeddings.position_ids", "roberta.embeddings.position_ids")

# The class that a model is written as: the first whose parts it has all of.
CLASSES = {
    "ForSequenceClassification": ("pooler", "sequence_classifier"),
    "ForTokenClassification": ("token_classifier",),
    "ForQuestionAnswering": ("span_classifier",),
    "ForPreTraining": ("pooler", "mlm", "nsp"),
    "ForMaskedLM": ("mlm",),
    "ForNextSentencePrediction": ("pooler", "nsp"),
    "Model": (),
}


def family_of(model: ModelConfig, head: HeadConfig, *, pair_separators: int) -> str:
    """Returns the `model_type` that a model is written as where nobody chooses one.

    RoBERTa's tokenizers put two separators between the texts of a pair: those that were imported,
    and those of byte-level BPE that were trained here. What RoBERTa's classes do not compute is a
    BERT, which is said unless its next-sentence head tells.
    """
    if pair_separators < 2 or ROBERTA_FAMILY.lacks & set(head.parts):
        return "bert"
    if problem := ROBERTA_FAMILY.misreads(model, head):
        note_once(f"written as BERT's class, not as RoBERTa's: {problem}")
        return "bert"
    return "roberta"


def class_of(parts: Sequence[str]) -> str:
    """Returns the name, without "Bert" or the like before it, of the class that `parts` make up."""
    return next(name for name, needed in CLASSES.items() if set(needed) <= set(parts))


def declared_parts(architectures: Sequence[str]) -> set[str]:
    """Returns the parts of the classes a `config.json` names, as far as they are known here."""
    found: set[str] = set()
    for architecture in architectures:
        for name, parts in CLASSES.items():
            if str(architecture).endswith(name):
                # A bare model is an encoder and a pooler.
                found |= set(parts) or {"pooler"}
                break
    return found
