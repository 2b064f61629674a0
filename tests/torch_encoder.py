"""An encoder of any kind, written in torch from the formulas, on the tree of our parameters.

Rotations, buckets and slopes are those of transformers. Every number but theirs is float64.
"""

import math
from typing import Any

import jax
import numpy as np
import torch
from transformers import ModernBertConfig
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.modernbert.modeling_modernbert import (
    ModernBertRotaryEmbedding,
    apply_rotary_pos_emb,
)
from transformers.models.roformer.modeling_roformer import (
    RoFormerSelfAttention,
    RoFormerSinusoidalPositionalEmbedding,
)
from transformers.models.t5.modeling_t5 import T5Attention

from bert_jax.config import ModelConfig

Tensors = dict[str, Any]


def tensors_of(params: Any) -> Tensors:
    """Returns the same tree of float64 tensors that collect gradients."""
    return jax.tree.map(
        lambda leaf: torch.tensor(np.asarray(leaf), dtype=torch.float64, requires_grad=True), params
    )


def masked_lm_logits(tensors: Tensors, model: ModelConfig, batch: dict[str, Any]) -> torch.Tensor:
    """Returns `[B, L, V]`, in a part `mlm` on the encoder."""
    x, mlm = last_hidden_state(tensors["encoder"], model, batch), tensors["mlm"]
    x = _norm(mlm["layer_norm"], _activation(model, _linear(mlm["transform"], x)), model)
    return x @ tensors["encoder"]["embeddings"]["word"]["embedding"].T + mlm["bias"]


def last_hidden_state(encoder: Tensors, model: ModelConfig, batch: dict[str, Any]) -> torch.Tensor:
    """Returns `[B, L, D]`, without dropout."""
    embeddings = encoder["embeddings"]
    positions = torch.tensor(batch["position_ids"]).long()
    sequences = torch.tensor(batch["sequence_ids"])
    x = embeddings["word"]["embedding"][torch.tensor(batch["input_ids"]).long()]
    x = x + embeddings["token_type"]["embedding"][torch.tensor(batch["token_type_ids"]).long()]
    if model.position_embedding_type == "learned":
        x = x + embeddings["position"]["embedding"][positions]
    if model.position_embedding_type == "sinusoidal":
        x = x + math.sqrt(2) * model.initializer_range * _waves(positions, model.hidden_size)
    x = _norm(embeddings["layer_norm"], x, model)
    allowed = sequences[:, :, None] == sequences[:, None, :]
    is_pre = model.norm_placement == "pre"
    for number in range(model.num_hidden_layers):
        layer = encoder[f"layer_{number}"]
        if is_pre:
            normal = _norm(layer["attention_norm"], x, model)
            x = x + _attention(layer, encoder, model, normal, positions, allowed)
            x = x + _feed_forward(layer, model, _norm(layer["output_norm"], x, model))
            continue
        attended = _attention(layer, encoder, model, x, positions, allowed)
        x = _norm(layer["attention_norm"], x + attended, model)
        x = _norm(layer["output_norm"], x + _feed_forward(layer, model, x), model)
    return _norm(encoder["final_norm"], x, model) if is_pre else x


def _feed_forward(layer: Tensors, model: ModelConfig, x: torch.Tensor) -> torch.Tensor:
    """Shazeer 2020: act(x W) V, or (act(x G) * x W) V."""
    inner = _linear(layer["intermediate"], x)
    if model.feed_forward == "gated":
        return _linear(layer["output"], _activation(model, _linear(layer["gate"], x)) * inner)
    return _linear(layer["output"], _activation(model, inner))


def _attention(
    layer: Tensors,
    encoder: Tensors,
    model: ModelConfig,
    x: torch.Tensor,
    positions: torch.Tensor,
    allowed: torch.Tensor,
) -> torch.Tensor:
    batch, length, width = x.shape
    heads = model.num_attention_heads

    def split(name: str) -> torch.Tensor:
        return _linear(layer[name], x).view(batch, length, heads, width // heads).transpose(1, 2)

    q, k, v = split("query"), split("key"), split("value")
    if model.position_embedding_type == "rotary":
        q, k = _half_split(q, k, positions, model)
    if model.position_embedding_type == "rotary_interleaved":
        q, k = _interleaved(q, k, positions)
    scores = q @ k.transpose(-1, -2)
    if model.position_embedding_type.startswith("relative_key"):
        scores = scores + _relative(layer["position"]["embedding"], q, k, positions, model)
    scores = scores / math.sqrt(width // heads)
    # key - query
    distance = positions[:, None, :] - positions[:, :, None]
    if model.position_embedding_type == "alibi":
        slopes = _slopes(heads).double()
        scores = scores - slopes[:, None, None] * distance.abs()[:, None]
    if model.position_embedding_type == "t5":
        table = encoder["embeddings"]["position"]["embedding"]
        buckets = T5Attention._relative_position_bucket(distance)
        scores = scores + table[buckets].permute(0, 3, 1, 2)
    weights = scores.masked_fill(~allowed[:, None], -1e9).softmax(-1)
    joined = (weights @ v).transpose(1, 2).reshape(batch, length, width)
    return _linear(layer["attention_output"], joined)


def _half_split(q, k, positions, model) -> tuple[torch.Tensor, torch.Tensor]:
    theirs = ModernBertConfig(
        hidden_size=model.hidden_size,
        num_attention_heads=model.num_attention_heads,
        num_hidden_layers=1,
        global_rope_theta=model.rope_theta,
    )
    rotary = ModernBertRotaryEmbedding(theirs)
    return apply_rotary_pos_emb(q, k, *rotary(q.float(), positions, "full_attention"))


def _interleaved(q, k, positions) -> tuple[torch.Tensor, torch.Tensor]:
    """Their angles have a theta of 10,000 always."""
    table = RoFormerSinusoidalPositionalEmbedding(int(positions.max()) + 1, q.shape[-1])
    table.weight.data = table.create_weight()
    found = table.weight.double()[positions][:, None]
    return RoFormerSelfAttention.apply_rotary_position_embeddings(found, q, k)


def _relative(table, q, k, positions, model) -> torch.Tensor:
    """As BertSelfAttention of transformers 4.57 has it, but for rows with positions of their own.

    distance = position_ids_l - position_ids_r
    positional_embedding = self.distance_embedding(distance + max_position_embeddings - 1)
    torch.einsum("bhld,lrd->bhlr", query_layer, positional_embedding)
    torch.einsum("bhrd,lrd->bhlr", key_layer, positional_embedding)
    """
    distance = positions[:, :, None] - positions[:, None, :]
    found = table[distance + model.max_position_embeddings - 1]
    scores = torch.einsum("bhld,blrd->bhlr", q, found)
    if model.position_embedding_type == "relative_key_query":
        scores = scores + torch.einsum("bhrd,blrd->bhlr", k, found)
    return scores


def _slopes(heads: int) -> torch.Tensor:
    """Bloom's, as the difference between what it adds to neighbouring keys."""
    added = build_alibi_tensor(torch.ones(1, 2), heads, torch.float32)
    return (added[:, 0, 1] - added[:, 0, 0]).view(heads)


def _waves(positions: torch.Tensor, width: int) -> torch.Tensor:
    """sin(pos / 10000^(2i/D)) and cos of the same, by turns (Vaswani et al. 2017)."""
    found = torch.zeros(*positions.shape, width, dtype=torch.float64)
    for i in range(width // 2):
        angle = positions.double() / 10_000 ** (2 * i / width)
        found[..., 2 * i], found[..., 2 * i + 1] = angle.sin(), angle.cos()
    return found


def _linear(module: Tensors, x: torch.Tensor) -> torch.Tensor:
    product = x @ module["kernel"]
    return product + module["bias"] if "bias" in module else product


def _norm(module: Tensors, x: torch.Tensor, model: ModelConfig) -> torch.Tensor:
    if model.norm == "rmsnorm":
        assert "bias" not in module
        scale = (x**2).mean(-1, keepdim=True).add(model.layer_norm_eps).rsqrt()
        return x * scale * module["scale"]
    return torch.nn.functional.layer_norm(
        x, x.shape[-1:], module["scale"], module.get("bias"), model.layer_norm_eps
    )


def _activation(model: ModelConfig, x: torch.Tensor) -> torch.Tensor:
    if model.hidden_act == "silu":
        return x * torch.sigmoid(x)
    approximate = "tanh" if model.hidden_act == "gelu_new" else "none"
    return torch.nn.functional.gelu(x, approximate=approximate)
