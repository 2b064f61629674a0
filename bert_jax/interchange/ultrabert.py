"""UltraBERT's directories (transformers 5 `modeling_ultrabert.py`): EuroBERT's block, layers that
see only their neighbourhood, a theta for each kind of layer, and a head of two maps.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bert_jax.config import ModelConfig
from bert_jax.errors import UsageError, brief
from bert_jax.interchange import eurobert
from bert_jax.interchange.family import checked, is_plain_rotation
from bert_jax.model.layer_spec import layer_specs

_NAMES = dataclasses.replace(
    eurobert.NAMES,
    fixed={
        "encoder.embeddings.word": "model.embed_tokens",
        "encoder.final_norm": "model.norm",
        "mlm.transform": "head.linear1",
        "mlm.transform_back": "head.linear2",
        "mlm.decoder": "head.decoder",
        "token_classifier": "classifier",
        "span_classifier": "qa_outputs",
    },
)
_FULL, _SLIDING = "full_attention", "sliding_attention"
# What a config without a theta means (configuration_ultrabert.py), and the field of ours.
_THETAS = {_FULL: ("rope_theta", 2_560_000.0), _SLIDING: ("local_rope_theta", 10_000.0)}
_PERIOD = 3
_MOST_LAYERS = 100_000


class _UltraBert(eurobert.EuroBert):
    poolings: Mapping[str, str] = {"cls": "cls", "mean": "mean"}
    # Of configuration_ultrabert.py.
    defaults: Mapping[str, Any] = dict(eurobert.EuroBert.defaults) | {
        "vocab_size": 32_000,
        "hidden_size": 4096,
        "intermediate_size": 11_008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "max_position_embeddings": 32_768,
        "classifier_pooling": "cls",
        "rms_norm_eps": 1e-6,
        "sliding_window": 128,
        "prediction_head_size": 768,
    }

    def rotation(self, theirs: Mapping[str, Any], path: Path) -> dict[str, Any]:
        if scaling := theirs.get("rope_scaling"):
            raise UsageError(f"{path}: rope_scaling is {brief(scaling)}, which is not supported")
        given = theirs.get("rope_parameters") or {}
        kinds, old = _kinds(theirs, path), theirs.get("rope_theta")
        # A theta for each layer, from before transformers had the class.
        if not given and old is not None:
            if not isinstance(old, list) or len(old) != len(kinds):
                raise UsageError(f"{path}: rope_theta is {brief(old)}; expected one for each layer")
            given = {kind: {"rope_theta": theta} for kind, theta in zip(kinds, old, strict=True)}
            if [given[kind]["rope_theta"] for kind in kinds] != old:
                raise UsageError(f"{path}: rope_theta is {brief(old)}; one for each kind is read")
        if not isinstance(given, dict):
            raise UsageError(f"{path}: rope_parameters is {brief(given)}; expected one a kind")
        found = {}
        for kind, (name, theta) in _THETAS.items():
            rotation = given.get(kind, {})
            if not is_plain_rotation(rotation):
                raise UsageError(
                    f"{path}: rope_parameters has {brief(rotation)} for {kind}; only rope_type "
                    "default is read"
                )
            value = {"rope_theta": rotation.get("rope_theta", theta)}
            found[name] = checked(value, {"rope_theta": theta}, path)["rope_theta"]
        if found["local_rope_theta"] == found["rope_theta"] or _SLIDING not in kinds:
            found["local_rope_theta"] = 0.0
        return found

    def rotation_of(self, model: ModelConfig) -> dict[str, Any]:
        thetas = {
            _FULL: model.rope_theta,
            _SLIDING: model.local_rope_theta or model.rope_theta,
        }
        return {
            "rope_parameters": {
                kind: {"rope_type": "default", "rope_theta": theta}
                for kind, theta in thetas.items()
            }
        }

    def to_ours(self, theirs: Mapping[str, Any], path: Path) -> dict[str, Any]:
        kinds, radius = _kinds(theirs, path), _radius(theirs)
        found = super().to_ours({**theirs, "sliding_window": radius}, path)
        # Theirs is how far a token sees to either side, and ours both sides together.
        window = 2 * found.pop("sliding_window")
        found["masked_lm_inner_size"] = found.pop("prediction_head_size")
        for name, value in (("sliding_window", window), ("prediction_head_size",
                            found["masked_lm_inner_size"])):  # fmt: skip
            if value < 1:
                raise UsageError(f"{path}: {name} is below 1")
        if _SLIDING not in kinds:
            return found
        every, first = _pattern(kinds, path)
        return found | {
            "attention_window": window,
            "global_attention_every_n_layers": every,
            "first_global_layer": first,
        }

    def to_theirs(self, model: ModelConfig) -> dict[str, Any]:
        window = model.attention_window // 2
        return super().to_theirs(model) | {
            "sliding_window": window or self.defaults["sliding_window"],
            "layer_types": [
                _FULL if layer.window is None else _SLIDING for layer in layer_specs(model)
            ],
            "prediction_head_size": model.masked_lm_inner_size,
            "classifier_dropout": 0.0,
        }

    def problem(self, model: ModelConfig) -> str:
        if model.attention_window % 2:
            return (
                f"attention_window is {model.attention_window}, and UltraBERT has two equal sides"
            )
        if not model.masked_lm_inner_size:
            return "masked_lm_inner_size is 0, and UltraBERT's head has two maps"
        return ""


def _kinds(theirs: Mapping[str, Any], path: Path) -> list[str]:
    """Returns the kind of each layer."""
    layers = checked(theirs, {"num_hidden_layers": _UltraBert.defaults["num_hidden_layers"]}, path)
    count, kinds = layers["num_hidden_layers"], theirs.get("layer_types")
    if count > _MOST_LAYERS:  # each is written out below
        raise UsageError(f"{path}: num_hidden_layers is {count:,}, of at most {_MOST_LAYERS:,}")
    if kinds is None and isinstance(windows := theirs.get("attention_windows"), list):
        kinds = [_SLIDING if window else _FULL for window in windows]
    if kinds is None:
        kinds = [_FULL if (i + 1) % _PERIOD == 0 else _SLIDING for i in range(count)]
    is_listed = isinstance(kinds, list) and len(kinds) == count
    if not is_listed or not all(kind in (_FULL, _SLIDING) for kind in kinds):
        raise UsageError(
            f"{path}: layer_types is {brief(kinds)}; expected {_FULL} or {_SLIDING} for each layer"
        )
    return kinds


def _radius(theirs: Mapping[str, Any]) -> Any:
    """Returns how far a local layer sees; before transformers had the class, each layer said it."""
    windows = theirs.get("attention_windows")
    found = [window for window in windows if window] if isinstance(windows, list) else []
    return (*found, theirs.get("sliding_window", _UltraBert.defaults["sliding_window"]))[0]


def _pattern(kinds: Sequence[str], path: Path) -> tuple[int, int]:
    """Returns n and f where layers f, f + n, f + 2n, ... are global; 0 and 0 where none is."""
    found = [number for number, kind in enumerate(kinds) if kind == _FULL]
    if not found:
        return 0, 0
    first = found[0]
    for every in range(1, len(kinds) + 1):
        # The usual n, where a single global layer leaves it open.
        n = _PERIOD if every == 1 and len(found) == 1 else every
        if found == [*range(first, len(kinds), n)]:
            return n, first
    raise UsageError(
        f"{path}: layer_types is {brief(list(kinds))}; only patterns are read in which layers f, "
        f"f + n, f + 2n and so on have {_FULL}"
    )


FAMILY = dataclasses.replace(
    eurobert.FAMILY,
    names=_NAMES,
    class_prefix="Ultrabert",
    # Its classifier of texts has no map before it, which every one of ours has.
    classes={
        "ForTokenClassification": ("token_classifier",),
        "ForQuestionAnswering": ("span_classifier",),
        "ForMaskedLM": ("mlm",),
        "Model": (),
    },
    token_ids={"bos_token_id": "cls", "eos_token_id": "sep"},
    fields=(
        *eurobert.FAMILY.fields,
        "attention_window",
        "global_attention_every_n_layers",
        "first_global_layer",
        "local_rope_theta",
        "masked_lm_inner_size",
    ),
    fixed={
        **eurobert.FAMILY.fixed,
        "masked_lm_transform": True,
        "masked_lm_act": "gelu_new",
    },
    dialect=_UltraBert(),
    poolings=tuple(_UltraBert.poolings.values()),
    # As its classes save them: the names of before transformers had the class, which it changes
    # while it loads (conversion_mapping.py).
    prefixes={"ultrabert.": "model.", "cls.": "head.decoder."},
)
