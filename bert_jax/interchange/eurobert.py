"""EuroBERT (transformers 5 `modeling_eurobert.py`): Llama's block and names, bidirectional."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bert_jax.config import ModelConfig
from bert_jax.interchange.family import ACTIVATIONS, Family, Item, same
from bert_jax.interchange.layer_kinds import agreed, theta_of
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
# Keys with a single value.
CONSTANTS = {"attention_bias": False, "mlp_bias": False, "attention_dropout": 0.0}


def _read(theirs: Mapping[str, Any], found: dict[str, Any], path: Path) -> dict[str, Any]:
    tables = {
        name: theirs[name] for name in ("rope_parameters", "rope_scaling") if theirs.get(name)
    }
    tables["rope_theta"] = {"rope_theta": theirs.get("rope_theta")}
    thetas = {name: theta_of(table, name, path) for name, table in tables.items()}
    return {"rope_theta": agreed(thetas, path) or 10_000.0}


def _write(model: ModelConfig) -> dict[str, Any]:
    # The older code on the hub reads the second key.
    rotation = {"rope_type": "default", "rope_theta": model.rope_theta}
    return CONSTANTS | {"rope_parameters": rotation, "rope_theta": model.rope_theta}


FAMILY = Family(
    base="model",
    names=NAMES,
    class_prefix="EuroBert",
    # transformers configuration_eurobert.py
    keys={
        **same(vocab_size=128_256, hidden_size=768, intermediate_size=3072),
        **same(num_hidden_layers=12, num_attention_heads=12),
        "hidden_act": Item("hidden_act", "silu", ACTIVATIONS),
        **same(max_position_embeddings=8192, initializer_range=0.02),
        "rms_norm_eps": Item("layer_norm_eps", 1e-5),
        **same(tie_word_embeddings=False),
        "classifier_pooling": Item(
            "classifier_pooling", "late", {"bos": "cls", "mean": "mean", "late": "late"}
        ),
        **same(num_key_value_heads=None, head_dim=None),
    },
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
    refused=("attention_bias", "mlp_bias"),
    dropouts=("attention_dropout",),
    token_ids={"bos_token_id": "cls", "eos_token_id": "sep", "mask_token_id": "mask"},
    fields=("rope_theta",),
    read=_read,
    write=_write,
    writes_num_labels=True,
    pooler_act="gelu",
)
