"""`config.json` of Hugging Face's directories, both ways, and checked."""

import dataclasses
from pathlib import Path
from typing import Any

from bert_jax.config import HeadConfig, ModelConfig, from_dict
from bert_jax.errors import UsageError, brief
from bert_jax.interchange import name_map
from bert_jax.interchange.family import Family, class_of
from bert_jax.registry import FAMILIES

# Spellings of activations in their configs.
_ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_new",
    "gelu_pytorch_tanh": "gelu_new",
    "gelu_fast": "gelu_new",
    "silu": "silu",
    "swish": "silu",
}
# A name is made for each.
_MOST_LABELS = 1_000_000


def config_of(
    config: ModelConfig,
    head: HeadConfig | None = None,
    *,
    dtype: str = "float32",
    pad: int = 0,
    model_type: str = "bert",
) -> dict[str, Any]:
    """Returns the content of `config.json`: our model fields carry their names."""
    head = head or HeadConfig()
    family, kind = FAMILIES[model_type], config.position_embedding_type
    described = {
        "architectures": [f"{family.class_prefix}{class_of(head.parts)}"],
        "model_type": model_type,
    }
    if family.dialect is not None:
        described |= {**family.dialect.to_theirs(config), "pad_token_id": pad}
    else:
        described |= {name: getattr(config, name) for name in name_map.MODEL_FIELDS}
        described["max_position_embeddings"] += family.unused_rows(pad)
        described["pad_token_id"] = pad
        if family.positions:
            described["position_embedding_type"] = family.positions[kind]
        if "embedding_size" in family.fields:
            described["embedding_size"] = config.table_size
    described |= {"tie_word_embeddings": config.tie_word_embeddings, "torch_dtype": dtype}
    if {"sequence_classifier", "token_classifier"} & set(head.parts):
        labels = head.labels or ("LABEL_0",)
        described["id2label"] = {str(i): label for i, label in enumerate(labels)}
        described["label2id"] = {label: i for i, label in enumerate(labels)}
        if family.dialect is not None:
            # text-embeddings-inference 0d124dc takes a ModernBERT without it for one of one label.
            described["num_labels"] = len(labels)
    if "sequence_classifier" in head.parts:
        is_regression = len(head.labels) <= 1
        described["problem_type"] = "regression" if is_regression else "single_label_classification"
    is_bare = class_of(head.parts) == "Model" and "pooler" not in head.parts
    if is_bare and family.bare:
        described["add_pooling_layer"] = False  # ours to read back; their classes take an argument
    return described


def family_of(theirs: dict[str, Any], path: Path) -> Family:
    """Returns the family that a config names."""
    kind = theirs.get("model_type", "bert")
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise UsageError(
            f"{path}: model_type is {brief(kind)}; only {', '.join(FAMILIES.names())} are read. If "
            "a file of yours registers it, name that file with `extend`"
        )
    return FAMILIES[kind]


def model_of(theirs: dict[str, Any], path: Path) -> ModelConfig:
    """Returns the model that a config describes. Raises UsageError if it is none we can run."""
    family = family_of(theirs, path)
    kinds = {name: ours for ours, name in family.positions.items()}
    kind = theirs.get("position_embedding_type", "absolute")
    if kinds and kind not in list(kinds):
        raise UsageError(
            f"{path}: position_embedding_type {brief(kind)} is not supported; only absolute, "
            "and of a BERT relative_key and relative_key_query"
        )
    if theirs.get("rotary_value"):
        raise UsageError(f"{path}: rotary_value is true, which is not supported")
    if theirs.get("is_decoder") or theirs.get("add_cross_attention"):
        raise UsageError(f"{path}: describes a decoder; only encoders are read")
    if theirs.get("problem_type") == "multi_label_classification":
        raise UsageError(f"{path}: multi_label_classification is not supported")
    named = "hidden_activation" if "hidden_activation" in theirs else "hidden_act"
    if family.dialect is not None:
        theirs = family.dialect.to_ours(theirs, path)
    activation = theirs.get("hidden_act", "gelu")
    if activation not in list(_ACTIVATIONS):
        raise UsageError(
            f"{path}: {named} {brief(activation)} is not one of {', '.join(_ACTIVATIONS)}"
        )
    known, given = (*name_map.MODEL_FIELDS, *family.fields), {**family.defaults, **theirs}
    values = {name: given[name] for name in known if name in given}
    values |= {"hidden_act": _ACTIVATIONS[activation], **family.fixed}
    if kinds:
        values["position_embedding_type"] = kinds[kind]
    model = from_dict(values, ModelConfig, str(path))
    positions = model.max_position_embeddings - family.unused_rows_of(theirs, path)
    narrow = 0 if model.table_size == model.hidden_size else model.embedding_size
    return dataclasses.replace(model, max_position_embeddings=positions, embedding_size=narrow)


def architectures(theirs: dict[str, Any], path: Path) -> list[str]:
    """Returns the names of the classes that a config gives."""
    given = theirs.get("architectures") or []
    if not isinstance(given, list) or not all(isinstance(name, str) for name in given):
        raise UsageError(f"{path}: architectures is {brief(given)}; expected a list of names")
    # Its tensors are those of a regression, and its question is which of several texts is best.
    if other := [name for name in given if name.endswith("ForMultipleChoice")]:
        raise UsageError(f"{path}: architectures has {other[0]}, which is not supported")
    return given


def labels(theirs: dict[str, Any], path: Path, *, outputs: int | None = None) -> tuple[str, ...]:
    """Returns the names of the classes; a regression has one at most.

    Where `num_labels` and `id2label` disagree, transformers 4 takes the second and 5 the first:
    the number of `outputs` of the classifier decides.
    """
    given, count = theirs.get("id2label"), theirs.get("num_labels")
    is_sized = isinstance(given, dict) and count is not None
    count = 2 if count is None else count  # their default, which they do not write
    if type(count) is not int or not 1 <= count <= _MOST_LABELS:
        raise UsageError(f"{path}: num_labels is {brief(count)}; expected 1 to {_MOST_LABELS:,}")
    if not given or (is_sized and len(given) != outputs == count):
        given = {str(number): f"LABEL_{number}" for number in range(count)}
    try:
        named = {int(number): label for number, label in given.items()}
    except (AttributeError, ValueError) as error:
        raise UsageError(f"{path}: id2label is no table of numbers and labels") from error
    if sorted(named) != list(range(len(named))) or not all(
        isinstance(label, str) for label in named.values()
    ):
        raise UsageError(f"{path}: id2label does not number its labels 0 to {len(named) - 1}")
    if theirs.get("problem_type") == "regression" and len(named) > 1:
        raise UsageError(f"{path}: a regression with {len(named)} outputs is not supported")
    return () if named == {0: "LABEL_0"} else tuple(named[number] for number in range(len(named)))
