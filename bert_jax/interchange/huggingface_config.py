"""Reads and writes `config.json` of Hugging Face directories."""

from pathlib import Path
from typing import Any

from bert_jax.config import HeadConfig, ModelConfig, from_dict
from bert_jax.errors import UsageError, brief
from bert_jax.interchange.family import PAD, Family, class_of
from bert_jax.progress import note_once
from bert_jax.registry import FAMILIES

# Keys of models that are not encoders.
_REFUSED = ("is_decoder", "add_cross_attention")
# One name is generated per label.
_MOST_LABELS = 1_000_000


def config_of(
    model: ModelConfig,
    head: HeadConfig | None = None,
    *,
    dtype: str = "float32",
    pad: int = 0,
    model_type: str = "bert",
) -> dict[str, Any]:
    """Returns the content of `config.json`. `pad` is the padding id."""
    head = head or HeadConfig()
    family = FAMILIES[model_type]
    # Fields that other keys express.
    derived = {
        "pad_token_id": pad,
        "max_position_embeddings": model.max_position_embeddings + family.unused_rows(pad),
        "embedding_size": model.table_size,
        "num_key_value_heads": model.num_key_value_heads or model.num_attention_heads,
        "head_dim": model.hidden_size // model.num_attention_heads,
    }
    described: dict[str, Any] = {
        "architectures": [f"{family.class_prefix}{class_of(head.parts)}"],
        "model_type": model_type,
    }
    for name, key in family.keys.items():
        value = derived[key.field] if key.field in derived else getattr(model, key.field)
        described[name] = key.write(value)
    if family.write is not None:
        described |= family.write(model)
    described.setdefault("pad_token_id", pad)
    described["torch_dtype"] = dtype
    if {"sequence_classifier", "token_classifier"} & set(head.parts):
        labels = head.labels or ("LABEL_0",)
        described["id2label"] = {str(i): label for i, label in enumerate(labels)}
        described["label2id"] = {label: i for i, label in enumerate(labels)}
        if family.writes_num_labels:
            described["num_labels"] = len(labels)
    if "sequence_classifier" in head.parts:
        is_regression = len(head.labels) <= 1
        described["problem_type"] = "regression" if is_regression else "single_label_classification"
    is_bare = class_of(head.parts) == "Model" and "pooler" not in head.parts
    if is_bare and family.bare_has_pooler:
        # Only bert-jax reads this key; transformers' classes take an argument instead.
        described["add_pooling_layer"] = False
    return described


def family_of(theirs: dict[str, Any], path: Path) -> Family:
    """Returns the family that a config names."""
    kind = theirs.get("model_type", "bert")
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise UsageError(
            f"{path}: model_type is {brief(kind)}; supported: {', '.join(FAMILIES.names())}. If a "
            "Python file registers it, load that file with `extend`"
        )
    return FAMILIES[kind]


def model_of(theirs: dict[str, Any], path: Path) -> ModelConfig:
    """Returns the model that a config describes. Raises UsageError if it is not supported."""
    family = family_of(theirs, path)
    for name in (*_REFUSED, *family.refused):
        if theirs.get(name):
            raise UsageError(f"{path}: {name} is {brief(theirs[name])}, which is not supported")
    if theirs.get("problem_type") == "multi_label_classification":
        raise UsageError(f"{path}: multi_label_classification is not supported")
    found: dict[str, Any] = {}
    named: dict[str, str] = {}
    for name, key in family.keys.items():
        if key is PAD:
            continue
        value, first = key.read(name, theirs, path), named.setdefault(key.field, name)
        if found.setdefault(key.field, value) != value:
            raise UsageError(
                f"{path}: {name} is {brief(theirs.get(name, key.default))}, but {first} is "
                f"{brief(theirs.get(first, family.keys[first].default))}; bert-jax computes only "
                "models with the same value for both"
            )
    if family.read is not None:
        found |= family.read(theirs, found, path)
    if family.dropouts:
        if dropped := [name for name in family.dropouts if theirs.get(name)]:
            note_once(f"{path}: {', '.join(dropped)} ignored; the run's config sets dropout")
        found |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    width, heads = found["hidden_size"], max(found["num_attention_heads"], 1)
    if found.pop("head_dim", None) not in (None, width // heads):
        raise UsageError(f"{path}: head_dim must be hidden_size / num_attention_heads")
    # Our fields are 0 if they are as large as another one.
    if found.get("embedding_size", width) in (None, width):
        found["embedding_size"] = 0
    if found.get("num_key_value_heads", heads) in (None, heads):
        found["num_key_value_heads"] = 0
    found["max_position_embeddings"] -= family.unused_rows_of(theirs, path)
    return from_dict(found | family.fixed, ModelConfig, str(path))


def architectures(theirs: dict[str, Any], path: Path) -> list[str]:
    """Returns the names of the classes that a config gives."""
    given = theirs.get("architectures") or []
    if not isinstance(given, list) or not all(isinstance(name, str) for name in given):
        raise UsageError(f"{path}: architectures is {brief(given)}; expected a list of names")
    # Its tensors look like a regression, but it selects the best of several texts.
    if other := [name for name in given if name.endswith("ForMultipleChoice")]:
        raise UsageError(f"{path}: architectures has {other[0]}, which is not supported")
    return given


def labels(theirs: dict[str, Any], path: Path, *, outputs: int | None = None) -> tuple[str, ...]:
    """Returns the names of the classes; a regression has at most one.

    If `num_labels` and `id2label` disagree, transformers 4 uses the second and 5 the first: the
    number of `outputs` of the classifier decides.
    """
    given, count = theirs.get("id2label"), theirs.get("num_labels")
    is_sized = isinstance(given, dict) and count is not None
    count = 2 if count is None else count  # their default, which is not written
    if type(count) is not int or not 1 <= count <= _MOST_LABELS:
        raise UsageError(f"{path}: num_labels is {brief(count)}; expected 1 to {_MOST_LABELS:,}")
    if not given or (is_sized and len(given) != outputs == count):
        given = {str(number): f"LABEL_{number}" for number in range(count)}
    try:
        named = {int(number): label for number, label in given.items()}
    except (AttributeError, ValueError) as error:
        raise UsageError(f"{path}: id2label must map numbers to labels") from error
    if sorted(named) != list(range(len(named))) or not all(
        isinstance(label, str) for label in named.values()
    ):
        raise UsageError(f"{path}: id2label must number its labels 0 to {len(named) - 1}")
    if theirs.get("problem_type") == "regression" and len(named) > 1:
        raise UsageError(f"{path}: a regression with {len(named)} outputs is not supported")
    return () if named == {0: "LABEL_0"} else tuple(named[number] for number in range(len(named)))
