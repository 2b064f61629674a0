"""Families of Hugging Face's models: what tensors and fields are called, and their classes."""

import json
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.config import HeadConfig, ModelConfig
from bert_jax.config.conversion import to_dict
from bert_jax.config.fields import Kind, fields_of
from bert_jax.config.model import GENERATOR_FIELDS, TRAINING_FIELDS
from bert_jax.errors import UsageError, brief
from bert_jax.interchange.name_map import MODEL_FIELDS, NameMap

# The class that a model is written as: the first whose parts it has all of.
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
# The fields of a model that no other system's BERT has: for those formats they must be as they are
# by default. A generator is no part of a BERT, and how a model is trained changes no output.
_OURS = tuple(
    name
    for name in fields_of(ModelConfig)
    if name not in (*MODEL_FIELDS, *GENERATOR_FIELDS, *TRAINING_FIELDS)
)


class Dialect:
    """How a `config.json` describes an encoder, where that is not by BERT's fields."""

    def to_ours(self, theirs: Mapping[str, Any], path: Path) -> dict[str, Any]:
        """Returns the fields of `ModelConfig` that the file at `path` says.

        Raises UsageError, by their name, for what no model of ours computes.
        """
        raise NotImplementedError

    def to_theirs(self, model: ModelConfig) -> dict[str, Any]:
        """Returns what the file says of a model that has no `problem`."""
        raise NotImplementedError

    def problem(self, model: ModelConfig) -> str:
        """Returns what it cannot say of a model: a field, its value and why; nothing if all is
        well.
        """
        raise NotImplementedError


def checked(theirs: Mapping[str, Any], defaults: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Returns the fields of `defaults` as the file at `path` says them, or as they are there.

    Raises UsageError for a value of another type than the default.
    """
    values = {name: theirs.get(name, default) for name, default in defaults.items()}
    for name, default in defaults.items():
        kinds = (int, float) if isinstance(default, float) else type(default)
        is_truth = not isinstance(default, bool) and isinstance(values[name], bool)
        if is_truth or not isinstance(values[name], kinds):
            raise UsageError(
                f"{path}: {name} is {brief(values[name])}; expected {type(default).__name__}"
            )
    return values


def is_plain_rotation(rotation: Any) -> bool:
    """Returns whether a table of a `config.json` says nothing of rotary positions but a theta.

    What it says else lies in `rope_type`, or in `type` where that is not there (transformers
    modeling_rope_utils.py, `standardize_rope_params`).
    """
    if not isinstance(rotation, dict):
        return False
    return rotation.get("rope_type", rotation.get("type", "default")) == "default"


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
    # The classifiers that those are the names for, and whether they have a `Transform` before them.
    pooled_parts: frozenset[str] = frozenset({"sequence_classifier"})
    transform: bool = False
    # Positions begin behind the id of padding (transformers modeling_roberta.py,
    # `create_position_ids_from_input_ids`): with padding as id 1, two rows of the position table
    # come before that of the first token, which our models do not have, and 512 positions are a
    # table of 514. This is the id that a config without `pad_token_id` means; None where the first
    # row is the first token's.
    default_pad: int | None = None
    # Ids of tokens that its config names beside padding -> their roles.
    token_ids: Mapping[str, str] = field(default_factory=dict)
    # Parts that none of its classes has.
    lacks: frozenset[str] = frozenset()
    # What its masked-LM head computes, whatever the config's `hidden_act` says; None: that.
    mlm_act: str | None = None
    # What follows the pooler's map; None is the activation of the blocks.
    pooler_act: str | None = "tanh"
    # What its classifiers of texts may read (`model.classifier_pooling`).
    poolings: tuple[str, ...] = ("cls",)
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
    # How its config says the rest, where not by BERT's fields.
    dialect: Dialect | None = None
    # Matrices that its files hold as one -> the names of the parts, in their order. In `names` a
    # part is called MATRIX.PART.
    joined: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    # What names begin with in the files of some writers -> what they begin with in `names`.
    prefixes: Mapping[str, str] = field(default_factory=dict)

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

    def join(self, tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns tensors as a file has them: parts of one matrix below each other."""
        found = dict(tensors)
        for matrix, parts in self.joined.items():
            first = f".{matrix}.{parts[0]}."
            for name in [name for name in found if first in name]:
                names = [name.replace(first, f".{matrix}.{part}.") for part in parts]
                whole = name.replace(first, f".{matrix}.")
                found[whole] = np.concatenate([found.pop(each) for each in names])
        return found

    def split(self, tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns the tensors of a file with such matrices cut into their parts."""
        found = dict(tensors)
        for matrix, parts in self.joined.items():
            for name in [name for name in found if f".{matrix}." in name and found[name].ndim]:
                if len(found[name]) % len(parts):
                    continue  # of a wrong shape, which is said by who looks for the parts
                pieces = np.split(found.pop(name), len(parts))
                for part, piece in zip(parts, pieces, strict=True):
                    found[name.replace(f".{matrix}.", f".{matrix}.{part}.")] = piece
        return found

    @property
    def position_table(self) -> str:
        return f"{self.base}.embeddings.position_embeddings.weight"

    def pooler_act_of(self, model: ModelConfig) -> str:
        """Returns what follows the map before a classifier."""
        return self.pooler_act or model.hidden_act

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
        is_pooled = any(part in parts for part in self.pooled_parts)
        return self.pooled_names if self.pooled_names and is_pooled else self.names

    def require_expressible(self, model: ModelConfig, head: HeadConfig) -> None:
        """Raises UsageError for a model that none of the family's classes computes.

        All fields that are in the way are named, with the values that are not.
        """
        table, pooler_act = self.names_with(head.parts), self.pooler_act_of(model)
        known = {name: (getattr(ModelConfig, name),) for name in _OURS if name not in self.fields}
        known |= {"position_embedding_type": tuple(self.positions)} if self.positions else {}
        if "encoder.embeddings.token_type" in table.fixed and not model.type_vocab_size:
            known["type_vocab_size"] = (ModelConfig.type_vocab_size,)
        known |= {name: (value,) for name, value in self.fixed.items()}
        unsaid = [name for name, values in known.items() if getattr(model, name) not in values]
        named = table.roots - self.lacks
        unknown = [part for part in head.parts if part not in named]
        problems, remedies = [], [f"set model.{n}={_written(known[n][0])}" for n in unsaid]
        if "type_vocab_size" in unsaid and not known["type_vocab_size"][0]:
            remedies.append("set data.rows=full_sentences")  # others have two segments
        otherwise = "exporting it would change the outputs"
        if unsaid:
            listed = ", ".join(
                f"model.{name} is {_written(getattr(model, name))}" for name in unsaid
            )
            problems.append(f"{listed}, which this format does not support: {otherwise}")
        if unknown:
            problems.append(f"this format has no name for {', '.join(unknown)}")
            remedies += ["set objective=mlm"] * (set(unknown) <= {"pooler", "nsp"})
        if "pooler" in {*head.parts} - {*unknown} and head.pooler_act != pooler_act:
            problems.append(
                f"head.pooler_act is {head.pooler_act}, and this format has {pooler_act} there: "
                f"{otherwise}"
            )
            remedies.append(f"set head.pooler_act={pooler_act}")
        if "sequence_classifier" in head.parts and model.classifier_pooling not in self.poolings:
            problems.append(
                f"model.classifier_pooling is {model.classifier_pooling}, and the classifiers of "
                f"this format read {' or '.join(self.poolings)}: {otherwise}"
            )
            remedies.append(f"set model.classifier_pooling={self.poolings[0]}")
        begun = {"pooler", *_CLASSIFIERS} & {*head.parts} - {*unknown}
        if begun and head.transform != self.transform:
            problems.append(
                f"head.transform is {head.transform}, and this format has it {self.transform}: "
                f"{otherwise}"
            )
            remedies.append(f"set head.transform={_written(self.transform)}")
        if problems and remedies:
            problems.append(f"to export a model, train it with {' '.join(remedies)}")
        if problems:
            raise UsageError("; ".join(problems))
        if self.dialect is not None and (problem := self.dialect.problem(model)):
            raise UsageError(f"model.{problem}")
        if problem := self.misreads(model, head):
            remedy = ": write it as bert, with `model_type`" if self.base == "roberta" else ""
            raise UsageError(f"model.{problem}{remedy}")


def class_of(parts: Sequence[str]) -> str:
    """Returns the name, without "Bert" or the like before it, of the class that `parts` make up."""
    classes = ELECTRA_CLASSES if "discriminator" in parts else CLASSES
    return next(name for name, needed in classes.items() if set(needed) <= set(parts))


def declared_parts(architectures: Sequence[str], family: Family) -> set[str]:
    """Returns the parts of the classes a `config.json` names, as far as they are known here."""
    found: set[str] = set()
    for architecture in architectures:
        for name, parts in family.classes.items():
            if str(architecture).endswith(name):
                found |= set(parts) or family.bare
                break
    return found


def _written(value: Any) -> str:
    """Returns a value as an override has it."""
    return str(value).lower() if isinstance(value, bool) else _shown(value)


def _shown(value: Any) -> str:
    return json.dumps(to_dict(value)) if isinstance(value, Kind) else str(value)
