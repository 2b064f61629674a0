"""UltraBERT (transformers 5 `modeling_ultrabert.py`): EuroBERT with local layers, another head."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bert_jax.config import ModelConfig
from bert_jax.errors import UsageError, brief
from bert_jax.interchange import eurobert, layer_kinds
from bert_jax.interchange.family import Item, same
from bert_jax.interchange.layer_kinds import FULL, SLIDING

_PERIOD, _MOST_LAYERS = 3, 100_000  # the code below lists each layer


def _read(theirs: Mapping[str, Any], found: dict[str, Any], path: Path) -> dict[str, Any]:
    layers, given = found["num_hidden_layers"], dict(theirs)
    if layers > _MOST_LAYERS:
        raise UsageError(f"{path}: num_hidden_layers is {layers:,}; at most {_MOST_LAYERS:,}")
    # Older files: a window and a theta per layer.
    windows, thetas = given.get("attention_windows"), given.pop("rope_theta", None)
    if isinstance(windows, list):
        given["layer_types"] = given.get("layer_types") or [SLIDING if w else FULL for w in windows]
        given["sliding_window"] = next(filter(None, windows), None)
    usual = [FULL if (i + 1) % _PERIOD == 0 else SLIDING for i in range(layers)]
    kinds = layer_kinds.kinds_of(given.get("layer_types") or usual, layers, path)
    if thetas is not None and not given.get("rope_parameters"):
        by_kind = dict(zip(kinds, thetas, strict=False)) if isinstance(thetas, list) else {}
        if [by_kind.get(kind) for kind in kinds] != thetas:
            raise UsageError(f"{path}: rope_theta is {brief(thetas)}; expected one for each kind")
        given["rope_parameters"] = {k: {"rope_theta": theta} for k, theta in by_kind.items()}
    read = layer_kinds.thetas_of(given, path)
    full, local = read.get(FULL, 2_560_000.0), read.get(SLIDING, 10_000.0)
    radius = Item("", 128).read("sliding_window", given, path)
    inner = Item("", 768).read("prediction_head_size", given, path)
    if radius < 1 or inner < 1:
        raise UsageError(f"{path}: sliding_window and prediction_head_size must be at least 1")
    every, first = layer_kinds.pattern(kinds, path, usual=_PERIOD)
    shape = {"rope_theta": full, "masked_lm_inner_size": inner}
    if SLIDING not in kinds:
        return shape
    # Their window is the distance to one side, ours includes both sides.
    local = {"local_rope_theta": 0.0 if local == full else local, "attention_window": 2 * radius}
    return shape | local | {"global_attention_every_n_layers": every, "first_global_layer": first}


def _write(model: ModelConfig) -> dict[str, Any]:
    if model.attention_window % 2 or not model.masked_lm_inner_size:
        raise UsageError(
            f"model.attention_window is {model.attention_window} and model.masked_lm_inner_size "
            f"{model.masked_lm_inner_size}; UltraBERT needs an even window and inner size above 0"
        )
    kinds = layer_kinds.written(model)
    return eurobert.CONSTANTS | {
        "rope_parameters": kinds["rope_parameters"],
        "sliding_window": model.attention_window // 2 or 128,
        "layer_types": kinds["layer_types"],
        "prediction_head_size": model.masked_lm_inner_size,
        "classifier_dropout": 0.0,
    }


_NAMES = {
    **{n: t for n, t in eurobert.NAMES.fixed.items() if n.startswith(("encoder", "token"))},
    **{"mlm.transform": "head.linear1", "mlm.transform_back": "head.linear2"},
    **{"mlm.decoder": "head.decoder", "span_classifier": "qa_outputs"},
}
_FIELDS = ("rope_theta", "local_rope_theta", "attention_window", "first_global_layer",
           "global_attention_every_n_layers", "masked_lm_inner_size")  # fmt: skip
# The text classifier has no dense layer before it, unlike every classifier of bert-jax.
FAMILY = dataclasses.replace(
    eurobert.FAMILY,
    names=dataclasses.replace(eurobert.NAMES, fixed=_NAMES),
    class_prefix="Ultrabert",
    # transformers configuration_ultrabert.py
    keys=eurobert.FAMILY.keys
    | same(vocab_size=32_000, hidden_size=4096, intermediate_size=11_008, num_hidden_layers=32)
    | same(num_attention_heads=32, max_position_embeddings=32_768)
    | {"rms_norm_eps": Item("layer_norm_eps", 1e-6)}
    | {"classifier_pooling": Item("classifier_pooling", "cls", {"cls": "cls", "mean": "mean"})},
    fixed=eurobert.FAMILY.fixed | {"masked_lm_transform": True, "masked_lm_act": "gelu_new"},
    refused=("attention_bias", "mlp_bias", "rope_scaling"),
    token_ids={"bos_token_id": "cls", "eos_token_id": "sep"},
    fields=_FIELDS,
    read=_read,
    write=_write,
    # Old names, which `save_pretrained` still writes (transformers conversion_mapping.py).
    prefixes={"ultrabert.": "model.", "cls.": "head.decoder."},
)
