"""A complete run as one frozen value: the model, the data, the optimiser, the phases.

A config is checked as a whole before anything starts (`config_checks.py`), and stored as JSON
beside the run. How a config is named and changed is in `config_loader.py`. Nothing here imports a
heavy library.
"""

import dataclasses
import itertools
import json
import math
from collections.abc import Container
from dataclasses import dataclass, field
from typing import Any

from bert_jax.config_values import convert
from bert_jax.registry import (
    ATTENTION,
    MASKS,
    MIXERS,
    OBJECTIVES,
    OPTIMIZERS,
    POSITIONS,
    ROWS,
    SCHEDULES,
)


def setting(
    default: Any,
    *,
    least: float | None = None,
    most: float | None = None,
    above: float | None = None,
    below: float | None = None,
    choices: Container[str] | None = None,
) -> Any:
    """Declares a field with its default and what it may be (config_checks.py checks it)."""
    limits = {"least": least, "most": most, "above": above, "below": below, "choices": choices}
    return field(default=default, metadata={k: v for k, v in limits.items() if v is not None})


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The encoder. Field names and meanings are those of Hugging Face's `config.json`."""

    # Rows of the word embedding. At least as many as the corpus's tokenizer has.
    vocab_size: int = setting(30522, least=1)
    hidden_size: int = setting(768, least=1)
    num_hidden_layers: int = setting(12, least=1)
    num_attention_heads: int = setting(12, least=1)
    intermediate_size: int = setting(3072, least=1)
    # "gelu_new" is the tanh approximation of the original code (google-research/bert modeling.py);
    # "gelu" is the exact form, which Hugging Face's converted checkpoints declare.
    # "silu" is x sigmoid(x), which gated feed-forward parts often have (Shazeer 2020).
    hidden_act: str = setting("gelu_new", choices=("gelu", "gelu_new", "silu"))
    hidden_dropout_prob: float = setting(0.1, least=0, below=1)
    attention_probs_dropout_prob: float = setting(0.1, least=0, below=1)
    max_position_embeddings: int = setting(512, least=1)
    type_vocab_size: int = setting(2, least=1)
    # Standard deviation of the truncated normal (cut at two deviations) all matrices start from.
    initializer_range: float = setting(0.02, above=0)
    layer_norm_eps: float = setting(1e-12, above=0)
    # What tells the model the order of its tokens (registry.POSITIONS).
    position_embedding_type: str = setting("learned", choices=POSITIONS)
    # Width of the embedding tables; 0 is `hidden_size`. Where they differ, a linear map follows
    # the embeddings, and the masked-LM head ends in this width (Clark et al. 2020; ALBERT).
    embedding_size: int = setting(0, least=0)
    # The generator of replaced-token detection: its width and its depth as shares of those above,
    # and what it shares with the discriminator: "all" (tables and their norm), "embeddings" (the
    # tables) or "none".
    generator_size: float = setting(0.25, above=0)
    generator_layers: float = setting(1.0, above=0)
    embedding_sharing: str = setting("all", choices=("all", "embeddings", "none"))
    # Of rotary positions: pair i of K columns turns by rope_theta^(-2i / K) from token to token.
    rope_theta: float = setting(10_000.0, above=0)
    # Where each half of a block is normalised: "post" is its sum with the input, "pre" is what goes
    # into it, with one more norm behind the last block (Xiong et al. 2020).
    norm_placement: str = setting("post", choices=("post", "pre"))
    # "rmsnorm" does not subtract the mean and has no bias (Zhang & Sennrich 2019).
    norm: str = setting("layernorm", choices=("layernorm", "rmsnorm"))
    norm_bias: bool = True
    # Of the linear maps of the blocks and of the masked-LM head's transform; poolers and
    # classifiers have theirs.
    linear_bias: bool = True
    # "gated" multiplies the activated map by a second one that is not activated: three kernels
    # instead of two (Shazeer 2020, "GLU variants improve Transformer").
    feed_forward: str = setting("dense", choices=("dense", "gated"))
    # How the tokens of a sequence exchange what they know (registry.MIXERS).
    mixer: str = setting("attention", choices=MIXERS)
    # Positions that a token of a local layer sees, half of them on either side of it (transformers'
    # `local_attention`); 0 is all, in every layer.
    attention_window: int = setting(0, least=0)
    # With a window: the layers whose number, from 0, is a multiple of this are global; 0: none is.
    global_attention_every_n_layers: int = setting(0, least=0)
    # `rope_theta` of local layers; 0 is the same.
    local_rope_theta: float = setting(0.0, least=0)

    @property
    def table_size(self) -> int:
        """Returns the width of the embedding tables."""
        return self.embedding_size or self.hidden_size

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
            intermediate_size=4 * width,
            embedding_size=0 if self.table_size == width else self.table_size,
        )
        return generator.with_generator_of(ModelConfig())

    def with_generator_of(self, other: "ModelConfig") -> "ModelConfig":
        """Returns this encoder with the generator that `other` describes."""
        return dataclasses.replace(self, **{name: getattr(other, name) for name in GENERATOR})


# The fields of a model that only a generator reads.
GENERATOR = ("generator_size", "generator_layers", "embedding_sharing")


@dataclass(frozen=True, kw_only=True)
class HeadConfig:
    """The parts that stand on the encoder: the two pre-training heads, unless it is made for a
    task.
    """

    # Any of registry.PARTS; at most one of them is a classifier.
    parts: tuple[str, ...] = ("pooler", "mlm", "nsp")
    # Of a sequence or token classifier, in the order of its outputs. One or none: a regression.
    labels: tuple[str, ...] = ()
    # What follows the pooler's map: "tanh" as in BERT, or "gelu", the dense layer of ELECTRA's
    # classifiers (transformers modeling_electra.py, ElectraClassificationHead).
    pooler_act: str = setting("tanh", choices=("tanh", "gelu"))


@dataclass(frozen=True, kw_only=True)
class ComputeConfig:
    """How the step is computed. None of it changes what is computed, beyond rounding."""

    # Type of matrix products and activations: "bfloat16" or "float32". Master weights, softmax,
    # normalisation, loss and update are float32 always.
    dtype: str = setting("bfloat16", choices=("bfloat16", "float32"))
    # What the backward pass recomputes: "none", "full" (whole layers) or "dots" (keeps products).
    remat: str = setting("none", choices=("none", "full", "dots"))
    # "unroll" writes every layer out (fastest step), "scan" loops over all but the last.
    layers: str = setting("unroll", choices=("unroll", "scan"))
    # Sharded weights are gathered for use "per_step" (once, and kept for the backward pass) or
    # "per_layer" (again in the backward pass: fully sharded, less memory, more traffic).
    gather: str = setting("per_step", choices=("per_step", "per_layer"))
    # What computes attention (registry.ATTENTION): "fused" keeps one array of scores for the
    # backward pass, "plain" is the formula.
    attention: str = setting("fused", choices=ATTENTION)


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """How ids become masked sentence pairs (google-research/bert create_pretraining_data.py)."""

    # Share of documents whose examples aim at a random shorter length.
    short_seq_prob: float = setting(0.1, least=0, most=1)
    # Share of pairs whose second segment comes from another document.
    random_next_prob: float = setting(0.5, least=0, most=1)
    # Share of a row's tokens to predict, capped by the phase's `max_predictions`.
    masked_lm_prob: float = setting(0.15, least=0, most=1)
    # Of the predicted: replaced by [MASK], replaced by a random token; the rest stay as they are.
    mask_token_prob: float = setting(0.8, least=0, most=1)
    random_token_prob: float = setting(0.1, least=0, most=1)
    # Threads that make batches ahead of the step, and how many batches they may be ahead.
    num_workers: int = setting(2, least=1)
    prefetch: int = setting(4, least=1)
    # What of the corpus is compared with its manifest at every start: "full" reads all files and
    # compares their checksums, "sizes" only looks at their sizes.
    verify: str = setting("full", choices=("full", "sizes"))
    # How documents become rows (registry.ROWS), and which of their tokens are predicted
    # (registry.MASKS).
    rows: str = setting("sentence_pairs", choices=ROWS)
    mask: str = setting("tokens", choices=MASKS)
    # How sequences share the rows of training: "none" (each has one of its own) or "best_fit" (as
    # many as there is room for; data/pretraining/packing.py). Evaluation packs none.
    packing: str = setting("none", choices=("none", "best_fit"))


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """AdamW as BERT did it (google-research/bert optimization.py), unless `kind` says otherwise."""

    # The optimiser (registry.OPTIMIZERS) and what its learning rate does over the run
    # (registry.SCHEDULES). Another kind reads those of the fields below that it has.
    kind: str = setting("bert_adamw", choices=OPTIMIZERS)
    schedule: str = setting("bert_linear", choices=SCHEDULES)
    learning_rate: float = setting(1e-4, above=0)
    warmup_steps: int = 10_000
    # Steps at the end of the run in which the rate falls (warmup_stable_decay).
    decay_steps: int = setting(0, least=0)
    # What the rate falls to, as a share of `learning_rate` (all but bert_linear and
    # electra_linear), and how it falls (polynomial).
    min_lr_ratio: float = setting(0.0, least=0, most=1)
    power: float = setting(1.0, above=0)
    beta1: float = setting(0.9, least=0, below=1)
    beta2: float = setting(0.999, least=0, below=1)
    epsilon: float = setting(1e-6, above=0)
    # Share of the old momentum that Muon keeps.
    momentum: float = setting(0.95, least=0, below=1)
    # Decoupled decay of every parameter but biases and norms.
    weight_decay: float = setting(0.01, least=0)
    # The original has none; true gives Adam as its paper has it.
    bias_correction: bool = False
    # Global gradient norm above which the gradient is scaled down; 0 switches clipping off.
    clip_norm: float = setting(1.0, least=0)
    # With 1 or more: the embeddings and that many layers, from the first, stay as they are.
    frozen_layers: int = setting(0, least=0)
    # Microbatches a global batch is cut into, one after the other, to fit in memory. Same update.
    gradient_accumulation_steps: int = setting(1, least=1)
    # An update whose gradient norm is more than so many times the usual is left out; 0: none is.
    spike_factor: float = setting(0.0, least=0)
    # Updates that may be left out, not being finite or spikes; one more ends the run.
    max_skipped_updates: int = setting(100, least=0)
    # Weight of the squared log normaliser of the masked-LM logits; 1e-4 is usual, 0 is none.
    z_loss: float = setting(0.0, least=0)


@dataclass(frozen=True, kw_only=True)
class PhaseConfig:
    """A stretch of a run with one sequence length. Phases share schedule, moments and cursor."""

    sequence_length: int = 128
    steps: int = 900_000
    # Rows in one update, over all devices.
    global_batch_size: int = 256
    # Masked positions a row has room for; -1 is as many as the phase's mask rate asks for in a full
    # row, rounded up: 20 at length 128, as in the original recipe, and 77 at 512, which has 76.
    max_predictions: int = -1
    # Share of a row's tokens to predict in this phase; -1 is `data.masked_lm_prob`, at which every
    # phase is evaluated.
    masked_lm_prob: float = -1.0
    # Sequences that a packed row has room for (`data.packing`); -1 chooses one for each 64 tokens,
    # and 3 at least. Where rows are not packed, it stays -1.
    max_sequences: int = -1

    def mask_rate(self, masked_lm_prob: float) -> float:
        """Returns the phase's share of predicted tokens; `masked_lm_prob` is that of the data."""
        return masked_lm_prob if self.masked_lm_prob == -1 else self.masked_lm_prob

    def resolved(self, masked_lm_prob: float, *, packing: str = "none") -> "PhaseConfig":
        """Returns the phase with the numbers of positions and of sequences that -1 stands for;
        `masked_lm_prob` and `packing` are those of the data.
        """
        if packing != "none" and self.max_sequences == -1:
            automatic = max(3, self.sequence_length // 64)
            self = dataclasses.replace(self, max_sequences=automatic)
        if self.max_predictions != -1 or not 0 <= self.mask_rate(masked_lm_prob) <= 1:
            return self
        return dataclasses.replace(self, max_predictions=self.predictions_of(masked_lm_prob))

    @property
    def sequences(self) -> int:
        """The sequences that a row has room for."""
        return max(1, self.max_sequences)

    def predictions_of(self, masked_lm_prob: float) -> int:
        """Returns the positions that a row needs room for; `masked_lm_prob` is that of the data."""
        rate = self.mask_rate(masked_lm_prob)
        wanted, room = rate * self.sequence_length, self.sequence_length - 3
        if self.max_sequences != -1:
            # A sequence has max(1, round(share)), and 3 tokens at least.
            more = max(0.5, 1 - 3 * rate)
            wanted = max(wanted, math.floor(wanted + self.max_sequences * more + 1e-9))
        # 0.15 x 20 is 3, whatever binary fractions make of it.
        return max(1, min(room, math.ceil(wanted - 1e-9)))

    def unpacked(self, masked_lm_prob: float) -> "PhaseConfig":
        """Returns the phase with a row for each sequence: as they are masked, before they are
        packed, and as they are evaluated.
        """
        if self.max_sequences == -1:
            return self
        unpacked = dataclasses.replace(self, max_predictions=-1, max_sequences=-1)
        return unpacked.resolved(masked_lm_prob)


@dataclass(frozen=True, kw_only=True)
class MeshConfig:
    """How the devices are arranged and what they share (docs/parallelism.md)."""

    # Groups of devices joined by a slower network: the slices of a multi-slice TPU job.
    slices: int = setting(1, least=1)
    # Devices of a slice that share a batch; -1 takes what is left.
    fsdp: int = -1
    # Devices that share each matrix product.
    tensor: int = setting(1, least=1)
    # Whether `fsdp` also shares out master weights and moments, and the update of them; false
    # keeps a copy on each device.
    shard_weights: bool = True


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """Held-out evaluation: the same examples with the same masks every time."""

    # Steps between evaluations; 0 evaluates at the end only.
    every_steps: int = setting(10_000, least=0)
    num_examples: int = setting(4096, least=1)
    batch_size: int = setting(256, least=1)


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """When to save and what to keep. The last step is always saved."""

    every_steps: int = setting(1000, least=1)
    # Minutes between saves, instead of steps; 0: `every_steps` says. On a slice 1000 steps pass in
    # a minute, and a save is gigabytes.
    every_minutes: float = setting(0.0, least=0)
    keep_last: int = setting(3, least=1)
    # Steps divisible by this are kept for good; 0 keeps none beyond `keep_last`.
    keep_every: int = setting(0, least=0)
    # Saves in a row that may fail while training goes on; one more ends the run.
    max_failed_saves: int = setting(3, least=0)


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Everything a run depends on besides the corpus."""

    name: str = "unnamed"
    seed: int = 0
    # What is learned (registry.OBJECTIVES).
    objective: str = setting("mlm+nsp", choices=OBJECTIVES)
    model: ModelConfig = field(default_factory=ModelConfig)
    head: HeadConfig = field(default_factory=HeadConfig)
    compute: ComputeConfig = field(default_factory=ComputeConfig)
    data: DataConfig = field(default_factory=DataConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    phases: tuple[PhaseConfig, ...] = (PhaseConfig(),)
    mesh: MeshConfig = field(default_factory=MeshConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    # Steps between rows of metrics.jsonl.
    log_every_steps: int = setting(100, least=1)
    # Services that receive the rows, too (registry.TRACKERS).
    trackers: tuple[str, ...] = ()
    # What else happens between the steps (registry.HOOKS): a name, with options as in
    # "early_stopping:patience=3".
    hooks: tuple[str, ...] = ()
    # Longest that a process may go without progress; then it says where it hangs, and ends.
    deadline_seconds: float = setting(900.0, above=0)
    # The masked-LM output bias of a new run: "zeros", or "log_frequency": the log of each token's
    # share of the training split, so that the first loss is the corpus's unigram entropy.
    output_bias: str = setting("zeros", choices=("zeros", "log_frequency"))

    @property
    def total_steps(self) -> int:
        return sum(phase.steps for phase in self.phases)

    @property
    def phase_ends(self) -> tuple[int, ...]:
        """The last step of each phase."""
        return tuple(itertools.accumulate(phase.steps for phase in self.phases))


# --- JSON ----------------------------------------------------------------------------------------


def to_dict(config: Any) -> dict[str, Any]:
    """Returns the plain JSON-able form of any config dataclass; `from_dict` is its inverse."""
    return json.loads(json.dumps(dataclasses.asdict(config)))


def from_dict(values: dict[str, Any], cls: Any = TrainConfig, path: str = "") -> Any:
    """Builds `cls` from JSON values. Unknown keys and wrong types are `UsageError`s."""
    return convert(values, cls, path)


def flatten(config: Any) -> dict[str, Any]:
    """Returns `{"model.hidden_size": 768, "phases.0.steps": ...}`: one entry for each leaf.

    `config` is a dataclass, or a value as JSON has it.
    """

    def walk(value, path):
        if isinstance(value, dict):
            for key, child in value.items():
                yield from walk(child, f"{path}.{key}" if path else key)
        elif isinstance(value, list):
            for i, child in enumerate(value):
                yield from walk(child, f"{path}.{i}")
        else:
            yield path, value

    return dict(walk(to_dict(config) if dataclasses.is_dataclass(config) else config, ""))
