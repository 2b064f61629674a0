"""The properties of an attention call that choose its implementation, known before tracing."""

import dataclasses
from dataclasses import dataclass

from bert_jax.config import ModelConfig
from bert_jax.config.model import SelfAttentionOptions
from bert_jax.model.layer_spec import LayerSpec, layer_specs
from bert_jax.registry import POSITIONS, SCORES


@dataclass(frozen=True, kw_only=True)
class Need:
    """One call of attention."""

    # Keys per row, and columns per head.
    length: int
    head_size: int
    # Positions that a token attends to, half of them on either side; None means all.
    window: int | None = None
    is_causal: bool = False
    # Whether every column is a query, or only the positions that are read.
    reads_all: bool = True
    # Whether positions or scores add a bias of L x S.
    has_bias: bool = False
    # The dropout rate of the attention weights.
    dropout_rate: float = 0.0
    # `jax.Device.device_kind`, and the compute type; empty if not yet known.
    device_kind: str = ""
    dtype: str = ""

    @classmethod
    def of_layer(
        cls,
        model: ModelConfig,
        layer: LayerSpec,
        *,
        length: int,
        device_kind: str = "",
        dtype: str = "",
    ) -> "Need":
        """Returns the need of a layer in training, for rows that are read completely."""
        return cls(
            length=length,
            head_size=model.hidden_size // model.num_attention_heads,
            window=layer.window,
            has_bias=adds_to_scores(model),
            dropout_rate=model.attention_probs_dropout_prob,
            device_kind=device_kind,
            dtype=dtype,
        )


def adds_to_scores(model: ModelConfig) -> bool:
    """Returns whether a term is added to the products of queries and keys."""
    kind, mixer = POSITIONS[model.position_embedding_type], model.mixer
    is_added = isinstance(mixer, SelfAttentionOptions) and SCORES[mixer.score].is_added
    return kind.adds_to_scores() or is_added


def needs(model: ModelConfig, *, length: int, **known: str) -> dict[str, Need]:
    """Returns the need of each kind of layer for rows of a length: "global", "local" (with a
    window) and "last" (computes only the positions that are read). A model with another mixer than
    attention has none. `known` is `device_kind` and `dtype`, if known.
    """
    if model.mixer.kind != "attention":
        return {}
    found: dict[str, Need] = {}
    for layer in layer_specs(model):
        last = Need.of_layer(model, layer, length=length, **known)
        found["global" if layer.window is None else "local"] = last
    return found | {"last": dataclasses.replace(last, reads_all=False)}
