"""A family of Hugging Face models: one row of data, and at most two functions.

The row has the class in transformers, the names of the tensors, and the keys of `config.json` with
the model fields that they give. `read` and `write` treat the keys that no table can express.
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
# Fields of a model that change no output, and those of a generator, which is no part of a BERT.
_NO_OUTPUT = (*TRAINING_FIELDS, *GENERATOR_FIELDS)


class Item(NamedTuple):
    """An item of `config.json`: the model field that its key gives."""

    field: str
    # The value of a config without the key; None: it has none.
    default: Any
    # Their values -> ours, where the two differ.
    values: Mapping[Any, Any] | None = None

    def read(self, name: str, theirs: Mapping[str, Any], path: Path) -> Any:
        """Returns our value; raises UsageError for a value of another type or choice."""
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
        """Returns their value for ours."""
        if self.values is None:
            return value
        return next(theirs for theirs, ours in self.values.items() if ours == value)


def same(**defaults: Any) -> dict[str, Item]:
    """Returns keys that have the names of our fields, with their defaults."""
    return {name: Item(name, default) for name, default in defaults.items()}


# Their spellings of activations -> ours; the first spelling is written.
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_new",
    "gelu_pytorch_tanh": "gelu_new",
    "gelu_fast": "gelu_new",
    "silu": "silu",
    "swish": "silu",
}
# The place of the id of padding, which the tokenizer determines.
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
# The fields of a model that BERT has in other systems, by the same names.
MODEL_FIELDS = tuple(MODEL_KEYS)
LEARNED = {
    "position_embedding_type": Item("position_embedding_type", "absolute", {"absolute": "learned"})
}
BERT_KEYS = MODEL_KEYS | {"pad_token_id": PAD} | LEARNED | same(tie_word_embeddings=True)


@dataclass(frozen=True, kw_only=True)
class Family:
    """An entry of `registry.FAMILIES`: how the models of one `model_type` map to ours."""

    # The prefix of the encoder's tensors.
    base: str
    names: NameMap
    class_prefix: str = "Bert"
    # The keys of `config.json`, in their order.
    keys: dict[str, Item] = field(default_factory=lambda: BERT_KEYS)
    # Fields of ours without a key, and their only value.
    fixed: dict[str, Any] = field(default_factory=dict)
    # Keys that must be false or absent.
    refused: tuple[str, ...] = ()
    # Keys of dropout rates: these are read as 0, with a note.
    dropouts: tuple[str, ...] = ()
    # Keys of the ids of tokens -> the roles of the tokens.
    token_ids: Mapping[str, str] = field(default_factory=dict)
    # Fields that have no key of their own, but are treated by the two functions below.
    fields: tuple[str, ...] = ()
    # Returns the fields of a `config.json` at a path, given those that `keys` gave.
    read: Callable[[Mapping[str, Any], dict[str, Any], Path], dict[str, Any]] | None = None
    # Returns further keys of a model, or other values of `keys`. Raises UsageError for a model that
    # a config cannot express.
    write: Callable[[ModelConfig], dict[str, Any]] | None = None
    # Whether `num_labels` is written: text-embeddings-inference 0d124dc takes a ModernBERT without
    # the key for a model of one label.
    writes_num_labels: bool = False
    # Parts that no class has.
    lacks: frozenset[str] = frozenset()
    # The names of a model with a classifier of `pooled_parts`, which has its own dense layer in
    # place of the pooler, with or without a norm (`transform`); and a tensor of that classifier.
    pooled_names: NameMap | None = None
    pooled_classifier: str | None = None
    pooled_parts: frozenset[str] = frozenset({"sequence_classifier"})
    transform: bool = False
    # The activation of the pooler; None: that of the layers.
    pooler_act: str | None = "tanh"
    # The activation of the masked-LM head whatever `hidden_act` is; None: that of the layers.
    mlm_act: str | None = None
    # Positions begin after the id of padding (transformers modeling_roberta.py,
    # `create_position_ids_from_input_ids`): with padding as id 1, two unused rows precede the first
    # token's, and 512 positions are a table of 514. This is the id of a config without
    # `pad_token_id`; None: there are no unused rows.
    default_pad: int | None = None
    # A tensor of sines in the files, which has nothing to learn.
    sinusoids: str = ""
    # Fused matrices of the files -> their parts in order. A part is MATRIX.PART in `names`.
    joined: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    # Other prefixes of names in the files of some writers -> the prefixes in `names`.
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

    def to_tensors(self, params: Any, *, pad: int) -> dict[str, np.ndarray]:
        """Returns the tensors of a file, for parameters or gradients: with fused matrices, and the
        unused rows of the position table as zeros.
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
        """Returns the tensors of a file with fused matrices cut into their parts, and the position
        table without its `unused` rows. Tensors of a wrong shape stay for the check of shapes.
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
                f"{path}: pad_token_id is {brief(pad)}; RoBERTa's positions begin behind it: give "
                "the id of its padding token"
            )
        return self.unused_rows(pad)

    # --- models that the classes compute -----------------------------------------------------

    def misreads(self, model: ModelConfig, head: HeadConfig) -> str:
        """Returns what its classes compute differently from the model; "" if nothing."""
        if self.mlm_act in (None, model.hidden_act) or "mlm" not in head.parts:
            return ""
        return (
            f"hidden_act is {model.hidden_act}, but the masked-LM head of {self.class_prefix}'s "
            f"class computes {self.mlm_act} regardless of hidden_act"
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
            problems.append(f"this format has no name for {', '.join(unknown)}")
            remedies += ["set objective=mlm"] * (set(unknown) <= {"pooler", "nsp"})
        if remedies:
            problems.append(f"to export a model, train it with {' '.join(remedies)}")
        if problems:
            raise UsageError("; ".join(problems))
        if problem := self.misreads(model, head):
            remedy = ": write it as bert, with `model_type`" if self.base == "roberta" else ""
            raise UsageError(f"model.{problem}{remedy}")
        if self.write is not None:
            self.write(model)

    def _known_values(
        self, model: ModelConfig, head: HeadConfig, names: NameMap
    ) -> dict[str, tuple[Any, ...]]:
        """Returns the values that each field may have, the usual one first."""
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
    """Returns the name, without "Bert" or the like, of the class that `parts` make up."""
    classes = ELECTRA_CLASSES if "discriminator" in parts else CLASSES
    return next(name for name, needed in classes.items() if set(needed) <= set(parts))


def declared_parts(architectures: Sequence[str], family: Family) -> set[str]:
    """Returns the parts of the classes that a `config.json` names, as far as they are known."""
    found: set[str] = set()
    named = family.names.roots | (family.pooled_names.roots if family.pooled_names else set())
    for architecture in architectures:
        classes = ELECTRA_CLASSES if "discriminator" in named else CLASSES
        known = (parts for name, parts in classes.items() if str(architecture).endswith(name))
        if (parts := next(known, None)) is not None:
            found |= set(parts) & named or ({"pooler"} if family.bare_has_pooler else set())
    return found


def _written(value: Any) -> str:
    """Returns a value as an override has it."""
    if isinstance(value, Kind):
        return json.dumps(to_dict(value))
    return str(value).lower() if isinstance(value, bool) else str(value)
