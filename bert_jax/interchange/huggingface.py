"""Reads and writes Hugging Face directories: `config.json`, `model.safetensors`, the tokenizer.

Only safetensors are read: no torch, no pickle. A directory loads as the class that its
`config.json` names, in one of `registry.FAMILIES`.
"""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.config import HeadConfig, ModelConfig
from bert_jax.config_checks import validate_model
from bert_jax.data.tokenizer.tokenizer import Tokenizer, load_tokenizer
from bert_jax.errors import UsageError
from bert_jax.interchange import (
    electra_pair,
    families,
    huggingface_config,
    name_map,
    safetensors_files,
    second_look,
)
from bert_jax.interchange.families import BERT_FAMILY
from bert_jax.interchange.family import Family, class_of, declared_parts
from bert_jax.interchange.name_map import Foreign, NameMap
from bert_jax.registry import FAMILIES, PARTS

CONFIG = "config.json"

_HINT = "is this a model directory?"
_PRETRAINED = {"pooler", "mlm", "nsp"}
_PRETRAINING_HEADS = {"mlm", "nsp", "discriminator"}


def refusal(config: ModelConfig, head: HeadConfig) -> str:
    """Returns why no class of transformers supports a model; "" if one does."""
    try:
        family = FAMILIES[families.family_of(config, head, pair_separators=1)]
        for network in electra_pair.split(config, head, None):
            family.require_expressible(network.model, network.head)
    except UsageError as error:
        return str(error)
    return ""


def with_classifier(config: ModelConfig, head: HeadConfig, of_task: HeadConfig) -> HeadConfig:
    """Returns the head of a task as the classes of a model's family have it.

    A pooler in `head` keeps its activation.
    """
    masked_lm = HeadConfig(parts=("mlm",))
    family = FAMILIES[families.family_of(config, masked_lm, pair_separators=1)]
    if refusal(config, masked_lm):
        family = BERT_FAMILY
    act = family.pooler_act_of(config)
    if "pooler" in head.parts:
        act = head.pooler_act
    elif "discriminator" in head.parts or (
        head.pooler_act == "gelu" and family.pooler_act is not None
    ):
        act = "gelu"  # ELECTRA's
    return dataclasses.replace(of_task, pooler_act=act, transform=family.transform)


# --- writing -------------------------------------------------------------------------------------


def write(
    directory: Path,
    params: Any,
    config: ModelConfig,
    *,
    tokenizer: Path,
    head: HeadConfig | None = None,
    dtype: str = "float32",
    max_file_bytes: int = safetensors_files.MAX_FILE_BYTES,
    model_type: str | None = None,
) -> str:
    """Writes parameters and the tokenizer as a new Hugging Face directory; returns its
    `model_type`.

    `model_type` is one of `registry.FAMILIES` (default: `families.family_of`). `dtype` is
    "float32", "float16" or "bfloat16". The directory is written atomically. Raises UsageError if it
    exists and is not empty, if the family cannot express the model, or if a value exceeds the range
    of `dtype`.
    """
    head = head or HeadConfig()
    sub_words = load_tokenizer(tokenizer)
    separators = sub_words.pair_separators
    model_type = model_type or families.family_of(config, head, pair_separators=separators)
    family = FAMILIES[model_type]
    networks = electra_pair.split(config, head, params)
    for network in networks:
        family.require_expressible(network.model, network.head)
    with name_map.new_directory(directory) as building:
        for network in networks:
            place = building / network.folder
            place.mkdir(exist_ok=True)
            tensors = _tensors_of(network, family, pad=sub_words.special.pad)
            halved = {name: safetensors_files.cast(name, t, dtype) for name, t in tensors.items()}
            safetensors_files.write_tensors(place, halved, max_file_bytes=max_file_bytes)
            _write_config(place, network, model_type, sub_words, dtype)
    return model_type


def _tensors_of(
    network: electra_pair.Network, family: Family, *, pad: int
) -> dict[str, np.ndarray]:
    """Returns the tensors of a file, including those that the class has in addition to our
    parameters.
    """
    config = network.model
    tensors = family.to_tensors(network.params, pad=pad)
    if family.sinusoids:
        tensors[family.sinusoids] = families.sinusoids(config)
    if config.position_embedding_type.startswith("relative_key"):
        # The class has this table but never reads it; without it transformers 4 reports it as
        # missing.
        table = np.zeros((config.max_position_embeddings, config.table_size), np.float32)
        tensors[family.position_table] = table
    mlm, decoder = (family.names.fixed.get(name) for name in ("mlm", "mlm.decoder"))
    if f"{decoder}.weight" in tensors and f"{mlm}.bias" in tensors:
        # If untied, transformers 5 reads the bias under this name, and 4 under either one.
        tensors[f"{decoder}.bias"] = tensors[f"{mlm}.bias"]
    if class_of(network.head.parts) == "Model":
        return {name.removeprefix(f"{family.base}."): tensor for name, tensor in tensors.items()}
    return tensors


def _write_config(
    place: Path, network: electra_pair.Network, model_type: str, sub_words: Tokenizer, dtype: str
) -> None:
    """Writes `config.json` and the tokenizer."""
    config, head, special = network.model, network.head, sub_words.special
    described = huggingface_config.config_of(
        config, head, dtype=dtype, pad=special.pad, model_type=model_type
    )
    described |= network.facts
    described |= {n: getattr(special, role) for n, role in FAMILIES[model_type].token_ids.items()}
    text = json.dumps(described, indent=2, ensure_ascii=False)
    (place / CONFIG).write_text(text + "\n", encoding="utf-8")
    # The maximum input length follows from the model, not from the tokenizer.
    sub_words.save(
        place,
        model_max_length=config.max_position_embeddings,
        segments=max(1, config.type_vocab_size),
        is_for_words="token_classifier" in head.parts,
    )


# --- reading -------------------------------------------------------------------------------------


def is_directory(path: Path) -> bool:
    """Returns whether `path` looks like a Hugging Face model."""
    names = (safetensors_files.WEIGHTS, safetensors_files.INDEX, CONFIG)
    return any((path / name).exists() for name in names)


def read(
    directory: Path, *, allow_missing_heads: bool = False, ignore_unexpected: Sequence[str] = ()
) -> Foreign:
    """Returns the model of a directory, with the parts that its config names or its file has, and
    the generator in the directory (electra_pair.py).

    With `allow_missing_heads`, incomplete heads are omitted; extra tensors that match
    `ignore_unexpected` are ignored. Raises UsageError if the model is not supported, or if tensors
    are missing, extra or misshapen.
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
) -> Foreign:
    """Returns the model of one directory, without the generator in it."""
    path, source = directory / CONFIG, str(directory)
    theirs = name_map.read_json(path, hint=_HINT)
    model = huggingface_config.model_of(theirs, path)
    family = huggingface_config.family_of(theirs, path)
    tensors = second_look.renamed(
        safetensors_files.read(directory),
        family,
        source=source,
        ignore_unexpected=ignore_unexpected,
    )
    tensors, model = second_look.output_normalized(tensors, family, model, source=source)
    tensors = family.from_tensors(tensors, family.unused_rows_of(theirs, path))
    declared = declared_parts(huggingface_config.architectures(theirs, path), family)
    if theirs.get("add_pooling_layer") is False:
        declared -= {"pooler"}
    table, classifier = _table(family, declared, tensors)
    # With a transform before the classifier, the pooler's names mean the transform.
    transform = family.transform and table is family.pooled_names
    held = set() if transform else table.parts(tensors, classifier=classifier)
    # BertForMaskedLM files on the hub keep the pooler and next-sentence head of pre-training; a
    # classifier is read only if the class has it.
    parts = declared | (held & _PRETRAINED if declared else held)
    labels: tuple[str, ...] = ()
    if classifier in parts:
        weight = tensors.get(f"{table.fixed[classifier]}.weight")
        outputs = len(weight) if weight is not None and weight.ndim else None
        labels = huggingface_config.labels(theirs, path, outputs=outputs)
    act = HeadConfig.pooler_act if parts & _PRETRAINING_HEADS else family.pooler_act_of(model)
    head = HeadConfig(
        parts=tuple(part for part in PARTS.names() if part in parts),
        labels=labels,
        pooler_act=act,
        transform=transform,
    )
    if problem := family.misreads(model, head):
        raise UsageError(f"{path}: {problem}; this combination is not supported")
    try:
        validate_model(model, head)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error
    ignored = [family.sinusoids]
    if table is family.pooled_names:  # some files keep a pooler that the classifier replaces
        ignored += [f"{family.base}.pooler.dense.{leaf}" for leaf in ("weight", "bias")]
    if model.position_embedding_type != "learned":  # the class has a table that it never reads
        ignored.append(family.position_table)
    return name_map.collect(
        tensors,
        table,
        model=model,
        head=head,
        source=source,
        described_by=CONFIG,
        redundant=ignored,
        allow_missing_heads=allow_missing_heads,
        ignore_unexpected=ignore_unexpected,
    )


def _table(
    family: Family, declared: set[str], tensors: dict[str, np.ndarray]
) -> tuple[NameMap, str]:
    """Returns the names of a file, and the classifier that BERT's name `classifier` means."""
    classifier = "token_classifier"
    has_dense = family.pooled_classifier in tensors or "bert.pooler.dense.weight" in tensors
    if (declared or has_dense) and "token_classifier" not in declared:
        classifier = "sequence_classifier"
    is_pooled = {classifier, "span_classifier"} & family.pooled_parts & declared
    has_own = classifier == "sequence_classifier" and family.pooled_classifier in tensors
    pooled = family.pooled_names if is_pooled or has_own else None
    return pooled or family.names, classifier


def is_generator(directory: Path) -> bool:
    """Returns whether a directory holds the generator of an ELECTRA and no discriminator."""
    path = directory / CONFIG
    if not path.is_file():
        return False
    classes = huggingface_config.architectures(name_map.read_json(path, hint=_HINT), path)
    return "ElectraForMaskedLM" in classes


def declared_pad(directory: Path) -> int | None:
    """Returns the padding id in a directory's `config.json`, if it has one."""
    if not (directory / CONFIG).is_file():
        return None
    pad = name_map.read_json(directory / CONFIG, hint=_HINT).get("pad_token_id")
    return pad if isinstance(pad, int) and not isinstance(pad, bool) else None
