"""Sections of a config: the encoder, and its heads."""

import dataclasses
from typing import Literal

from bert_jax.config.fields import (
    Count,
    Kind,
    Natural,
    NonNegative,
    Positive,
    Rate,
    section,
    setting,
)
from bert_jax.registry import MIXERS, PARTS, POSITIONS, SCORES

Activation = Literal["gelu", "gelu_new", "silu"]
DropoutSite = Literal["embeddings", "attention", "feed_forward", "classifier"]
# The fields of ModelConfig that change how a model is trained and not what it computes.
TRAINING_FIELDS = (
    "hidden_dropout_prob",
    "hidden_dropout_sites",
    "attention_probs_dropout_prob",
    "initializer_range",
    "scale_output_init",
    "classifier_pooling",
)
# The fields that only a model with a generator reads.
GENERATOR_FIELDS = ("generator_size", "generator_layers", "embedding_sharing")


@section
class Mixing(Kind, table=MIXERS):
    """The base of the options of mixers (model/mixers/)."""

    default_kind = "attention"


@section
class SelfAttentionOptions(Mixing, kind="attention"):
    """Self-attention."""

    score: str = setting(
        "scaled_dot_product",
        "Score of query q and key k: `scaled_dot_product` is q k / sqrt(K) for heads of size K.",
        choices=SCORES,
    )


@section
class ModelConfig:
    """The encoder. Field names and meanings follow `config.json` of Hugging Face."""

    vocab_size: Count = setting(30522, "Token embeddings; at least as many as the tokenizer has.")
    hidden_size: Count = setting(768, "Width of the encoder; a multiple of `num_attention_heads`.")
    num_hidden_layers: Count = setting(12, "Number of layers.")
    num_attention_heads: Count = setting(12, "Attention heads per layer.")
    # Ainslie et al. 2023.
    num_key_value_heads: Natural = setting(
        0,
        "Key and value heads for grouped-query attention; a divisor of "
        "`model.num_attention_heads`. 0 uses one key and value head per attention head.",
    )
    intermediate_size: Count = setting(3072, "Inner width of the feed-forward layer.")
    hidden_act: Activation = setting(
        "gelu_new",
        "Activation of the layers: `gelu_new` is the tanh approximation of the original BERT code, "
        "`gelu` the exact form, `silu` is x sigmoid(x).",
    )
    hidden_dropout_prob: Rate = setting(0.1, "Dropout of embeddings and of each sublayer's output.")
    hidden_dropout_sites: tuple[DropoutSite, ...] = setting(
        ("embeddings", "attention", "feed_forward", "classifier"),
        "Where `model.hidden_dropout_prob` applies: after the `embeddings`, the `attention` and "
        "the `feed_forward` of each layer, and before a `classifier`. ModernBERT uses `attention` "
        "only.",
    )
    attention_probs_dropout_prob: Rate = setting(0.1, "Dropout rate of the attention weights.")
    max_position_embeddings: Count = setting(
        512, "Longest sequence: the size of the position table, or a limit without a table."
    )
    type_vocab_size: Natural = setting(2, "Rows of the segment table; pairs need 2, 0 omits it.")
    initializer_range: Positive = setting(
        0.02, "Standard deviation of the initial weights, from a normal distribution cut at two."
    )
    # Shoeybi et al. 2019; ModernBERT's "full_megatron".
    scale_output_init: bool = setting(
        False,
        "Whether the initial weights of the output layers of attention and feed-forward are "
        "divided by the square root of twice `model.num_hidden_layers`.",
    )
    layer_norm_eps: Positive = setting(1e-12, "Added to the variance in every normalization.")
    position_embedding_type: str = setting("learned", "Position encoding.", choices=POSITIONS)
    # Clark et al. 2020; ALBERT.
    embedding_size: Natural = setting(
        0, "Width of the embedding tables, with a linear layer behind; 0 uses `hidden_size`."
    )
    generator_size: Positive = setting(
        0.25,
        "Width of the generator of `rtd`, as a fraction of the width of the encoder. The generator "
        "has one attention head per 64 columns, and an inner width of four times its width.",
    )
    generator_layers: Positive = setting(1.0, "Layers of the generator per layer of the encoder.")
    embedding_sharing: Literal["all", "embeddings", "none"] = setting(
        "all",
        "What the generator shares with the encoder: `all` (the tables and their normalization), "
        "`embeddings` (the tables) or `none`.",
    )
    rope_theta: Positive = setting(
        10_000.0, "Rotary encoding: pair i of K columns turns by `rope_theta`^(-2i / K) per token."
    )
    # Xiong et al. 2020.
    norm_placement: Literal["post", "pre"] = setting(
        "post",
        "`post` normalizes the sum after each sublayer, as in BERT; `pre` normalizes the input of "
        "each sublayer and the output of the last layer.",
    )
    first_norm: bool = setting(
        True,
        "Whether the first layer normalizes the input of its attention. ModernBERT sets it to "
        "false, because its embeddings are normalized.",
    )
    embedding_norm: bool = setting(True, "Whether the sum of the embeddings is normalized.")
    # Zhang & Sennrich 2019.
    norm: Literal["layernorm", "rmsnorm"] = setting(
        "layernorm", "The normalization: `layernorm`, or `rmsnorm` without mean and bias."
    )
    norm_bias: bool = setting(True, "Whether each LayerNorm has a bias.")
    # Poolers and classifiers have theirs.
    linear_bias: bool = setting(
        True, "Whether the linear layers of the encoder and of the masked-LM transform have a bias."
    )
    # Shazeer 2020, "GLU variants improve Transformer".
    feed_forward: Literal["dense", "gated"] = setting(
        "dense",
        "`gated` multiplies the activation by a second linear layer, as in GeGLU; `dense` does "
        "not. A gated layer has three kernels of `model.intermediate_size`, a dense layer two.",
    )
    mixer: Mixing = setting(
        SelfAttentionOptions(), "The sublayer that exchanges information between tokens."
    )
    # transformers' `local_attention`.
    attention_window: Natural = setting(
        0, "Tokens in the window of a local layer, half on each side; 0 makes all layers global."
    )
    global_attention_every_n_layers: Natural = setting(
        0, "With a window, layers 0, n, 2n, ... are global. ModernBERT uses 3; 0 makes all local."
    )
    first_global_layer: Natural = setting(0, "Index of the first global layer; UltraBERT uses 2.")
    local_rope_theta: NonNegative = setting(0.0, "`rope_theta` of local layers; 0 uses the same.")
    # Read by fine-tuning. A pre-trained model keeps it for that.
    classifier_pooling: Literal["cls", "mean", "late"] = setting(
        "cls",
        "Input of a sequence classifier: `cls` is the first token (BERT), `mean` the mean over all "
        "tokens (ModernBERT as published), `late` the mean after the pooler (EuroBERT).",
    )
    masked_lm_transform: bool = setting(
        True, "Whether a linear layer, an activation and a norm precede the masked-LM output."
    )
    # transformers modeling_ultrabert.py, UltrabertPredictionHead.
    masked_lm_inner_size: Natural = setting(
        0,
        "Width between two linear layers of the masked-LM head, each with an activation and "
        "without a norm; 0 uses one linear layer and a norm.",
    )
    masked_lm_act: Literal["hidden_act", "gelu", "gelu_new", "silu"] = setting(
        "hidden_act", "Activation of the masked-LM head; `hidden_act` uses that of the layers."
    )
    decoder_bias: bool = setting(True, "Whether the masked-LM head has an output bias per token.")
    tie_word_embeddings: bool = setting(
        True, "Whether the masked-LM output layer shares its weights with the token embedding."
    )

    @property
    def table_size(self) -> int:
        """Returns the width of the embedding tables."""
        return self.embedding_size or self.hidden_size

    @property
    def key_value_size(self) -> int:
        """Returns the width of all heads of keys, and of values."""
        heads = self.num_key_value_heads or self.num_attention_heads
        return self.hidden_size // self.num_attention_heads * heads

    @property
    def output_init(self) -> float:
        """Returns the standard deviation of the initial output layers of the encoder."""
        scale = (2 * self.num_hidden_layers) ** -0.5 if self.scale_output_init else 1.0
        return scale * self.initializer_range

    def dropout_at(self, site: str) -> float:
        """Returns the rate of `hidden_dropout_prob` at one of `hidden_dropout_sites`."""
        return self.hidden_dropout_prob if site in self.hidden_dropout_sites else 0.0

    def generator(self) -> "ModelConfig":
        """Returns the shape of the generator (google-research/electra run_pretraining.py,
        `get_generator_config`): heads of 64, and a feed-forward of four times the width.
        """
        width = max(1, round(self.hidden_size * self.generator_size))
        generator = dataclasses.replace(
            self,
            hidden_size=width,
            num_hidden_layers=max(1, round(self.num_hidden_layers * self.generator_layers)),
            num_attention_heads=max(1, width // 64),
            num_key_value_heads=0,
            intermediate_size=4 * width,
            embedding_size=0 if self.table_size == width else self.table_size,
        )
        return generator.with_generator_of(ModelConfig())

    def with_generator_of(self, other: "ModelConfig") -> "ModelConfig":
        """Returns this encoder with the generator of `other`."""
        values = {name: getattr(other, name) for name in GENERATOR_FIELDS}
        return dataclasses.replace(self, **values)


@section
class HeadConfig:
    """The heads of a model: by default the heads of the objective, or the head of a task."""

    def with_parameters(self) -> "HeadConfig":
        """Returns the head without `embedding`, which has no parameters."""
        parts = tuple(part for part in self.parts if part != "embedding")
        return dataclasses.replace(self, parts=parts)

    parts: tuple[str, ...] = setting(
        ("pooler", "mlm", "nsp"), "Heads of the encoder; at most one classifier.", choices=PARTS
    )
    labels: tuple[str, ...] = setting(
        (), "Labels of a classifier, in the order of its outputs; one or none makes a regression."
    )
    pooling: Literal["mean", "cls", "max", "lasttoken"] = setting(
        "mean", "Pooling of the head `embedding`, which makes one vector per text."
    )
    # transformers modeling_electra.py, ElectraClassificationHead.
    pooler_act: Literal["tanh", "gelu", "gelu_new", "silu"] = setting(
        "tanh",
        "Activation of the pooler: `tanh` in BERT, `gelu` in the classifiers of ELECTRA. "
        "Fine-tuning takes it from the checkpoint.",
    )
    # transformers modeling_modernbert.py, ModernBertPredictionHead.
    transform: bool = setting(
        False,
        "Whether a classifier has the transform of the masked-LM head instead of the pooler, as in "
        "ModernBERT. Fine-tuning takes the setting and the parameters from the checkpoint.",
    )
