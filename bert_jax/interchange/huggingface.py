"""Hugging Face directories, both ways: `config.json`, `model.safetensors` and the tokenizer.

Read and written with `safetensors`: no torch, nothing unpickled. What is written loads as the
class that `config.json` names, of the family that is asked for (`registry.FAMILIES`); what is read
may be of any of these classes.
"""

import dataclasses
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.config import HeadConfig, ModelConfig, from_dict
from bert_jax.config_checks import validate_model
from bert_jax.data.tokenizer.tokenizer import Tokenizer, load_tokenizer
from bert_jax.errors import UsageError, brief
from bert_jax.interchange import electra_pair, name_map, safetensors_files, unused_rows
from bert_jax.interchange import huggingface_fields as fields
from bert_jax.interchange import huggingface_names as names
from bert_jax.interchange.huggingface_names import Family
from bert_jax.interchange.name_map import ImportedModel, NameMap
from bert_jax.registry import FAMILIES, PARTS

CONFIG = "config.json"
WEIGHTS, INDEX = safetensors_files.WEIGHTS, safetensors_files.INDEX
# Ours: Adam's moments and the step, in a file that other readers ignore.
MOMENTS = "moments.safetensors"

_HINT = "is this a model directory?"
# Spellings of activations in their configs.
_ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_new",
    "gelu_pytorch_tanh": "gelu_new",
    "gelu_fast": "gelu_new",
    "silu": "silu",
    "swish": "silu",
}


def tensor_names(config: ModelConfig, head: HeadConfig | None = None) -> dict[str, str]:
    """Returns our dotted path of every parameter -> the name Hugging Face's BERT gives it, or their
    ELECTRA where it is one.
    """
    head = head or HeadConfig()
    family = FAMILIES[names.family_of(config, head, pair_separators=1)]
    found = family.names_with(head.parts).names(config, head)
    return {".".join(path): name for path, name in found.items()}


def to_tensors(
    params: Any, family: Family = names.BERT_FAMILY, *, pad: int = 0
) -> dict[str, np.ndarray]:
    """Returns their name -> tensor in their layout, of parameters or of gradients. `pad` is the id
    of padding.
    """
    tensors = family.names_with(params).to_tensors(params)
    return unused_rows.added(tensors, family, _unused(family, pad))


def _unused(family: Family, pad: int) -> int:
    return 0 if family.default_pad is None else pad + 1


# --- writing -------------------------------------------------------------------------------------


def write(
    directory: Path,
    params: Any,
    config: ModelConfig,
    *,
    tokenizer: Path,
    head: HeadConfig | None = None,
    moments: tuple[Any, Any] | None = None,
    step: int = 0,
    dtype: str = "float32",
    max_file_bytes: int = safetensors_files.MAX_FILE_BYTES,
    model_type: str | None = None,
) -> None:
    """Writes parameters and the tokenizer directory as a new Hugging Face directory.

    `model_type` is one of `registry.FAMILIES`; None leaves the choice to `names.family_of`. The
    directory appears whole or not at all. `dtype` is "float32", "float16" or "bfloat16";
    `moments` are always float32. Raises UsageError if it exists and is not empty, if the family
    has no name for a part, or if a value is beyond the range of `dtype`.
    """
    head = head or HeadConfig()
    sub_words = load_tokenizer(tokenizer)
    separators = sub_words.pair_separators
    model_type = model_type or names.family_of(config, head, pair_separators=separators)
    family = FAMILIES[model_type]
    networks = electra_pair.split(config, head, (params, *(moments or ())))
    for network in networks:
        family.require_expressible(network.model, network.head)
    with name_map.new_directory(directory) as building:
        for network in networks:
            place = building / network.folder
            place.mkdir(exist_ok=True)
            _write_network(place, network, model_type, sub_words, step, dtype, max_file_bytes)


def refusal(config: ModelConfig, head: HeadConfig) -> str:
    """Returns why no class of transformers computes a model; nothing where one does."""
    try:
        family = FAMILIES[names.family_of(config, head, pair_separators=1)]
        for network in electra_pair.split(config, head, ()):
            family.require_expressible(network.model, network.head)
    except UsageError as error:
        return str(error)
    return ""


def _write_network(
    building: Path,
    network: electra_pair.Network,
    model_type: str,
    sub_words: Tokenizer,
    step: int,
    dtype: str,
    max_file_bytes: int,
) -> None:
    """Writes one model into a directory that is there."""
    _, config, head, (params, *moments), facts = network
    family, pad = FAMILIES[model_type], sub_words.special.pad
    tensors = to_tensors(params, family, pad=pad)
    if family.sinusoids:
        tensors[family.sinusoids] = names.sinusoids(config)
    if config.position_embedding_type.startswith("relative_key"):
        # Their class makes a table that it never reads, and says so of each file without it.
        table = np.zeros((config.max_position_embeddings, config.table_size), np.float32)
        tensors[f"{family.base}.embeddings.position_embeddings.weight"] = table
    if names.class_of(head.parts) == "Model":
        base = f"{family.base}."
        tensors = {name.removeprefix(base): tensor for name, tensor in tensors.items()}
    halved = {name: safetensors_files.cast(name, tensor, dtype) for name, tensor in tensors.items()}
    safetensors_files.write_tensors(building, halved, max_file_bytes=max_file_bytes)
    if moments:
        both = {
            f"{kind}.{name}": tensor
            for kind, tree in zip(("adam_m", "adam_v"), moments, strict=True)
            for name, tensor in to_tensors(tree, family, pad=pad).items()
        }
        safetensors_files.write_file(building / MOMENTS, both, step=str(step))
    described = their_config(config, head, dtype=dtype, pad=pad, model_type=model_type) | facts
    if family.default_pad is not None:
        described |= {
            "bos_token_id": sub_words.special.cls,
            "eos_token_id": sub_words.special.sep,
        }
    text = json.dumps(described, indent=2, ensure_ascii=False)
    (building / CONFIG).write_text(text + "\n", encoding="utf-8")
    # The longest input is the model's to say, not the tokenizer's.
    sub_words.save(
        building,
        model_max_length=config.max_position_embeddings,
        segments=max(1, config.type_vocab_size),
    )


def their_config(
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
        "architectures": [f"{family.class_prefix}{names.class_of(head.parts)}"],
        "model_type": model_type,
        **{name: getattr(config, name) for name in name_map.MODEL_FIELDS},
        "max_position_embeddings": config.max_position_embeddings + _unused(family, pad),
        "pad_token_id": pad,
        **({"position_embedding_type": family.positions[kind]} if family.positions else {}),
        **({"embedding_size": config.table_size} if "embedding_size" in family.fields else {}),
        "tie_word_embeddings": True,
        "torch_dtype": dtype,
    }
    if {"sequence_classifier", "token_classifier"} & set(head.parts):
        labels = head.labels or ("LABEL_0",)
        described["id2label"] = {str(i): label for i, label in enumerate(labels)}
        described["label2id"] = {label: i for i, label in enumerate(labels)}
    if "sequence_classifier" in head.parts:
        is_regression = len(head.labels) <= 1
        described["problem_type"] = "regression" if is_regression else "single_label_classification"
    is_bare = names.class_of(head.parts) == "Model" and "pooler" not in head.parts
    if is_bare and family.bare:
        described["add_pooling_layer"] = False  # ours to read back; their classes take an argument
    return described


# --- reading -------------------------------------------------------------------------------------


def is_directory(path: Path) -> bool:
    """Returns whether `path` looks like a Hugging Face model rather than a workdir of ours."""
    return any((path / name).exists() for name in (WEIGHTS, INDEX, CONFIG))


def read(
    directory: Path, *, allow_missing_heads: bool = False, ignore_unexpected: Sequence[str] = ()
) -> ImportedModel:
    """Returns the model of a directory, with the parts that its config names and those it holds
    besides, and the generator that lies inside it (electra_pair.py).

    Raises UsageError if it is no BERT we can run, or lists the tensors that are missing, extra or
    misshapen. With `allow_missing_heads`, heads that are not whole are left out; extra tensors
    that `ignore_unexpected` matches are ignored.
    """
    options = {"allow_missing_heads": allow_missing_heads, "ignore_unexpected": ignore_unexpected}
    found, inside = _read_network(directory, **options), directory / electra_pair.FOLDER
    if "discriminator" not in found.head.parts or not (inside / CONFIG).is_file():
        return found
    declared = name_map.read_json(inside / CONFIG, hint=_HINT).get(electra_pair.SHARING)
    generator = _read_network(inside, **options)
    return electra_pair.join(found, generator, declared=declared, source=str(inside))


def _read_network(
    directory: Path, *, allow_missing_heads: bool, ignore_unexpected: Sequence[str]
) -> ImportedModel:
    """Returns the model of one directory, and nothing that lies inside it."""
    theirs = name_map.read_json(directory / CONFIG, hint=_HINT)
    model = _model(theirs, directory / CONFIG)
    tensors = {
        _modern_name(name, theirs): tensor
        for name, tensor in safetensors_files.read(directory).items()
    }
    family = _family(theirs, directory / CONFIG)
    declared = names.declared_parts(fields.architectures(theirs, directory / CONFIG), family)
    if theirs.get("add_pooling_layer") is False:
        declared -= {"pooler"}
    classifier = _classifier(family, declared, tensors)
    table = _table(family, classifier, declared, tensors)
    untied = _untied(tensors, family.base)
    unused = unused_rows.count(family, theirs, directory / CONFIG)
    tensors = unused_rows.without(tensors, family, unused)
    held = table.parts(tensors, classifier=classifier)
    # The hub's BertForMaskedLM keep the pooler and the next-sentence head of their pre-training;
    # a task's head, though, is there because the class says so.
    parts = declared | (held & _PRETRAINED if declared else held)
    head = HeadConfig(
        parts=tuple(part for part in PARTS.names() if part in parts),
        labels=fields.labels(theirs, directory / CONFIG) if classifier in parts else (),
        # A model of a task, or one that is to become one, stays of its family.
        pooler_act=HeadConfig.pooler_act if parts & _PRETRAINED_ALONE else family.pooler_act,
    )
    if problem := family.misreads(model, head):
        raise UsageError(f"{directory / CONFIG}: {problem}; bert-jax computes only one of the two")
    ignored = [*names.COPIES, *names.COUNTERS, family.sinusoids]
    if table is family.pooled_names:  # some keep the pooler that its classifier replaces
        ignored += [f"{family.base}.pooler.dense.{leaf}" for leaf in ("weight", "bias")]
    if model.position_embedding_type != "learned":  # their class makes a table, and leaves it
        ignored.append(f"{family.base}.embeddings.position_embeddings.weight")
    foreign = name_map.collect(
        tensors,
        table,
        model=validate_model(model, head),
        head=head,
        source=str(directory),
        described_by=CONFIG,
        redundant=ignored,
        problems=untied,
        allow_missing_heads=allow_missing_heads,
        ignore_unexpected=ignore_unexpected,
    )
    return _with_moments(foreign, directory, table, family, unused)


def read_config(directory: Path) -> ModelConfig:
    """Returns the encoder of a directory's `config.json`; raises UsageError if it is none we can
    run.
    """
    model = _model(name_map.read_json(directory / CONFIG, hint=_HINT), directory / CONFIG)
    return validate_model(model, HeadConfig())


def declared_pad(directory: Path) -> int | None:
    """Returns the id of padding that a directory's `config.json` names, if it names one."""
    if not (directory / CONFIG).is_file():
        return None
    pad = name_map.read_json(directory / CONFIG, hint=_HINT).get("pad_token_id")
    return pad if isinstance(pad, int) and not isinstance(pad, bool) else None


_PRETRAINED = {"pooler", "mlm", "nsp"}
_PRETRAINED_ALONE = {"mlm", "nsp", "discriminator"}


def _family(theirs: dict[str, Any], path: Path) -> Family:
    kind = theirs.get("model_type", "bert")
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise UsageError(
            f"{path}: model_type is {brief(kind)}; only {', '.join(FAMILIES.names())} are read"
        )
    return FAMILIES[kind]


def _model(theirs: dict[str, Any], path: Path) -> ModelConfig:
    family = _family(theirs, path)
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
    activation = theirs.get("hidden_act", "gelu")
    if activation not in list(_ACTIVATIONS):
        raise UsageError(
            f"{path}: hidden_act {brief(activation)} is not one of {', '.join(_ACTIVATIONS)}"
        )
    known, given = (*name_map.MODEL_FIELDS, *family.fields), {**family.defaults, **theirs}
    values = {name: given[name] for name in known if name in given}
    values |= {"hidden_act": _ACTIVATIONS[activation], **family.fixed}
    if kinds:
        values["position_embedding_type"] = kinds[kind]
    model = from_dict(values, ModelConfig, str(path))
    positions = model.max_position_embeddings - unused_rows.count(family, theirs, path)
    narrow = 0 if model.table_size == model.hidden_size else model.embedding_size
    return dataclasses.replace(model, max_position_embeddings=positions, embedding_size=narrow)


def _classifier(family: Family, declared: set[str], tensors: dict[str, np.ndarray]) -> str:
    """Returns which of the two that BERT calls `classifier` is meant: class or pooler say so."""
    if "token_classifier" in declared:
        return "token_classifier"
    if declared or family.pooled_classifier in tensors or "bert.pooler.dense.weight" in tensors:
        return "sequence_classifier"
    return "token_classifier"


def _table(
    family: Family, classifier: str, declared: set[str], tensors: dict[str, np.ndarray]
) -> NameMap:
    is_sequence = classifier in declared or family.pooled_classifier in tensors
    is_pooled = is_sequence and classifier == "sequence_classifier"
    return family.pooled_names if family.pooled_names and is_pooled else family.names


def _modern_name(name: str, theirs: dict[str, Any]) -> str:
    """Returns the name as it is today: once a norm had gamma and beta, and names no prefix."""
    name = name.removesuffix(".gamma") + ".weight" if name.endswith(".gamma") else name
    name = name.removesuffix(".beta") + ".bias" if name.endswith(".beta") else name
    base = FAMILIES[theirs.get("model_type", "bert")].base
    bare = ("embeddings.", "embeddings_project.", "encoder.", "pooler.", "LayerNorm.")
    return f"{base}.{name}" if name.startswith(bare) else name


def _untied(tensors: dict[str, np.ndarray], base: str) -> list[str]:
    originals = {name: original.format(base=base) for name, original in names.COPIES.items()}
    return [
        f"{name} is not tied to its other copy"
        for name, original in originals.items()
        if name in tensors
        and original in tensors
        and not np.array_equal(tensors[name], tensors[original])
    ]


def _with_moments(
    foreign: ImportedModel, directory: Path, table: NameMap, family: Family, unused: int
) -> ImportedModel:
    path = directory / MOMENTS
    if not path.is_file() or foreign.missing:
        return foreign
    tensors, metadata = safetensors_files.read_file(path)
    trees = [
        name_map.collect(
            unused_rows.without(
                {n.removeprefix(kind): t for n, t in tensors.items() if n.startswith(kind)},
                family,
                unused,
            ),
            table,
            model=foreign.model,
            head=foreign.head,
            source=str(path),
            described_by=CONFIG,
        ).params
        for kind in ("adam_m.", "adam_v.")
    ]
    step = metadata.get("step", "")
    if not re.fullmatch("[0-9]{1,18}", step):
        raise UsageError(f"{path} has no step in its metadata; was it written by bert-jax export?")
    return dataclasses.replace(foreign, moments=(trees[0], trees[1]), step=int(step))
