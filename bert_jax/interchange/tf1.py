"""Reads and writes TensorFlow 1 checkpoints of google-research/bert: weights and step.

A directory has `bert_config.json`, `vocab.txt`, `NAME.ckpt.index` and its data; optimizer slots are
not read. TF1's `Saver` can restore a written directory, and the file `checkpoint` makes it a
`model_dir`. This module uses TensorFlow's reader and writer, because there is no simpler library.
"""

import dataclasses
import errno
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.config import HeadConfig, ModelConfig, from_dict
from bert_jax.config_checks import validate_model
from bert_jax.data.tokenizer.tokenizer import load_tokenizer
from bert_jax.errors import UsageError, brief
from bert_jax.interchange import name_map
from bert_jax.interchange.family import MODEL_FIELDS, MODEL_KEYS, Family
from bert_jax.interchange.name_map import Foreign, NameMap
from bert_jax.registry import PARTS

CONFIG, NAME, STEP = "bert_config.json", "bert_model.ckpt", "global_step"
# Suffixes of optimizer slots (google-research/bert optimization.py).
_SLOTS = ("/adam_m", "/adam_v")
# The state counts steps in int32.
_LAST_STEP = 2**31 - 1

TABLE = NameMap(
    fixed={
        "encoder.embeddings.word": "bert/embeddings/word_embeddings",
        "encoder.embeddings.position": "bert/embeddings/position_embeddings",
        "encoder.embeddings.token_type": "bert/embeddings/token_type_embeddings",
        "encoder.embeddings.layer_norm": "bert/embeddings/LayerNorm",
        "pooler.dense": "bert/pooler/dense",
        "mlm": "cls/predictions",
        "mlm.transform": "cls/predictions/transform/dense",
        "mlm.layer_norm": "cls/predictions/transform/LayerNorm",
        "nsp": "cls/seq_relationship",
        # In run_classifier.py, at the top level; in run_squad.py.
        "sequence_classifier": "",
        "span_classifier": "cls/squad",
    },
    layer={
        "query": "attention/self/query",
        "key": "attention/self/key",
        "value": "attention/self/value",
        "attention_output": "attention/output/dense",
        "attention_norm": "attention/output/LayerNorm",
        "intermediate": "intermediate/dense",
        "output": "output/dense",
        "output_norm": "output/LayerNorm",
    },
    layer_prefix="bert/encoder/layer_{}/",
    leaf={
        "kernel": "kernel",
        "bias": "bias",
        "embedding": "",
        "scale": "gamma",
        "norm_bias": "beta",
        "mlm.bias": "output_bias",
        **{
            f"{head}.{ours}": theirs
            for head in ("nsp", "sequence_classifier", "span_classifier")
            for ours, theirs in (("kernel", "output_weights"), ("bias", "output_bias"))
        },
    },
    separator="/",
    transposed=frozenset({"nsp", "sequence_classifier", "span_classifier"}),
)


def is_checkpoint(path: Path) -> bool:
    """Returns whether `path` is the prefix of a TF1 checkpoint (`DIR/bert_model.ckpt`) or a
    directory with one.
    """
    if path.is_dir():
        return any(path.glob("*.index"))
    return path.with_name(path.name + ".index").is_file()


def directory_of(path: Path) -> Path:
    """Returns the directory of the config and the vocabulary."""
    return path if path.is_dir() else path.parent


def _prefix(path: Path) -> Path:
    """Returns the checkpoint that `path` names: itself, the only one in it, or the newest one that
    its list names.
    """
    if not path.is_dir():
        return path
    found = sorted(p.with_name(p.name.removesuffix(".index")) for p in path.glob("*.index"))
    if len(found) == 1:
        return found[0]
    listing = path / "checkpoint"
    if listing.is_file():
        for line in listing.read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            newest = path / Path(value.strip().strip('"')).name
            if key == "model_checkpoint_path" and newest in found:
                return newest
    raise UsageError(
        f"{path} holds several checkpoints; name one of {', '.join(map(str, found)) or 'them'}"
    )


# --- reading -------------------------------------------------------------------------------------


def read(
    path: Path, *, allow_missing_heads: bool = False, ignore_unexpected: Sequence[str] = ()
) -> Foreign:
    """Returns the model at a prefix or in a directory, with its step if it has one.

    Raises UsageError if it is not a supported BERT, or lists the tensors that are missing, extra or
    misshapen. With `allow_missing_heads`, incomplete heads are omitted; extra tensors that
    `ignore_unexpected` matches are ignored.
    """
    prefix = _prefix(path)
    tensors = _read_tensors(prefix)
    described = name_map.read_json(
        prefix.parent / CONFIG, hint=f"put the model's {CONFIG} and vocab.txt next to it"
    )
    step = _step(np.asarray(tensors.pop(STEP, np.int64(0))), prefix)
    tensors = {name: t for name, t in tensors.items() if not name.endswith(_SLOTS)}
    parts = TABLE.parts(tensors, classifier="sequence_classifier")
    head = HeadConfig(
        parts=tuple(part for part in PARTS.names() if part in parts),
        labels=_labels(described, tensors, prefix) if "sequence_classifier" in parts else (),
    )
    model = validate_model(_model(described, prefix.parent / CONFIG), head)
    foreign = name_map.collect(
        tensors,
        TABLE,
        model=model,
        head=head,
        source=str(prefix),
        described_by=CONFIG,
        allow_missing_heads=allow_missing_heads,
        ignore_unexpected=ignore_unexpected,
    )
    return dataclasses.replace(foreign, step=step)


def _read_tensors(prefix: Path) -> dict[str, np.ndarray]:
    import tensorflow as tf

    try:
        reader: Any = tf.train.load_checkpoint(str(prefix))
        return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
    # The reader turns some errors into Python exceptions: a short file raises IndexError.
    except (tf.errors.OpError, ValueError, RuntimeError, LookupError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
        raise UsageError(f"{prefix} cannot be read: {reason}") from error


def _step(value: np.ndarray, prefix: Path) -> int:
    if value.ndim or value.dtype.kind not in "iu" or not 0 <= value <= _LAST_STEP:
        raise UsageError(
            f"{prefix}: {STEP} is {brief(str(value))}; expected one number up to {_LAST_STEP:,}"
        )
    return int(value)


def _model(theirs: dict[str, Any], path: Path) -> ModelConfig:
    """Returns the model that a config describes.

    "gelu" is the tanh approximation, and epsilon is fixed (google-research/bert modeling.py).
    """
    if theirs.get("hidden_act", "gelu") != "gelu":
        raise UsageError(f"{path}: hidden_act {theirs['hidden_act']!r} is not gelu")
    fields = [f for f in MODEL_FIELDS if f not in ("hidden_act", "layer_norm_eps")]
    values = {name: theirs[name] for name in fields if name in theirs}
    activation = "gelu" if theirs.get(_EXACT) else "gelu_new"
    return from_dict(values | {"hidden_act": activation}, ModelConfig, str(path))


# bert-jax keys in bert_config.json, which the original reader accepts and ignores.
_EXACT, _LABELS = "exact_gelu", "labels"


def _labels(
    theirs: dict[str, Any], tensors: dict[str, np.ndarray], prefix: Path
) -> tuple[str, ...]:
    """Returns the labels in the config, or else numbered labels: a checkpoint has no names."""
    given = theirs.get(_LABELS)
    if given is not None:
        if not isinstance(given, list) or not all(isinstance(label, str) for label in given):
            raise UsageError(f"{prefix.parent / CONFIG}: {_LABELS} is not a list of names")
        return tuple(given)
    weights = tensors.get("output_weights")
    count = len(weights) if weights is not None and weights.ndim else 2
    return tuple(f"LABEL_{number}" for number in range(count)) if count > 1 else ()


# --- writing -------------------------------------------------------------------------------------


def write(directory: Path, foreign: Foreign, *, tokenizer: Path) -> None:
    """Writes `bert_model.ckpt`, its config and vocabulary as a new directory, atomically.

    Raises UsageError if the original code does not support this model.
    """
    config, head = foreign.model, foreign.head
    _require_expressible(config, head)
    sub_words = load_tokenizer(tokenizer)
    if sub_words.kind != "wordpiece":
        raise UsageError(
            f"tokenizer {tokenizer} is a {sub_words.kind} tokenizer; the TF1 format supports only "
            "a WordPiece vocab.txt: use `format` hf"
        )
    tensors = TABLE.to_tensors(foreign.params)
    if foreign.step:
        tensors[STEP] = np.asarray(foreign.step, np.int64)
    with name_map.new_directory(directory) as building:
        _save(building / NAME, tensors)
        text = json.dumps(_their_config(config, head), indent=2, ensure_ascii=False)
        (building / CONFIG).write_text(text + "\n", encoding="utf-8")
        # The TF1 format has no other tokenizer file.
        rows = sub_words.tokens(list(range(sub_words.vocab_size)))
        vocabulary = building / "vocab.txt"
        vocabulary.write_text("\n".join(rows) + "\n", encoding="utf-8", newline="\n")
        if load_tokenizer(vocabulary, lowercase=sub_words.lowercase).hash != sub_words.hash:
            raise UsageError(
                f"tokenizer {tokenizer} has settings or tokens that a vocab.txt cannot express "
                "(accents, Chinese characters, added tokens), so the TF1 code would split text "
                "differently: use `format` hf"
            )
        listing = f'model_checkpoint_path: "{NAME}"\nall_model_checkpoint_paths: "{NAME}"\n'
        (building / "checkpoint").write_text(listing, encoding="utf-8")


def _require_expressible(config: ModelConfig, head: HeadConfig) -> None:
    if "token_classifier" in head.parts:
        raise UsageError("the TF1 format does not support a token classifier; use `format` hf")
    Family(base="bert", names=TABLE, keys=MODEL_KEYS).require_expressible(config, head)
    if config.layer_norm_eps != 1e-12:
        raise UsageError(
            f"layer_norm_eps is {config.layer_norm_eps}, but the TF1 code always uses 1e-12"
        )
    if config.hidden_act == "silu":
        raise UsageError("model.hidden_act is silu, which the TF1 code does not support")


def _their_config(config: ModelConfig, head: HeadConfig) -> dict[str, Any]:
    described: dict[str, Any] = {f: getattr(config, f) for f in MODEL_FIELDS}
    del described["layer_norm_eps"]
    described["hidden_act"] = "gelu"
    if config.hidden_act == "gelu":
        described[_EXACT] = True
    if "sequence_classifier" in head.parts:
        described[_LABELS] = list(head.labels)
    return described


def _save(prefix: Path, tensors: dict[str, np.ndarray]) -> None:
    import tensorflow as tf

    names = sorted(tensors)
    save: Any = tf.raw_ops.SaveV2
    try:
        with tf.device("cpu:0"):
            save(
                prefix=tf.constant(str(prefix)),
                tensor_names=tf.constant(names),
                shape_and_slices=tf.constant([""] * len(names)),
                tensors=[tf.constant(tensors[name]) for name in names],
            )
    except tf.errors.ResourceExhaustedError as error:
        reason = os.strerror(errno.ENOSPC)
        if reason not in str(error):  # for example, memory
            raise
        raise OSError(errno.ENOSPC, reason) from error
