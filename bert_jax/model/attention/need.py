"""The need of a layer, by which attention is chosen: known before a program is traced."""

import dataclasses
from dataclasses import dataclass

from bert_jax.config import ModelConfig
from bert_jax.config.model import SelfAttentionOptions
from bert_jax.model.layer_spec import LayerSpec, layer_specs
from bert_jax.registry import POSITIONS, SCORES


@dataclass(frozen=True, kw_only=True)
class Need:
    """One call of attention."""

    # Keys of a row, and columns of a head.
    length: int
    head_size: int
    # Positions that a token sees, half of them on either side; None is all.
    window: int | None = None
    is_causal: bool = False
    # Whether each column is a query; else those are that are read.
    reads_all: bool = True
    # Whether positions or scores add an array of L x S.
    has_bias: bool = False
    # The share of attention's weights that is dropped.
    dropout_rate: float = 0.0
    # `jax.Device.device_kind`, and the type that is computed in; empty where not known yet.
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
        """Returns what a layer needs in training, in rows of a length of which all is read."""
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
    """Returns whether something is added to the products of queries and keys."""
    kind, mixer = POSITIONS[model.position_embedding_type], model.mixer
    is_added = isinstance(mixer, SelfAttentionOptions) and SCORES[mixer.score].is_added
    return kind.adds_to_scores() or is_added


def needs(model: ModelConfig, *, length: int, **known: str) -> dict[str, Need]:
    """Returns what each kind of a model's layers needs in rows of a length: "global" ones, "local"
    ones, which have a window, and the "last" one, which computes only what is read. A model whose
    mixer is not attention has none. `known` is what is known of `device_kind` and `dtype`.
    """
    if model.mixer.kind != "attention":
        return {}
    found: dict[str, Need] = {}
    for layer in layer_specs(model):
        last = Need.of_layer(model, layer, length=length, **known)
        found["global" if layer.window is None else "local"] = last
    return found | {"last": dataclasses.replace(last, reads_all=False)}
