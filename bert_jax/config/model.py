"""Sections of a config: the encoder, and what stands on it."""

import dataclasses

from bert_jax.config.fields import (
    HEAD,
    RECIPE,
    SHAPE,
    Rule,
    WithOptions,
    fields_read_by,
    section,
    setting,
)
from bert_jax.registry import MIXERS, PARTS, POSITIONS, SCORES

# fmt: off
# The facts of a field stand side by side.


_GENERATOR = ("head.parts", "generator")
_DROPOUT_SITES = ("embeddings", "attention", "feed_forward", "classifier")


@section
class ModelConfig(WithOptions):
    """The encoder. Field names and meanings are those of Hugging Face's `config.json`."""

    vocab_size: int = setting(
        30522, SHAPE, "Rows of the word embedding; at least the ids of the tokenizer.",
        least=1, called=("vocab", "n_vocab"), in_every_bert=True,
    )
    hidden_size: int = setting(
        768, SHAPE, "Width of the encoder; a multiple of `model.num_attention_heads`.",
        least=1, called=("hidden", "width", "dim", "d_model", "hidden_dim", "n_embd"),
        in_every_bert=True,
    )
    num_hidden_layers: int = setting(
        12, SHAPE, "Blocks.",
        least=1, called=("layers", "num_layers", "n_layers", "n_layer", "depth"),
        in_every_bert=True,
    )
    num_attention_heads: int = setting(
        12, SHAPE, "Heads of each block.",
        least=1, called=("heads", "num_heads", "n_heads", "n_head"), in_every_bert=True,
    )
    # Ainslie et al. 2023.
    num_key_value_heads: int = setting(
        0, SHAPE,
        "Heads of keys and values, of which each serves as many neighbouring heads of queries; a "
        "divisor of `model.num_attention_heads`. 0: as many as those.",
        least=0, called=("kv_heads", "num_kv_heads", "n_kv_heads"),
    )
    intermediate_size: int = setting(
        3072, SHAPE, "Width between the two maps of the feed-forward part.",
        least=1, called=("ffn", "ffn_dim", "d_ff", "mlp_dim", "feed_forward_size"),
        in_every_bert=True,
    )
    hidden_act: str = setting(
        "gelu_new", SHAPE,
        "`gelu_new` is the tanh approximation of the original code, `gelu` the exact form, `silu` "
        "x sigmoid(x).",
        choices=("gelu", "gelu_new", "silu"), called=("activation", "act"), in_every_bert=True,
    )
    hidden_dropout_prob: float = setting(
        0.1, RECIPE, "Dropout of the embeddings and of each sub-layer's output; below 1.",
        least=0, below=1, called=("dropout", "hidden_dropout", "dropout_rate"),
        in_every_bert=True,
    )
    hidden_dropout_sites: tuple[str, ...] = setting(
        _DROPOUT_SITES, RECIPE,
        "Where `model.hidden_dropout_prob` acts: behind the `embeddings`, the `attention` and the "
        "`feed_forward` of each block, and before `classifier`s. ModernBERT has it behind the "
        "attention alone.",
        choices=_DROPOUT_SITES,
    )
    attention_probs_dropout_prob: float = setting(
        0.1, RECIPE, "Dropout of the attention weights; below 1.",
        least=0, below=1, called=("attention_dropout", "attn_dropout"), in_every_bert=True,
    )
    max_position_embeddings: int = setting(
        512, SHAPE,
        "The longest sequence there can be: the rows of the table, or where a kind of position has "
        "none a limit that costs nothing.",
        least=1, called=("max_positions", "n_positions"), in_every_bert=True,
    )
    type_vocab_size: int = setting(
        2, SHAPE, "Rows of the segment table; rows of two segments need 2. 0: there is none.",
        least=0, in_every_bert=True,
    )
    initializer_range: float = setting(
        0.02, Rule("refused", "judged"),
        "Standard deviation of the initial matrices, normal and cut at two deviations.", above=0,
        in_every_bert=True,
    )
    # Shoeybi et al. 2019; ModernBERT's "full_megatron".
    scale_output_init: bool = setting(
        False, Rule("refused", "judged"),
        "Whether the output maps of attention and feed-forward begin smaller, by the square root "
        "of twice `model.num_hidden_layers`.",
    )
    layer_norm_eps: float = setting(
        1e-12, SHAPE, "Added to the variance in every normalisation.", above=0,
        in_every_bert=True,
    )
    position_embedding_type: str = setting(
        "learned", SHAPE,
        "What tells the model the order of its tokens: `learned` is a vector for each position "
        "([the others](lineage.md#positions-and-blocks)).",
        choices=POSITIONS, called=("positions", "position", "pos_emb"),
    )
    # Clark et al. 2020; ALBERT.
    embedding_size: int = setting(
        0, SHAPE,
        "Width of the embedding tables; 0: that of the encoder. A linear map leads from one to the "
        "other.",
        least=0,
    )
    generator_size: float = setting(
        0.25, SHAPE,
        "Width of the generator of `rtd`, as a share of the encoder's. It has a head for each 64, "
        "and an inner width of four times its own.",
        above=0, read_by=_GENERATOR,
    )
    generator_layers: float = setting(
        1.0, SHAPE, "Its blocks, as a share of the encoder's.",
        above=0, read_by=_GENERATOR,
    )
    embedding_sharing: str = setting(
        "all", SHAPE,
        "What it shares with the encoder: `all` (the tables and their normalisation), `embeddings` "
        "(the tables) or `none`.",
        choices=("all", "embeddings", "none"),
        read_by=_GENERATOR,
    )
    rope_theta: float = setting(
        10_000.0, SHAPE,
        "Of `rotary` and `rotary_interleaved`: pair i of K columns turns by `rope_theta`^(-2i / K) "
        "from token to token.",
        above=0, read_by=("position_embedding_type",), by_phase=True,
    )
    # Xiong et al. 2020.
    norm_placement: str = setting(
        "post", SHAPE,
        "`post` normalises each sum, as BERT does; `pre` what goes into each half of a block, and "
        "the output of the last one.",
        choices=("post", "pre"),
    )
    first_norm: bool = setting(
        True, SHAPE,
        "Whether the first block normalises what goes into its attention; ModernBERT, whose "
        "embeddings are normalised, leaves that out.",
        read_by=("norm_placement", "pre"),
    )
    embedding_norm: bool = setting(
        True, SHAPE, "Whether the sum of the embeddings is normalised.",
    )
    # Zhang & Sennrich 2019.
    norm: str = setting(
        "layernorm", SHAPE, "`layernorm`, or `rmsnorm`: without mean and bias.",
        choices=("layernorm", "rmsnorm"),
    )
    norm_bias: bool = setting(
        True, SHAPE, "Whether each LayerNorm has a bias beside its scale.",
        read_by=("norm", "layernorm"),
    )
    # Poolers and classifiers have theirs.
    linear_bias: bool = setting(
        True, SHAPE,
        "Whether the linear maps of the blocks, and the transform of the masked-LM head, have a "
        "bias.",
    )
    # Shazeer 2020, "GLU variants improve Transformer".
    feed_forward: str = setting(
        "dense", SHAPE,
        "`gated` multiplies the activated map by a second one: three kernels of "
        "`model.intermediate_size` instead of two.",
        choices=("dense", "gated"),
    )
    mixer: str = setting(
        "attention", SHAPE,
        "How the tokens of a sequence exchange what they know "
        "([one of your own](extend.md#a-mixer)).",
        choices=MIXERS,
    )
    attention_score: str = setting(
        "scaled_dot_product", SHAPE,
        "How well a key k answers a query q: `scaled_dot_product` is q k / sqrt(K), where K is the "
        "size of a head, `dot_product` q k, `general` q W k and `additive` v tanh(W q + U k), with "
        "W, U and v of each head.",
        choices=SCORES, called=("score", "scoring_function"), read_by=("mixer",),
    )
    # transformers' `local_attention`.
    attention_window: int = setting(
        0, SHAPE,
        "Positions that a token of a local layer sees, half of them on either side of it; 0: all, "
        "in every layer.",
        least=0, called=("local_attention", "window", "sliding_window"),
    )
    global_attention_every_n_layers: int = setting(
        0, SHAPE,
        "With a window: layers 0, n, 2n, ... see all of their sequence, as in ModernBERT (3); 0: "
        "none does.",
        least=0,
    )
    first_global_layer: int = setting(
        0, SHAPE,
        "The first of the layers that see all: they are f, f + n, f + 2n, ...; UltraBERT has 2.",
        least=0,
    )
    local_rope_theta: float = setting(
        0.0, SHAPE, "`model.rope_theta` of local layers; 0: the same.",
        least=0, read_by=("position_embedding_type",), by_phase=True,
    )
    # Fine-tuning may choose it; what is pre-trained only keeps it for that.
    classifier_pooling: str = setting(
        "cls", Rule("refused", "judged"),
        "What a classifier of texts reads: `cls`, the first token (BERT); `mean`, the mean of all "
        "(ModernBERT, as it is published); `late`, their mean behind the pooler's map (EuroBERT).",
        choices=("cls", "mean", "late"), called=("pooling",),
    )
    masked_lm_transform: bool = setting(
        True, SHAPE,
        "Whether a map, the activation and a norm stand in the masked-LM head before the output "
        "over the vocabulary.",
    )
    # transformers modeling_ultrabert.py, UltrabertPredictionHead.
    masked_lm_inner_size: int = setting(
        0, SHAPE,
        "Width between two maps, each activated, that stand there in place of the map and its "
        "norm; 0: one map and the norm.",
        least=0,
    )
    masked_lm_act: str = setting(
        "hidden_act", SHAPE, "The activation there; `hidden_act` is that of the blocks.",
        choices=("hidden_act", "gelu", "gelu_new", "silu"),
    )
    decoder_bias: bool = setting(
        True, SHAPE, "Whether the masked-LM head has a bias for each word.",
    )
    tie_word_embeddings: bool = setting(
        True, SHAPE,
        "Whether the masked-LM head multiplies with the word embedding; it has a matrix of its own "
        "else.",
        called=("tied_embeddings", "tie_embeddings", "weight_tying"),
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
        """Returns the deviation with which the output maps of the blocks begin."""
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
        """Returns this encoder with the generator that `other` describes."""
        values = {name: getattr(other, name) for name in fields_read_by("head.parts", ModelConfig)}
        return dataclasses.replace(self, **values)


@section
class HeadConfig:
    """The parts that stand on the encoder: the two pre-training heads, unless it is made for a
    task.
    """

    parts: tuple[str, ...] = setting(
        ("pooler", "mlm", "nsp"), HEAD,
        "Parts beside the encoder; at most one is a classifier.", choices=PARTS,
    )
    labels: tuple[str, ...] = setting(
        (), HEAD,
        "The labels of a sequence or token classifier, in the order of its outputs. One or none: a "
        "regression.",
    )
    # transformers modeling_electra.py, ElectraClassificationHead.
    pooler_act: str = setting(
        "tanh", HEAD,
        "What follows the pooler's map: `tanh` as in BERT, `gelu` as in ELECTRA's classifiers, or "
        "another one as in those of RoFormer, which have that of the blocks. Fine-tuning chooses "
        "it by the checkpoint.",
        choices=("tanh", "gelu", "gelu_new", "silu"),
    )
    # transformers modeling_modernbert.py, ModernBertPredictionHead.
    transform: bool = setting(
        False, HEAD,
        "Whether the map, activation and norm of a masked-LM head stand before a classifier, and "
        "for the pooler, as in ModernBERT. Fine-tuning chooses it by the checkpoint, and begins "
        "with those of its masked-LM head.",
    )
