"""EuroBERT's directories (transformers 5 `modeling_eurobert.py`): Llama's block and names, with
attention to both sides.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bert_jax.config import ModelConfig
from bert_jax.errors import UsageError, brief
from bert_jax.interchange.family import Dialect, Family, checked, is_plain_rotation
from bert_jax.interchange.name_map import NameMap

NAMES = NameMap(
    fixed={
        "encoder.embeddings.word": "model.embed_tokens",
        "encoder.final_norm": "model.norm",
        "mlm": "lm_head",
        "mlm.decoder": "lm_head",
        "pooler.dense": "dense",
        "sequence_classifier": "classifier",
        "token_classifier": "classifier",
    },
    layer={
        "query": "self_attn.q_proj",
        "key": "self_attn.k_proj",
        "value": "self_attn.v_proj",
        "attention_output": "self_attn.o_proj",
        "attention_norm": "input_layernorm",
        "gate": "mlp.gate_proj",
        "intermediate": "mlp.up_proj",
        "output": "mlp.down_proj",
        "output_norm": "post_attention_layernorm",
    },
    layer_prefix="model.layers.{}.",
)

# Of configuration_eurobert.py.
_DEFAULTS: dict[str, Any] = {
    "vocab_size": 128_256,
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "hidden_act": "silu",
    "max_position_embeddings": 8192,
    "initializer_range": 0.02,
    "rms_norm_eps": 1e-5,
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
    "classifier_pooling": "late",
}
_POOLINGS = {"bos": "cls", "mean": "mean", "late": "late"}
_THETA = 10_000.0


class EuroBert(Dialect):
    # What a config without a field means.
    defaults: Mapping[str, Any] = _DEFAULTS
    # Their name of what a classifier of texts reads -> ours.
    poolings: Mapping[str, str] = _POOLINGS

    def rotation(self, theirs: Mapping[str, Any], path: Path) -> dict[str, Any]:
        """Returns the fields of ours about thetas."""
        return {"rope_theta": _theta(theirs, path)}

    def rotation_of(self, model: ModelConfig) -> dict[str, Any]:
        """Returns the fields of theirs about thetas."""
        # The second is what the code on the hub reads, from before transformers had the class.
        return {
            "rope_parameters": {"rope_type": "default", "rope_theta": model.rope_theta},
            "rope_theta": model.rope_theta,
        }

    def to_ours(self, theirs: Mapping[str, Any], path: Path) -> dict[str, Any]:
        values = checked(theirs, self.defaults, path)
        heads, width = values["num_attention_heads"], values["hidden_size"]
        more = checked(
            {name: value for name, value in theirs.items() if value is not None},
            {"num_key_value_heads": heads, "head_dim": width // max(heads, 1)},
            path,
        )
        for name in ("attention_bias", "mlp_bias"):
            if values.pop(name):
                raise UsageError(f"{path}: {name} is true, which is not supported")
        if more["head_dim"] * heads != width:
            raise UsageError(
                f"{path}: head_dim is {more['head_dim']}; bert-jax has heads of hidden_size over "
                "num_attention_heads"
            )
        grouped = more["num_key_value_heads"]
        if values["classifier_pooling"] not in self.poolings:
            raise UsageError(
                f"{path}: classifier_pooling is {brief(values['classifier_pooling'])}; expected "
                f"one of {', '.join(self.poolings)}"
            )
        values["classifier_pooling"] = self.poolings[values["classifier_pooling"]]
        values["layer_norm_eps"] = values.pop("rms_norm_eps")
        values["num_key_value_heads"] = 0 if grouped == heads else grouped
        values |= self.rotation(theirs, path)
        no_dropout = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0)
        return {**values, **no_dropout}

    def to_theirs(self, model: ModelConfig) -> dict[str, Any]:
        ours = {name: name for name in self.defaults} | {"rms_norm_eps": "layer_norm_eps"}
        written = {name: getattr(model, n) for name, n in ours.items() if hasattr(model, n)}
        theirs = {ours: name for name, ours in self.poolings.items()}
        return written | {
            "classifier_pooling": theirs[model.classifier_pooling],
            "num_key_value_heads": model.num_key_value_heads or model.num_attention_heads,
            "head_dim": model.hidden_size // model.num_attention_heads,
            "attention_bias": False,
            "mlp_bias": False,
            "attention_dropout": 0.0,
            **self.rotation_of(model),
        }

    def problem(self, model: ModelConfig) -> str:
        return ""


def _theta(theirs: Mapping[str, Any], path: Path) -> float:
    tables = {n: theirs[n] for n in ("rope_parameters", "rope_scaling") if theirs.get(n)}
    for name, rotation in tables.items():
        if not is_plain_rotation(rotation):
            raise UsageError(f"{path}: {name} is {brief(rotation)}; only rope_type default")
    found = [each["rope_theta"] for each in (*tables.values(), theirs) if "rope_theta" in each]
    if others := [theta for theta in found if theta != found[0]]:
        raise UsageError(
            f"{path}: rope_theta is {brief(others[0])}, but {next(iter(tables))} says "
            f"{brief(found[0])}; remove the one that is wrong"
        )
    return checked({"rope_theta": (*found, _THETA)[0]}, {"rope_theta": _THETA}, path)["rope_theta"]


FAMILY = Family(
    base="model",
    names=NAMES,
    class_prefix="EuroBert",
    pooler_act="gelu",
    poolings=tuple(_POOLINGS.values()),
    classes={
        "ForSequenceClassification": ("pooler", "sequence_classifier"),
        "ForTokenClassification": ("token_classifier",),
        "ForMaskedLM": ("mlm",),
        "Model": (),
    },
    bare=frozenset(),
    token_ids={"bos_token_id": "cls", "eos_token_id": "sep", "mask_token_id": "mask"},
    fields=("classifier_pooling", "num_key_value_heads", "rope_theta", "tie_word_embeddings"),
    fixed={
        "position_embedding_type": "rotary",
        "norm_placement": "pre",
        "norm": "rmsnorm",
        "embedding_norm": False,
        "linear_bias": False,
        "feed_forward": "gated",
        "type_vocab_size": 0,
        "masked_lm_transform": False,
        "decoder_bias": False,
    },
    positions={},
    dialect=EuroBert(),
)
