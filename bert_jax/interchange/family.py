"""A family of Hugging Face models: a data record, and at most two functions.

The record has the class in transformers, the names of the tensors, and the keys of `config.json`
with their model fields. `read` and `write` handle the keys that no table can express.
"""

import dataclasses
import json
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bert_jax.config import HeadConfig, ModelConfig
from bert_jax.config.conversion import to_dict
from bert_jax.config.fields import Kind
from bert_jax.config.model import GENERATOR_FIELDS, TRAINING_FIELDS
from bert_jax.errors import UsageError, brief
from bert_jax.interchange.name_map import NameMap

# A model is written as the first class with a subset of its parts.
OF_TASKS = {
    "ForSequenceClassification": ("pooler", "sequence_classifier"),
    "ForTokenClassification": ("token_classifier",),
    "ForQuestionAnswering": ("span_classifier",),
}
CLASSES = {
    **OF_TASKS,
    "ForPreTraining": ("pooler", "mlm", "nsp"),
    "ForMaskedLM": ("mlm",),
    "ForNextSentencePrediction": ("pooler", "nsp"),
    "Model": (),
}
ELECTRA_CLASSES = {
    **OF_TASKS,
    "ForPreTraining": ("discriminator",),
    "ForMaskedLM": ("mlm",),
    "Model": (),
}
_CLASSIFIERS = ("sequence_classifier", "token_classifier", "span_classifier")
# Model fields that do not change the output, and generator fields, which BERT does not have.
_NO_OUTPUT = (*TRAINING_FIELDS, *GENERATOR_FIELDS)


class Item(NamedTuple):
    """A key of `config.json` and the model field that it sets."""

    field: str
    # The value if a config lacks the key; None means no default.
    default: Any
    # Their values -> bert-jax values, if the two differ.
    values: Mapping[Any, Any] | None = None

    def read(self, name: str, theirs: Mapping[str, Any], path: Path) -> Any:
        """Returns the bert-jax value; raises UsageError for a value of another type or choice."""
        value = theirs.get(name)
        value = self.default if value is None else value
        kinds = (int, float) if isinstance(self.default, float) else type(self.default)
        kinds = (int, type(None)) if self.default is None else kinds
        is_truth = isinstance(value, bool) and not isinstance(self.default, bool)
        if is_truth or not isinstance(value, kinds):
            expected = "int" if self.default is None else type(self.default).__name__
            raise UsageError(f"{path}: {name} is {brief(value)}; expected {expected}")
        if self.values is None:
            return value
        if value not in self.values:
            raise UsageError(
                f"{path}: {name} is {brief(value)}; expected one of {', '.join(self.values)}"
            )
        return self.values[value]

    def write(self, value: Any) -> Any:
        """Returns their value for a bert-jax value."""
        if self.values is None:
            return value
        return next(theirs for theirs, ours in self.values.items() if ours == value)


def same(**defaults: Any) -> dict[str, Item]:
    """Returns keys that are named like the bert-jax fields, with their defaults."""
    return {name: Item(name, default) for name, default in defaults.items()}


# Their spellings of activations -> bert-jax names; the first spelling is written.
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_new",
    "gelu_pytorch_tanh": "gelu_new",
    "gelu_fast": "gelu_new",
    "silu": "silu",
    "swish": "silu",
}
# The key of the padding id, which the tokenizer determines.
PAD = Item("pad_token_id", 0)
# transformers configuration_bert.py
MODEL_KEYS = {
    **same(
        vocab_size=30_522, hidden_size=768, num_hidden_layers=12, num_attention_heads=12,
        intermediate_size=3072,
    ),
    "hidden_act": Item("hidden_act", "gelu", ACTIVATIONS),
    **same(
        hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1, max_position_embeddings=512,
        type_vocab_size=2, initializer_range=0.02, layer_norm_eps=1e-12,
    ),
}  # fmt: skip
# The fields of a BERT model that have the same names in other libraries.
MODEL_FIELDS = tuple(MODEL_KEYS)
LEARNED = {
    "position_embedding_type": Item("position_embedding_type", "absolute", {"absolute": "learned"})
}
BERT_KEYS = MODEL_KEYS | {"pad_token_id": PAD} | LEARNED | same(tie_word_embeddings=True)


@dataclass(frozen=True, kw_only=True)
class Family:
    """An entry of `registry.FAMILIES`: how models of one `model_type` map to bert-jax models."""

    # The prefix of the encoder's tensors.
    base: str
    names: NameMap
    class_prefix: str = "Bert"
    # The keys of `config.json`, in order.
    keys: dict[str, Item] = field(default_factory=lambda: BERT_KEYS)
    # Fields of bert-jax without a key, and their only value.
    fixed: dict[str, Any] = field(default_factory=dict)
    # Keys that must be false or absent.
    refused: tuple[str, ...] = ()
    # Keys of dropout rates: read as 0, with a note.
    dropouts: tuple[str, ...] = ()
    # Keys of token ids -> the roles of the tokens.
    token_ids: Mapping[str, str] = field(default_factory=dict)
    # Fields without a separate key that the two functions below handle.
    fields: tuple[str, ...] = ()
    # Returns the fields of a `config.json` at a path, given those set by `keys`.
    read: Callable[[Mapping[str, Any], dict[str, Any], Path], dict[str, Any]] | None = None
    # Returns additional keys of a model, or other values of `keys`. Raises UsageError for a model
    # that a config cannot express.
    write: Callable[[ModelConfig], dict[str, Any]] | None = None
    # Whether `num_labels` is written: without the key, text-embeddings-inference 0d124dc assumes
    # one label for a ModernBERT.
    writes_num_labels: bool = False
    # Parts that the family's classes lack.
    lacks: frozenset[str] = frozenset()
    # The names of a model with a classifier of `pooled_parts`, which has a dense layer instead of
    # the pooler, with or without a norm (`transform`); and a tensor of that classifier.
    pooled_names: NameMap | None = None
    pooled_classifier: str | None = None
    pooled_parts: frozenset[str] = frozenset({"sequence_classifier"})
    transform: bool = False
    # The activation of the pooler; None: the activation of the layers.
    pooler_act: str | None = "tanh"
    # The activation of the masked-LM head if it ignores `hidden_act`; None otherwise.
    mlm_act: str | None = None
    # Positions start after the padding id (transformers modeling_roberta.py,
    # `create_position_ids_from_input_ids`): with padding id 1, two unused rows precede the first
    # token's, and 512 positions need a table of 514. This is the id if a config lacks
    # `pad_token_id`; None: no unused rows.
    default_pad: int | None = None
    # A tensor of constant sines in the files.
    sinusoids: str = ""
    # Fused matrices in the files -> their parts in order. A part is MATRIX.PART in `names`.
    joined: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    # Other prefixes that some writers use -> the prefixes in `names`.
    prefixes: Mapping[str, str] = field(default_factory=dict)

    @property
    def bare_has_pooler(self) -> bool:
        """Returns whether the model without heads has the pooler."""
        return self.names.fixed.get("pooler.dense") == f"{self.base}.pooler.dense"

    @property
    def position_table(self) -> str:
        return f"{self.base}.embeddings.position_embeddings.weight"

    def names_with(self, parts: Container[str]) -> NameMap:
        """Returns the names of a model with these parts."""
        is_pooled = any(part in parts for part in self.pooled_parts)
        return self.pooled_names if self.pooled_names and is_pooled else self.names

    def pooler_act_of(self, model: ModelConfig) -> Any:
        """Returns the activation of the dense layer before a classifier."""
        return self.pooler_act or model.hidden_act

    # --- tensors of a file -------------------------------------------------------------------

    def to_tensors(self, params: Any, *, pad: int = 0) -> dict[str, np.ndarray]:
        """Returns the tensors of a file by name for parameters or gradients: with fused matrices,
        and with zeros in the unused rows of the position table. `pad` is the padding id.
        """
        found = self.names_with(params).to_tensors(params)
        for matrix, parts in self.joined.items():
            first = f".{matrix}.{parts[0]}."
            for name in [name for name in found if first in name]:
                names = [name.replace(first, f".{matrix}.{part}.") for part in parts]
                whole = np.concatenate([found.pop(each) for each in names])
                found[name.replace(first, f".{matrix}.")] = whole
        if (unused := self.unused_rows(pad)) and self.position_table in found:
            table = found[self.position_table]
            rows = np.zeros((unused, *table.shape[1:]), table.dtype)
            found[self.position_table] = np.concatenate([rows, table])
        return found

    def from_tensors(self, tensors: Mapping[str, np.ndarray], unused: int) -> dict[str, np.ndarray]:
        """Returns the tensors of a file with fused matrices split, and the position table without
        its `unused` rows. Tensors of a wrong shape are left to the shape check.
        """
        found = dict(tensors)
        for matrix, parts in self.joined.items():
            for name in [name for name in found if f".{matrix}." in name and found[name].ndim]:
                if len(found[name]) % len(parts) == 0:
                    pieces = np.split(found.pop(name), len(parts))
                    for part, piece in zip(parts, pieces, strict=True):
                        found[name.replace(f".{matrix}.", f".{matrix}.{part}.")] = piece
        table = found.get(self.position_table)
        if unused and table is not None and table.ndim:
            found[self.position_table] = table[unused:]
        return found

    def unused_rows(self, pad: int) -> int:
        """Returns the number of rows of the position table that no token uses."""
        return 0 if self.default_pad is None else pad + 1

    def unused_rows_of(self, theirs: Mapping[str, Any], path: Path) -> int:
        """Returns the same number for the `config.json` at `path`."""
        if self.default_pad is None:
            return 0
        pad = theirs.get("pad_token_id", self.default_pad)
        if type(pad) is not int or pad < 0:
            raise UsageError(
                f"{path}: pad_token_id is {brief(pad)}, but RoBERTa's positions start after it; "
                "set it to the id of the padding token"
            )
        return self.unused_rows(pad)

    # --- models that the classes compute -----------------------------------------------------

    def misreads(self, model: ModelConfig, head: HeadConfig) -> str:
        """Returns how the family's classes compute a model differently; "" if they do not."""
        if self.mlm_act in (None, model.hidden_act) or "mlm" not in head.parts:
            return ""
        return (
            f"hidden_act is {model.hidden_act}, but the masked-LM head of {self.class_prefix} in "
            f"transformers always uses {self.mlm_act}"
        )

    def require_expressible(self, model: ModelConfig, head: HeadConfig) -> None:
        """Raises UsageError for a model that none of the family's classes computes.

        The message names each field that the format does not support, and a value that it supports.
        """
        names, pooler_act = self.names_with(head.parts), self.pooler_act_of(model)
        unknown = [part for part in head.parts if part not in names.roots - self.lacks]
        # Field -> its value, and the usual value of this format.
        wrong = {
            f"model.{name}": (getattr(model, name), values[0])
            for name, values in self._known_values(model, head, names).items()
            if getattr(model, name) not in values
        }
        parts = {*head.parts} - {*unknown}
        if "pooler" in parts and head.pooler_act != pooler_act:
            wrong["head.pooler_act"] = head.pooler_act, pooler_act
        if {"pooler", *_CLASSIFIERS} & parts and head.transform != self.transform:
            wrong["head.transform"] = head.transform, self.transform
        problems = []
        remedies = [f"set {field}={_written(usual)}" for field, (_, usual) in wrong.items()]
        if wrong:
            listed = ", ".join(f"{field} is {_written(own)}" for field, (own, _) in wrong.items())
            problems.append(f"{listed}, which this format does not support")
        if wrong.get("model.type_vocab_size") == (2, 0):
            remedies.append(
                "set data.sequence_format=full_sentences"
            )  # other rows have two segments
        if unknown:
            problems.append(f"this format does not support head.parts {', '.join(unknown)}")
            remedies += ["set objective=mlm"] * (set(unknown) <= {"pooler", "nsp"})
        if remedies:
            problems.append(f"to export a model, train it with {' '.join(remedies)}")
        if problems:
            raise UsageError("; ".join(problems))
        if problem := self.misreads(model, head):
            remedy = "; export it with `model_type` bert" if self.base == "roberta" else ""
            raise UsageError(f"model.{problem}{remedy}")
        if self.write is not None:
            self.write(model)

    def _known_values(
        self, model: ModelConfig, head: HeadConfig, names: NameMap
    ) -> dict[str, tuple[Any, ...]]:
        """Returns the supported values of each field, the usual one first."""
        keyed = {key.field: key for key in self.keys.values()}
        known: dict[str, tuple[Any, ...]] = {}
        for each in dataclasses.fields(ModelConfig):
            name = each.name
            if name in self.fixed:
                known[name] = (self.fixed[name],)
            elif name in keyed:
                if (values := keyed[name].values) is not None:
                    known[name] = tuple(values.values())
            elif name not in (*self.fields, *_NO_OUTPUT):
                known[name] = (each.default,)
        if "sequence_classifier" in head.parts:
            known.setdefault("classifier_pooling", ("cls",))
        if "encoder.embeddings.token_type" in names.fixed and not model.type_vocab_size:
            known["type_vocab_size"] = (2,)
        return known


def class_of(parts: Sequence[str]) -> str:
    """Returns the name of the class with `parts`, without a prefix such as "Bert"."""
    classes = ELECTRA_CLASSES if "discriminator" in parts else CLASSES
    return next(name for name, needed in classes.items() if set(needed) <= set(parts))


def declared_parts(architectures: Sequence[str], family: Family) -> set[str]:
    """Returns the parts of the known classes that a `config.json` names."""
    found: set[str] = set()
    named = family.names.roots | (family.pooled_names.roots if family.pooled_names else set())
    for architecture in architectures:
        classes = ELECTRA_CLASSES if "discriminator" in named else CLASSES
        known = (parts for name, parts in classes.items() if str(architecture).endswith(name))
        if (parts := next(known, None)) is not None:
            found |= set(parts) & named or ({"pooler"} if family.bare_has_pooler else set())
    return found


def _written(value: Any) -> str:
    """Returns a value as written in an override."""
    if isinstance(value, Kind):
        return json.dumps(to_dict(value))
    return str(value).lower() if isinstance(value, bool) else str(value)
