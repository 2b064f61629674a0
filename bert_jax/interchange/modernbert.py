"""ModernBERT's directories (transformers `modeling_modernbert.py`), whose models are also Ettin and
mmBERT.

Its `config.json` has two dialects. transformers 4 reads a theta for each kind of layer and "every
n-th layer is global", and passes over the other: with that alone it computes with 160,000 and
10,000 without a word. transformers 5 reads `layer_types` and `rope_parameters`, and the older
fields where these are not there. Both are written, and what both cannot say is refused.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bert_jax.config import ModelConfig
from bert_jax.errors import UsageError, brief
from bert_jax.interchange.family import (
    OF_TASKS,
    Dialect,
    Family,
    checked,
    is_plain_rotation,
)
from bert_jax.interchange.name_map import NameMap
from bert_jax.model.layer_spec import layer_specs
from bert_jax.progress import note_once

_ENCODER = {
    "encoder.embeddings.word": "model.embeddings.tok_embeddings",
    "encoder.embeddings.layer_norm": "model.embeddings.norm",
    "encoder.final_norm": "model.final_norm",
}
_MASKED_LM = {
    "mlm": "decoder",
    "mlm.decoder": "decoder",
    "mlm.transform": "head.dense",
    "mlm.layer_norm": "head.norm",
}
# What stands before the classifier of a task has the names of the masked-LM head's.
_TASKS = {
    "pooler.dense": "head.dense",
    "pooler.layer_norm": "head.norm",
    "sequence_classifier": "classifier",
    "token_classifier": "classifier",
    "token_classifier.transform.dense": "head.dense",
    "token_classifier.transform.layer_norm": "head.norm",
    "span_classifier": "classifier",
    "span_classifier.transform.dense": "head.dense",
    "span_classifier.transform.layer_norm": "head.norm",
}
_NAMES = NameMap(
    fixed=_ENCODER | _MASKED_LM,
    layer={
        "query": "attn.Wqkv.query",
        "key": "attn.Wqkv.key",
        "value": "attn.Wqkv.value",
        "attention_output": "attn.Wo",
        "attention_norm": "attn_norm",
        "gate": "mlp.Wi.gate",
        "intermediate": "mlp.Wi.input",
        "output": "mlp.Wo",
        "output_norm": "mlp_norm",
    },
    layer_prefix="model.layers.{}.",
)

_TASK_NAMES = dataclasses.replace(_NAMES, fixed=_ENCODER | _TASKS)

# What a config without a field means, in both versions (configuration_modernbert.py).
_DEFAULTS: dict[str, Any] = {
    "vocab_size": 50_368,
    "hidden_size": 768,
    "intermediate_size": 1152,
    "num_hidden_layers": 22,
    "num_attention_heads": 12,
    "hidden_activation": "gelu",
    "max_position_embeddings": 8192,
    "initializer_range": 0.02,
    "norm_eps": 1e-5,
    "norm_bias": False,
    "global_rope_theta": 160_000.0,
    "local_rope_theta": 10_000.0,
    "global_attn_every_n_layers": 3,
    "local_attention": 128,
    "attention_bias": False,
    "mlp_bias": False,
    "classifier_bias": False,
    "classifier_activation": "gelu",
    "classifier_pooling": "cls",
    "decoder_bias": True,
    "tie_word_embeddings": True,
}
_OURS = {
    "hidden_activation": "hidden_act",
    "norm_eps": "layer_norm_eps",
    "attention_bias": "linear_bias",
    "local_attention": "attention_window",
    "global_attn_every_n_layers": "global_attention_every_n_layers",
    "global_rope_theta": "rope_theta",
}
# Fields of theirs that ours has as one: the first is the one that `_OURS` names.
_ALIKE = (
    ("attention_bias", "mlp_bias", "classifier_bias"),
    ("hidden_activation", "classifier_activation"),
)
# They change no output, and a run's own config says them.
_DROPOUTS = ("attention_dropout", "embedding_dropout", "mlp_dropout", "classifier_dropout")
_POOLINGS = ("cls", "mean")
_THETAS = {"full_attention": "global_rope_theta", "sliding_attention": "local_rope_theta"}


class _ModernBert(Dialect):
    def to_ours(self, theirs: Mapping[str, Any], path: Path) -> dict[str, Any]:
        given = dict(theirs)
        _require_plain_rotation(given, path)
        given |= _of_version_5(given, path)
        if given.get("local_rope_theta", 0) is None:  # in version 4
            theta = given.get("global_rope_theta", _DEFAULTS["global_rope_theta"])
            given["local_rope_theta"] = theta
        values = checked(given, _DEFAULTS, path)
        for first, *others in _ALIKE:
            for name in others:
                if values[name] != values[first]:
                    raise UsageError(
                        f"{path}: {name} is {values[name]}, and {first} {values[first]}; bert-jax "
                        "computes only models in which both are the same"
                    )
                del values[name]
        if values["local_attention"] < 1:
            raise UsageError(f"{path}: local_attention is {values['local_attention']}; at least 1")
        if values["classifier_pooling"] not in _POOLINGS:
            raise UsageError(
                f"{path}: classifier_pooling is {brief(values['classifier_pooling'])}; expected "
                f"{' or '.join(_POOLINGS)}"
            )
        dropped = [name for name in _DROPOUTS if theirs.get(name)]
        if dropped:
            note_once(f"{path}: {', '.join(dropped)} is not read; dropout is the run's to say")
        found = {_OURS.get(name, name): value for name, value in values.items()}
        if found["global_attention_every_n_layers"] == 1:
            found |= dict.fromkeys(("attention_window", "global_attention_every_n_layers"), 0)
            found["local_rope_theta"] = 0.0
        if found["local_rope_theta"] == found["rope_theta"]:
            found["local_rope_theta"] = 0.0
        no_dropout = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0)
        return {**found, **no_dropout, "scale_output_init": True}

    def to_theirs(self, model: ModelConfig) -> dict[str, Any]:
        local_theta = model.local_rope_theta or model.rope_theta
        ours = {_OURS.get(name, name): name for name in _DEFAULTS}
        written = {theirs: getattr(model, n) for n, theirs in ours.items() if hasattr(model, n)}
        for first, *others in _ALIKE:
            written |= dict.fromkeys(others, written[first])
        if not model.attention_window:
            written["local_attention"] = _DEFAULTS["local_attention"]
            written["global_attn_every_n_layers"] = 1
        written["local_rope_theta"] = local_theta
        written["layer_types"] = [
            "full_attention" if layer.window is None else "sliding_attention"
            for layer in layer_specs(model)
        ]
        written["rope_parameters"] = {
            kind: {"rope_type": "default", "rope_theta": written[name]}
            for kind, name in _THETAS.items()
        }
        # text-embeddings-inference does not start without it.
        written["initializer_cutoff_factor"] = 2.0
        return written | dict.fromkeys(_DROPOUTS, 0.0)

    def problem(self, model: ModelConfig) -> str:
        if model.attention_window and not model.global_attention_every_n_layers:
            return (
                "global_attention_every_n_layers is 0, and ModernBERT's first layer is global in "
                "transformers 4: it is not exported"
            )
        if model.classifier_pooling not in _POOLINGS:
            return f"classifier_pooling is {model.classifier_pooling}, which ModernBERT lacks"
        return ""


def _require_plain_rotation(theirs: Mapping[str, Any], path: Path) -> None:
    if scaling := theirs.get("rope_scaling"):
        raise UsageError(f"{path}: rope_scaling is {brief(scaling)}, which is not supported")


def _of_version_5(theirs: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Returns what the newer fields say, by the names of the older ones.

    Raises UsageError where both are there and say different things: each version would load a model
    of its own.
    """
    found: dict[str, Any] = {}
    rope = theirs.get("rope_parameters") or {}
    if not isinstance(rope, dict):
        raise UsageError(f"{path}: rope_parameters is {brief(rope)}; expected one for each kind")
    for kind, name in _THETAS.items():
        rotation = rope.get(kind) or {}
        if not is_plain_rotation(rotation):
            raise UsageError(
                f"{path}: rope_parameters has {brief(rotation)} for {kind}; only rope_type default "
                "is read"
            )
        if "rope_theta" in rotation:
            found[name] = rotation["rope_theta"]
    if (kinds := theirs.get("layer_types")) is not None:
        found["global_attn_every_n_layers"] = _period(kinds, theirs, path)
    for name, value in found.items():
        if theirs.get(name, value) not in (value, None):
            newer = "layer_types" if name == "global_attn_every_n_layers" else "rope_parameters"
            raise UsageError(
                f"{path}: {name} is {brief(theirs[name])}, but {newer} says {brief(value)}; "
                "remove the one that is wrong"
            )
    return found


def _period(kinds: Any, theirs: Mapping[str, Any], path: Path) -> int:
    """Returns n where layers 0, n, 2n, ... are global; 0 where none is."""
    layers = theirs.get("num_hidden_layers", _DEFAULTS["num_hidden_layers"])
    if not isinstance(kinds, list) or len(kinds) != layers:
        raise UsageError(f"{path}: layer_types is {brief(kinds)}; expected one for each layer")
    first, second = "full_attention", "sliding_attention"
    found = [number for number, kind in enumerate(kinds) if kind == first]
    period = found[1] if len(found) > 1 else layers if found else 0
    # Beyond the last layer all are alike, and the one that is declared will do.
    declared = theirs.get("global_attn_every_n_layers")
    if period == layers and isinstance(declared, int) and declared > layers:
        period = declared
    expected = [second if not period or number % period else first for number in range(layers)]
    if kinds != expected:
        raise UsageError(
            f"{path}: layer_types is {brief(kinds)}; only patterns are read in which layers 0, n, "
            f"2n and so on have {first}, and the others {second}"
        )
    return period


FAMILY = Family(
    base="model",
    names=_NAMES,
    class_prefix="ModernBert",
    pooled_names=_TASK_NAMES,
    pooled_parts=frozenset({"sequence_classifier", "token_classifier", "span_classifier"}),
    transform=True,
    poolings=_POOLINGS,
    classes={**OF_TASKS, "ForMaskedLM": ("mlm",), "Model": ()},
    bare=frozenset(),
    token_ids={
        "bos_token_id": "cls",
        "eos_token_id": "sep",
        "cls_token_id": "cls",
        "sep_token_id": "sep",
    },
    fields=(
        "attention_window",
        "global_attention_every_n_layers",
        "rope_theta",
        "local_rope_theta",
        "classifier_pooling",
        "linear_bias",
        "norm_bias",
        "decoder_bias",
        "tie_word_embeddings",
        "scale_output_init",
    ),
    fixed={
        "position_embedding_type": "rotary",
        "norm_placement": "pre",
        "first_norm": False,
        "feed_forward": "gated",
        "type_vocab_size": 0,
    },
    positions={},
    dialect=_ModernBert(),
    joined={"attn.Wqkv": ("query", "key", "value"), "mlp.Wi": ("gate", "input")},
)
