"""The spec of each layer of a model. No other module derives it from a `ModelConfig`."""

from dataclasses import dataclass

from bert_jax.config import ModelConfig


@dataclass(frozen=True, kw_only=True)
class LayerSpec:
    """One layer. Layers with equal specs share a program where `compute.layer_loop` is "scan"."""

    # A name in registry.MIXERS.
    mixer: str
    feed_forward: str
    norm_placement: str
    norm: str
    # Whether the attention sublayer has a norm.
    has_attention_norm: bool
    rope_theta: float
    # Positions that a token attends to, half of them on either side; None means all.
    window: int | None


def layer_specs(model: ModelConfig) -> tuple[LayerSpec, ...]:
    """Returns the spec of each layer, from the first."""
    every, layers = model.global_attention_every_n_layers, model.num_hidden_layers
    seeing_all = range(model.first_global_layer, layers, every) if every else ()

    def spec(number: int) -> LayerSpec:
        is_global = not model.attention_window or number in seeing_all
        local_theta = model.local_rope_theta or model.rope_theta
        return LayerSpec(
            mixer=model.mixer.kind,
            feed_forward=model.feed_forward,
            norm_placement=model.norm_placement,
            norm=model.norm,
            has_attention_norm=model.first_norm or number > 0,
            rope_theta=model.rope_theta if is_global else local_theta,
            window=None if is_global else model.attention_window,
        )

    return tuple(spec(number) for number in range(layers))
