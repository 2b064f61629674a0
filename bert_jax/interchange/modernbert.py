"""ModernBERT (transformers `modeling_modernbert.py`), and also Ettin and mmBERT.

Its `config.json` has two forms. transformers 4 reads one theta per kind of layer and
`global_attn_every_n_layers`, and ignores the other form: without these keys it silently uses
160,000 and 10,000. transformers 5 reads `layer_types` and `rope_parameters`, and otherwise the
older keys. Both forms are written, and a model that one of them cannot express is rejected.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bert_jax.config import ModelConfig
from bert_jax.errors import UsageError, brief
from bert_jax.interchange import layer_kinds
from bert_jax.interchange.family import ACTIVATIONS, Family, Item, same
from bert_jax.interchange.layer_kinds import FULL, SLIDING
from bert_jax.interchange.name_map import NameMap

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
# The layers before a classifier are named like the masked-LM transform.
_TASKS = {
    "pooler.dense": "head.dense",
    "pooler.layer_norm": "head.norm",
    "sequence_classifier": "classifier",
    **{
        name: theirs
        for part in ("token_classifier", "span_classifier")
        for name, theirs in (
            (part, "classifier"),
            (f"{part}.transform.dense", "head.dense"),
            (f"{part}.transform.layer_norm", "head.norm"),
        )
    },
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
_DROPOUTS = ("attention_dropout", "embedding_dropout", "mlp_dropout", "classifier_dropout")
_THETAS = {FULL: "global_rope_theta", SLIDING: "local_rope_theta"}
_EVERY, _WINDOW = "global_attn_every_n_layers", "local_attention"
# transformers configuration_modernbert.py, both versions
_KEYS = {
    **same(vocab_size=50_368, hidden_size=768, intermediate_size=1152),
    **same(num_hidden_layers=22, num_attention_heads=12),
    "hidden_activation": Item("hidden_act", "gelu", ACTIVATIONS),
    **same(max_position_embeddings=8192, initializer_range=0.02),
    "norm_eps": Item("layer_norm_eps", 1e-5),
    **same(norm_bias=False),
    "global_rope_theta": Item("rope_theta", 160_000.0),
    "local_rope_theta": Item("local_rope_theta", 10_000.0),
    _EVERY: Item("global_attention_every_n_layers", 3),
    _WINDOW: Item("attention_window", 128),
    "attention_bias": Item("linear_bias", False),
    "classifier_pooling": Item("classifier_pooling", "cls", {"cls": "cls", "mean": "mean"}),
    **same(decoder_bias=True, tie_word_embeddings=True),
    "mlp_bias": Item("linear_bias", False),
    "classifier_bias": Item("linear_bias", False),
    "classifier_activation": Item("hidden_act", "gelu", ACTIVATIONS),
}


def _read(theirs: Mapping[str, Any], found: dict[str, Any], path: Path) -> dict[str, Any]:
    thetas = layer_kinds.thetas_of(theirs, path)
    newer: dict[str, Any] = {_THETAS[kind]: theta for kind, theta in thetas.items()}
    layers = found["num_hidden_layers"]
    if theirs.get("layer_types") is not None:
        kinds = layer_kinds.kinds_of(theirs["layer_types"], layers, path)
        every, first = layer_kinds.pattern(kinds, path)
        if first:
            raise UsageError(
                f"{path}: layer_types is {brief(kinds)}; the supported patterns have {FULL} in "
                "layers 0, n, 2n and so on"
            )
        # Numbers beyond the last layer are equivalent; the declared one is kept.
        declared = theirs.get(_EVERY)
        is_beyond = every == layers and isinstance(declared, int) and declared > layers
        newer[_EVERY] = declared if is_beyond else every
    for name, value in newer.items():
        newer_name = "layer_types" if name == _EVERY else "rope_parameters"
        layer_kinds.agreed({newer_name: value, name: theirs.get(name)}, path)
    found = found | {_KEYS[name].field: value for name, value in newer.items()}
    if found["attention_window"] < 1:
        raise UsageError(f"{path}: {_WINDOW} is {found['attention_window']}; must be at least 1")
    # In version 4, null means the theta of global layers.
    has_no_local = "local_rope_theta" in theirs and theirs["local_rope_theta"] is None
    if has_no_local and "local_rope_theta" not in newer:
        found["local_rope_theta"] = found["rope_theta"]
    if found["global_attention_every_n_layers"] == 1:
        found |= {"attention_window": 0, "global_attention_every_n_layers": 0}
        found["local_rope_theta"] = 0.0
    if found["local_rope_theta"] == found["rope_theta"]:
        found["local_rope_theta"] = 0.0
    return found | {"scale_output_init": True}


def _write(model: ModelConfig) -> dict[str, Any]:
    if model.attention_window and not model.global_attention_every_n_layers:
        raise UsageError(
            "model.global_attention_every_n_layers is 0, but the first layer of a ModernBERT is "
            "always global in transformers 4: this model cannot be exported"
        )
    written: dict[str, Any] = {"local_rope_theta": model.local_rope_theta or model.rope_theta}
    if not model.attention_window:
        written |= {_WINDOW: _KEYS[_WINDOW].default, _EVERY: 1}
    written |= layer_kinds.written(model)
    # text-embeddings-inference does not start without this key.
    written["initializer_cutoff_factor"] = 2.0
    return written | dict.fromkeys(_DROPOUTS, 0.0)


FAMILY = Family(
    base="model",
    names=_NAMES,
    class_prefix="ModernBert",
    keys=_KEYS,
    fixed={
        "position_embedding_type": "rotary",
        "norm_placement": "pre",
        "first_norm": False,
        "feed_forward": "gated",
        "type_vocab_size": 0,
    },
    refused=("rope_scaling",),
    dropouts=_DROPOUTS,
    token_ids={
        "bos_token_id": "cls",
        "eos_token_id": "sep",
        "cls_token_id": "cls",
        "sep_token_id": "sep",
    },
    read=_read,
    write=_write,
    writes_num_labels=True,
    pooled_names=dataclasses.replace(_NAMES, fixed=_ENCODER | _TASKS),
    pooled_parts=frozenset({"sequence_classifier", "token_classifier", "span_classifier"}),
    transform=True,
    joined={"attn.Wqkv": ("query", "key", "value"), "mlp.Wi": ("gate", "input")},
)
