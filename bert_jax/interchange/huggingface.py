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

from bert_jax.config import HeadConfig, ModelConfig
from bert_jax.config_checks import validate_model
from bert_jax.data.tokenizer.tokenizer import Tokenizer, load_tokenizer
from bert_jax.errors import UsageError
from bert_jax.interchange import (
    electra_pair,
    huggingface_config,
    name_map,
    safetensors_files,
    second_look,
)
from bert_jax.interchange import huggingface_names as names
from bert_jax.interchange.family import Family, class_of, declared_parts
from bert_jax.interchange.name_map import ImportedModel, NameMap
from bert_jax.registry import FAMILIES, PARTS

CONFIG = "config.json"
WEIGHTS, INDEX = safetensors_files.WEIGHTS, safetensors_files.INDEX
# Ours: Adam's moments and the step, in a file that other readers ignore.
MOMENTS = "moments.safetensors"

_HINT = "is this a model directory?"


def tensor_names(config: ModelConfig, head: HeadConfig | None = None) -> dict[str, str]:
    """Returns our dotted path of every parameter -> the name Hugging Face's BERT gives it, or the
    family that it is of. Parts without a name there are left out.
    """
    head = head or HeadConfig()
    family = FAMILIES[names.family_of(config, head, pair_separators=1)]
    table = family.names_with(head.parts)
    named = tuple(part for part in head.parts if part in table.roots)
    found = table.names(config, dataclasses.replace(head, parts=named))
    return {".".join(path): name for path, name in found.items()}


def to_tensors(
    params: Any, family: Family = names.BERT_FAMILY, *, pad: int = 0
) -> dict[str, np.ndarray]:
    """Returns their name -> tensor in their layout, of parameters or of gradients. `pad` is the id
    of padding.
    """
    tensors = family.join(family.names_with(params).to_tensors(params))
    return family.with_rows(tensors, family.unused_rows(pad))


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
) -> str:
    """Writes parameters and the tokenizer directory as a new Hugging Face directory; returns its
    `model_type`.

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
    return model_type


def refusal(config: ModelConfig, head: HeadConfig) -> str:
    """Returns why no class of transformers computes a model; nothing where one does."""
    try:
        family = FAMILIES[names.family_of(config, head, pair_separators=1)]
        for network in electra_pair.split(config, head, ()):
            family.require_expressible(network.model, network.head)
    except UsageError as error:
        return str(error)
    return ""


def with_classifier(config: ModelConfig, head: HeadConfig, of_task: HeadConfig) -> HeadConfig:
    """Returns the head of a task as the classes of a model's family have it.

    A pooler that is there, in `head`, stays what it is.
    """
    masked_lm = HeadConfig(parts=("mlm",))
    family = FAMILIES[names.family_of(config, masked_lm, pair_separators=1)]
    if refusal(config, masked_lm):
        family = names.BERT_FAMILY
    act = family.pooler_act_of(config)
    if "pooler" in head.parts:
        act = head.pooler_act
    elif "discriminator" in head.parts or (
        head.pooler_act == "gelu" and family.pooler_act is not None
    ):
        act = "gelu"  # an ELECTRA's
    return dataclasses.replace(of_task, pooler_act=act, transform=family.transform)


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
        tensors[family.position_table] = table
    mlm, decoder = (family.names.fixed.get(name) for name in ("mlm", "mlm.decoder"))
    if f"{decoder}.weight" in tensors and f"{mlm}.bias" in tensors:
        # Not tied, transformers 5 computes with a bias under this name, and 4 with either.
        tensors[f"{decoder}.bias"] = tensors[f"{mlm}.bias"]
    if class_of(head.parts) == "Model":
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
    described = (
        huggingface_config.config_of(config, head, dtype=dtype, pad=pad, model_type=model_type)
        | facts
    )
    described |= {n: getattr(sub_words.special, role) for n, role in family.token_ids.items()}
    text = json.dumps(described, indent=2, ensure_ascii=False)
    (building / CONFIG).write_text(text + "\n", encoding="utf-8")
    # The longest input is the model's to say, not the tokenizer's.
    sub_words.save(
        building,
        model_max_length=config.max_position_embeddings,
        segments=max(1, config.type_vocab_size),
        is_for_words="token_classifier" in head.parts,
    )


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
    model = huggingface_config.model_of(theirs, directory / CONFIG)
    family = huggingface_config.family_of(theirs, directory / CONFIG)
    tensors = second_look.renamed(
        safetensors_files.read(directory),
        family,
        source=str(directory),
        ignore_unexpected=ignore_unexpected,
    )
    tensors, model = second_look.output_normalized(tensors, family, model, source=str(directory))
    tensors = family.split(tensors)
    classes = huggingface_config.architectures(theirs, directory / CONFIG)
    declared = declared_parts(classes, family)
    if theirs.get("add_pooling_layer") is False:
        declared -= {"pooler"}
    classifier = _classifier(family, declared, tensors)
    table = _table(family, classifier, declared, tensors)
    unused = family.unused_rows_of(theirs, directory / CONFIG)
    tensors = family.without_rows(tensors, unused)
    # Before any classifier there stands what elsewhere would be a pooler, by the same names.
    is_one = family.transform and table is family.pooled_names
    held = set() if is_one else table.parts(tensors, classifier=classifier)
    # The hub's BertForMaskedLM keep the pooler and the next-sentence head of their pre-training;
    # a task's head, though, is there because the class says so.
    parts = declared | (held & _PRETRAINED if declared else held)
    labels: tuple[str, ...] = ()
    if classifier in parts:
        weight = tensors.get(f"{table.fixed[classifier]}.weight")
        outputs = len(weight) if weight is not None and weight.ndim else None
        labels = huggingface_config.labels(theirs, directory / CONFIG, outputs=outputs)
    head = HeadConfig(
        parts=tuple(part for part in PARTS.names() if part in parts),
        labels=labels,
        # A model of a task, or one that is to become one, stays of its family.
        pooler_act=(
            HeadConfig.pooler_act if parts & _PRETRAINING_HEADS else family.pooler_act_of(model)
        ),
        transform=is_one,
    )
    if problem := family.misreads(model, head):
        raise UsageError(f"{directory / CONFIG}: {problem}; bert-jax computes only one of the two")
    checked = HeadConfig(parts=()) if allow_missing_heads else head
    _require_sizes(tensors, table, model, checked, directory / CONFIG)
    ignored = [family.sinusoids]
    if table is family.pooled_names:  # some keep the pooler that its classifier replaces
        ignored += [f"{family.base}.pooler.dense.{leaf}" for leaf in ("weight", "bias")]
    if model.position_embedding_type != "learned":  # their class makes a table, and leaves it
        ignored.append(family.position_table)
    foreign = name_map.collect(
        tensors,
        table,
        model=validate_model(model, head),
        head=head,
        source=str(directory),
        described_by=CONFIG,
        redundant=ignored,
        allow_missing_heads=allow_missing_heads,
        ignore_unexpected=ignore_unexpected,
    )
    return _with_moments(foreign, directory, table, family, unused)


def read_config(directory: Path) -> ModelConfig:
    """Returns the encoder of a directory's `config.json`; raises UsageError if it is none we can
    run.
    """
    model = huggingface_config.model_of(
        name_map.read_json(directory / CONFIG, hint=_HINT), directory / CONFIG
    )
    return validate_model(model, HeadConfig())


def declared_pad(directory: Path) -> int | None:
    """Returns the id of padding that a directory's `config.json` names, if it names one."""
    if not (directory / CONFIG).is_file():
        return None
    pad = name_map.read_json(directory / CONFIG, hint=_HINT).get("pad_token_id")
    return pad if isinstance(pad, int) and not isinstance(pad, bool) else None


_PRETRAINED = {"pooler", "mlm", "nsp"}
_PRETRAINING_HEADS = {"mlm", "nsp", "discriminator"}


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
    pooled = {classifier, "span_classifier"} & family.pooled_parts & declared
    is_sequence = classifier == "sequence_classifier" and family.pooled_classifier in tensors
    return family.pooled_names if family.pooled_names and (pooled or is_sequence) else family.names


def _require_sizes(
    tensors: dict[str, np.ndarray], table: NameMap, model: ModelConfig, head: HeadConfig, path: Path
) -> None:
    """Raises UsageError, with the right value, if the config at `path` gives another size of the
    vocabulary or number of labels than the tensors have, or an output matrix that is not there.
    """
    words = tensors.get(f"{table.fixed['encoder.embeddings.word']}.weight")
    is_table = words is not None and words.ndim == 2 and words.shape[1] == model.table_size
    if words is not None and is_table and len(words) != model.vocab_size:
        raise UsageError(
            f"{path}: vocab_size is {model.vocab_size}, but the word embedding has {len(words)} "
            f"rows; set vocab_size to {len(words)}"
        )
    labels = max(len(head.labels), 1)
    for part in {"sequence_classifier", "token_classifier"} & {*head.parts}:
        weight = tensors.get(f"{table.fixed[part]}.weight")
        if weight is not None and weight.ndim == 2 and len(weight) not in (0, labels):
            raise UsageError(
                f"{path}: id2label and num_labels give {labels} outputs, but "
                f"{table.fixed[part]}.weight has {len(weight)}; remove id2label and label2id, and "
                f"set num_labels to {len(weight)}"
            )
    decoder = f"{table.fixed.get('mlm.decoder')}.weight"
    if "mlm" in head.parts and not model.tie_word_embeddings and decoder not in tensors:
        raise UsageError(
            f"{path}: tie_word_embeddings is false, but there is no {decoder}; set "
            "tie_word_embeddings to true if the output uses the word embedding"
        )


def _with_moments(
    foreign: ImportedModel, directory: Path, table: NameMap, family: Family, unused: int
) -> ImportedModel:
    path = directory / MOMENTS
    if not path.is_file() or foreign.missing:
        return foreign
    tensors, metadata = safetensors_files.read_file(path)
    trees = [
        name_map.collect(
            family.without_rows(
                family.split(
                    {n.removeprefix(kind): t for n, t in tensors.items() if n.startswith(kind)}
                ),
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
    if not re.fullmatch("[0-9]{1,10}", step) or int(step) > name_map.LAST_STEP:
        raise UsageError(f"{path} has no step in its metadata; was it written by bert-jax export?")
    return dataclasses.replace(foreign, moments=(trees[0], trees[1]), step=int(step))
