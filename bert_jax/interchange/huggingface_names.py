"""The names of the parameters in Hugging Face's files: a table for each family, and the classes.

RoBERTa is BERT with other names, byte-level sub-words, positions that begin behind two unused rows
and one segment (transformers `modeling_roberta.py`). Its sentence classifier has a dense layer and
tanh of its own, where BERT has the pooler: the same computation under another name. Its pre-norm
form is RoBERTa-PreLayerNorm (`modeling_roberta_prelayernorm.py`). RoFormer is BERT with rotary
positions (`modeling_roformer.py`).
"""

import dataclasses
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.config import HeadConfig, ModelConfig
from bert_jax.errors import UsageError, brief
from bert_jax.interchange.name_map import NameMap, require_expressible
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


def _layout(base: str, fixed: dict[str, str], layer: dict[str, str] = _LAYER) -> NameMap:
    return NameMap(
        fixed={ours: f"{base}.{theirs}" for ours, theirs in _EMBEDDINGS.items()} | fixed,
        layer=layer,
        layer_prefix=f"{base}.encoder.layer.{{}}.",
        leaf=_LEAF,
        separator=".",
        # torch's Linear keeps `[outputs, inputs]`, and all heads in one dim.
        transposed=True,
    )


BERT = _layout("bert", _BERT)
ROBERTA = _layout("roberta", _ROBERTA)
# A generator's head and a discriminator's, which are of two models there.
_ELECTRA = {
    "encoder.embeddings.project": "electra.embeddings_project",
    "mlm": "generator_lm_head",
    "mlm.transform": "generator_predictions.dense",
    "mlm.layer_norm": "generator_predictions.LayerNorm",
    "discriminator.dense": "discriminator_predictions.dense",
    "discriminator.prediction": "discriminator_predictions.dense_prediction",
    "sequence_classifier": "classifier.out_proj",
    "token_classifier": "classifier",
    "span_classifier": "qa_outputs",
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

_ROFORMER = {
    "encoder.embeddings.project": "roformer.embeddings_project",
    "mlm": "cls.predictions",
    "mlm.transform": "cls.predictions.transform.dense",
    "mlm.layer_norm": "cls.predictions.transform.LayerNorm",
    "sequence_classifier": "classifier.out_proj",
    "token_classifier": "classifier",
    "span_classifier": "qa_outputs",
}
ROFORMER = _layout("roformer", _ROFORMER)
ROFORMER_CLASSIFIER = _layout("roformer", _ROFORMER | {"pooler.dense": "classifier.dense"})

# The class that a model is written as: the first whose parts it has all of.
_OF_TASKS = {
    "ForSequenceClassification": ("pooler", "sequence_classifier"),
    "ForTokenClassification": ("token_classifier",),
    "ForQuestionAnswering": ("span_classifier",),
}
CLASSES = {
    **_OF_TASKS,
    "ForPreTraining": ("pooler", "mlm", "nsp"),
    "ForMaskedLM": ("mlm",),
    "ForNextSentencePrediction": ("pooler", "nsp"),
    "Model": (),
}
ELECTRA_CLASSES = {
    **_OF_TASKS,
    "ForPreTraining": ("discriminator",),
    "ForMaskedLM": ("mlm",),
    "Model": (),
}


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
    # Positions begin behind the id of padding (transformers modeling_roberta.py,
    # `create_position_ids_from_input_ids`): with padding as id 1, two rows of the position table
    # come before that of the first token, which our models do not have, and 512 positions are a
    # table of 514. This is the id that a config without `pad_token_id` means; None where the first
    # row is the first token's.
    default_pad: int | None = None
    # Parts that none of its classes has.
    lacks: frozenset[str] = frozenset()
    # What its masked-LM head computes, whatever the config's `hidden_act` says; None: that.
    mlm_act: str | None = None
    # What follows the pooler's map, and whether its classes take that from `hidden_act`.
    pooler_act: str = "tanh"
    pooler_has_hidden_act: bool = False
    # The parts of its classes, and of the bare model.
    classes: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: CLASSES)
    bare: frozenset[str] = frozenset({"pooler"})
    # Fields of ours beside those of every BERT that its config has, and what it leaves out of it.
    fields: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)
    # Fields of ours that its config does not have, and their only value.
    fixed: Mapping[str, Any] = field(default_factory=dict)
    # Our kinds of position -> how its config calls them; nothing where that is fixed.
    positions: Mapping[str, str] = field(default_factory=lambda: {"learned": "absolute"})
    # A tensor of sines that its files hold, which has nothing to learn.
    sinusoids: str = ""

    def unused_rows(self, pad: int) -> int:
        """Returns how many rows of the position table no token uses, given the id of padding."""
        return 0 if self.default_pad is None else pad + 1

    def unused_rows_of(self, theirs: Mapping[str, Any], path: Path) -> int:
        """Returns the same for the `config.json` at `path`."""
        pad = theirs.get("pad_token_id", self.default_pad)
        if self.default_pad is None:
            return 0
        if not isinstance(pad, int) or isinstance(pad, bool) or pad < 0:
            raise UsageError(
                f"{path}: pad_token_id is {brief(pad)}; RoBERTa's positions begin behind it: give "
                "the id of its padding token"
            )
        return self.unused_rows(pad)

    def without_rows(self, tensors: dict[str, np.ndarray], rows: int) -> dict[str, np.ndarray]:
        """Returns the tensors of a file without the first `rows` of its position table."""
        name = self.position_table
        if not rows or name not in tensors or not tensors[name].ndim:
            return tensors
        return tensors | {name: tensors[name][rows:]}

    def with_rows(self, tensors: dict[str, np.ndarray], rows: int) -> dict[str, np.ndarray]:
        """Returns tensors as a file has them: `rows` of zeros begin the position table."""
        name = self.position_table
        if not rows or name not in tensors:
            return tensors
        first = np.zeros((rows, *tensors[name].shape[1:]), tensors[name].dtype)
        return tensors | {name: np.concatenate([first, tensors[name]])}

    @property
    def position_table(self) -> str:
        return f"{self.base}.embeddings.position_embeddings.weight"

    def misreads(self, model: ModelConfig, head: HeadConfig) -> str:
        """Returns what its classes would compute otherwise than the model; nothing if all is
        well.
        """
        is_pooled = self.pooler_has_hidden_act and "pooler" in head.parts
        if is_pooled and model.hidden_act != self.pooler_act:
            return (
                f"hidden_act is {model.hidden_act}, which {self.class_prefix}'s classifier "
                f"also uses, where this model uses {self.pooler_act}"
            )
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

    def require_expressible(self, model: ModelConfig, head: HeadConfig) -> None:
        """Raises UsageError for a model that none of the family's classes computes."""
        require_expressible(
            model,
            head,
            self.names_with(head.parts),
            positions=tuple(self.positions),
            lacks=self.lacks,
            fields=self.fields,
            fixed=self.fixed,
            pooler_act=self.pooler_act,
        )
        if problem := self.misreads(model, head):
            remedy = ": write it as bert, with `model_type`" if self.base == "roberta" else ""
            raise UsageError(f"model.{problem}{remedy}")


# Only transformers 4 computes the last two kinds of position. Only BERT has them: a RoBERTa's
# distances would count the unused rows of its positions, too.
BERT_FAMILY = Family(
    base="bert",
    names=BERT,
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
    lacks=frozenset({"nsp"}),
    mlm_act="gelu",
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
    pooler_act="gelu",
    pooler_has_hidden_act=True,
    lacks=frozenset({"nsp"}),
    bare=frozenset(),
    fields=("embedding_size",),
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
    fields=("embedding_size",),
    # transformers configuration_electra.py
    defaults={
        "embedding_size": 128,
        "hidden_size": 256,
        "num_attention_heads": 4,
        "intermediate_size": 1024,
    },
)

# Copies of other tensors that some writers store (the tied output and its bias), and counters:
# name -> what it must equal, in a model whose encoder's names begin with `base`.
COPIES = {
    "cls.predictions.decoder.weight": "{base}.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
    "lm_head.decoder.weight": "{base}.embeddings.word_embeddings.weight",
    "lm_head.decoder.bias": "lm_head.bias",
    "generator_lm_head.weight": "electra.embeddings.word_embeddings.weight",
}
COUNTERS = tuple(
    f"{base}.embeddings.position_ids"
    for base in ("bert", "roberta", "electra", "roberta_prelayernorm")
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
    Norms that come first make a RoBERTa-PreLayerNorm, and rotary positions a RoFormer, whatever the
    tokenizer.
    """
    if model.norm_placement == "pre":
        return "roberta-prelayernorm"
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


def class_of(parts: Sequence[str]) -> str:
    """Returns the name, without "Bert" or the like before it, of the class that `parts` make up."""
    classes = ELECTRA_CLASSES if "discriminator" in parts else CLASSES
    return next(name for name, needed in classes.items() if set(needed) <= set(parts))


def declared_parts(architectures: Sequence[str], family: Family = BERT_FAMILY) -> set[str]:
    """Returns the parts of the classes a `config.json` names, as far as they are known here."""
    found: set[str] = set()
    for architecture in architectures:
        for name, parts in family.classes.items():
            if str(architecture).endswith(name):
                found |= set(parts) or family.bare
                break
    return found
