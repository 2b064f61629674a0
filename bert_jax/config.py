"""A complete run as one frozen value: the model, the data, the optimiser, the phases.

A config is checked as a whole before anything starts, and stored as JSON beside the run. How a
command line names and changes one is in `resolve.py`. Nothing here imports a heavy library.
"""

import dataclasses
import difflib
import json
import math
import types
import typing
from dataclasses import dataclass, field
from typing import Any

from bert_jax.errors import UsageError, brief


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The encoder. Field names and meanings are those of Hugging Face's `config.json`."""

    # Rows of the word embedding. At least as many as the corpus's tokenizer has.
    vocab_size: int = 30522
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    # "gelu_new" is the tanh approximation of the original code (google-research/bert modeling.py);
    # "gelu" is the exact form, which Hugging Face's converted checkpoints declare.
    hidden_act: str = "gelu_new"
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    # Standard deviation of the truncated normal (cut at two deviations) all matrices start from.
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-12


@dataclass(frozen=True, kw_only=True)
class HeadConfig:
    """What stands on the encoder: the two pre-training heads, unless it is made for a task."""

    # Any of PARTS; at most one of them is a classifier.
    parts: tuple[str, ...] = ("pooler", "mlm", "nsp")
    # Of a sequence or token classifier, in the order of its outputs. One or none: a regression.
    labels: tuple[str, ...] = ()


_CLASSIFIERS = ("sequence_classifier", "token_classifier", "span_classifier")
PARTS = ("pooler", "mlm", "nsp", *_CLASSIFIERS)


@dataclass(frozen=True, kw_only=True)
class ComputeConfig:
    """How the step is computed. None of it changes what is computed, beyond rounding."""

    # Type of matrix products and activations: "bfloat16" or "float32". Master weights, softmax,
    # normalisation, loss and update are float32 always.
    dtype: str = "bfloat16"
    # What the backward pass recomputes: "none", "full" (whole layers) or "dots" (keeps products).
    remat: str = "none"
    # "unroll" writes every layer out (fastest step), "scan" loops over all but the last.
    layers: str = "unroll"
    # Sharded weights are gathered for use "per_step" (once, and kept for the backward pass) or
    # "per_layer" (again in the backward pass: fully sharded, less memory, more traffic).
    gather: str = "per_step"


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """How ids become masked sentence pairs (google-research/bert create_pretraining_data.py)."""

    # Share of documents whose examples aim at a random shorter length.
    short_seq_prob: float = 0.1
    # Share of pairs whose second segment comes from another document.
    random_next_prob: float = 0.5
    # Share of a row's tokens to predict, capped by the phase's `max_predictions`.
    masked_lm_prob: float = 0.15
    # Of the predicted: replaced by [MASK], replaced by a random token; the rest stay as they are.
    mask_token_prob: float = 0.8
    random_token_prob: float = 0.1
    # Threads that make batches ahead of the step, and how many batches they may be ahead.
    num_workers: int = 2
    prefetch: int = 4
    # What of the corpus is compared with its manifest at every start: "full" reads all files and
    # compares their checksums, "sizes" only looks at their sizes.
    verify: str = "full"


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """AdamW as BERT did it (google-research/bert optimization.py)."""

    learning_rate: float = 1e-4
    warmup_steps: int = 10_000
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-6
    # Decoupled decay of every parameter but biases and norms.
    weight_decay: float = 0.01
    # The original has none; true gives Adam as its paper has it.
    bias_correction: bool = False
    # Global gradient norm above which the gradient is scaled down; 0 switches clipping off.
    clip_norm: float = 1.0
    # Slices a global batch is cut into, one after the other, to fit in memory. Same update.
    gradient_accumulation_steps: int = 1
    # An update whose gradient norm is more than so many times the usual is left out; 0: none is.
    spike_factor: float = 0.0
    # Updates that may be left out, not being finite or spikes; one more ends the run.
    max_skipped_updates: int = 100


@dataclass(frozen=True, kw_only=True)
class PhaseConfig:
    """A stretch of a run with one sequence length. Phases share schedule, moments and cursor."""

    sequence_length: int = 128
    steps: int = 900_000
    # Rows in one update, over all devices.
    global_batch_size: int = 256
    # Masked positions a row has room for: 20 at length 128 and 76 at 512 in the original recipe.
    max_predictions: int = 20


@dataclass(frozen=True, kw_only=True)
class MeshConfig:
    """How the devices are arranged and what they share (docs/parallelism.md)."""

    # Groups of devices joined by a slower network: the slices of a multi-slice TPU job.
    slices: int = 1
    # Devices of a slice that share a batch; -1 takes what is left.
    fsdp: int = -1
    # Devices that share each matrix product.
    tensor: int = 1
    # Whether `fsdp` also shares out master weights and moments, and the update of them; false
    # keeps a copy on each device.
    shard_weights: bool = True


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """Held-out evaluation: the same examples with the same masks every time."""

    # Steps between evaluations; 0 evaluates at the end only.
    every_steps: int = 10_000
    num_examples: int = 4096
    batch_size: int = 256


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """When to save and what to keep. The last step is always saved."""

    every_steps: int = 1000
    keep_last: int = 3
    # Steps divisible by this are kept for good; 0 keeps none beyond `keep_last`.
    keep_every: int = 0
    # Saves in a row that may fail while training goes on; one more ends the run.
    max_failed_saves: int = 3


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Everything a run depends on besides the corpus."""

    name: str = "unnamed"
    seed: int = 0
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
    log_every_steps: int = 100
    # Longest that a process may go without progress; then it says where it hangs, and ends.
    deadline_seconds: float = 900.0

    @property
    def total_steps(self) -> int:
        return sum(phase.steps for phase in self.phases)


# --- checking ------------------------------------------------------------------------------------


def validate(config: TrainConfig) -> TrainConfig:
    """Returns `config`, or raises a `UsageError` that names the first impossible field."""
    for path, problem in _problems(config):
        raise UsageError(f"config {config.name!r}: {path} {problem}")
    return config


# Ends of dotted fields.
_AT_LEAST_1 = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "max_position_embeddings", "data.num_workers", "data.prefetch", "gradient_accumulation_steps",
    "evaluation.num_examples", "evaluation.batch_size", "checkpoint.every_steps",
    "checkpoint.keep_last", "log_every_steps", "mesh.slices", "mesh.tensor",
)  # fmt: skip
_AT_LEAST_0 = (
    "max_skipped_updates", "evaluation.every_steps", "keep_every", "max_failed_saves",
)  # fmt: skip


def _problems(config: TrainConfig):
    model, data, optimizer = config.model, config.data, config.optimizer
    for path, value in flatten(config).items():
        if isinstance(value, float) and not math.isfinite(value):
            yield path, f"is {value}; it must be finite"
        if path.endswith("_prob") and not 0 <= value <= 1:
            yield path, f"is {value}; a probability lies between 0 and 1"
        if isinstance(value, str) and any("\ud800" <= c <= "\udfff" for c in value):
            yield path, f"is {brief(value)}, which has half a surrogate pair: it cannot be written"
        for ends, least in ((_AT_LEAST_1, 1), (_AT_LEAST_0, 0)):
            if path.endswith(ends) and isinstance(value, int) and value < least:
                yield path, f"is {value}; it must be at least {least}"
    if model.hidden_size % model.num_attention_heads:
        yield (
            "model.num_attention_heads",
            f"is {model.num_attention_heads}, which does not divide hidden_size "
            f"{model.hidden_size}",
        )
    if model.type_vocab_size < 2:
        yield "model.type_vocab_size", "is 1; sentence pairs need 2 segments"
    for path, value, allowed in (
        ("model.hidden_act", model.hidden_act, ("gelu", "gelu_new")),
        ("compute.dtype", config.compute.dtype, ("bfloat16", "float32")),
        ("compute.remat", config.compute.remat, ("none", "full", "dots")),
        ("compute.layers", config.compute.layers, ("unroll", "scan")),
        ("compute.gather", config.compute.gather, ("per_step", "per_layer")),
        ("data.verify", data.verify, ("full", "sizes")),
    ):
        if value not in allowed:
            yield path, f"is {value!r}; choose one of {', '.join(allowed)}"
    yield from _head_problems(config.head)
    for name in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
        if getattr(model, name) >= 1:
            yield f"model.{name}", "is 1; nothing would be left"
    if data.mask_token_prob + data.random_token_prob > 1 + 1e-9:
        yield "data.random_token_prob", "and data.mask_token_prob together exceed 1"
    for name in ("beta1", "beta2"):
        if not 0 <= getattr(optimizer, name) < 1:
            yield f"optimizer.{name}", f"is {getattr(optimizer, name)}; it lies in [0, 1)"
    if 0 < optimizer.spike_factor <= 1:
        yield "optimizer.spike_factor", f"is {optimizer.spike_factor}; 0 or more than 1"
    for name in ("clip_norm", "weight_decay", "spike_factor"):
        if getattr(optimizer, name) < 0:
            yield f"optimizer.{name}", f"is {getattr(optimizer, name)}; 0 switches it off"
    for path, value in (
        ("optimizer.learning_rate", optimizer.learning_rate),
        ("optimizer.epsilon", optimizer.epsilon),
        ("model.layer_norm_eps", model.layer_norm_eps),
        ("model.initializer_range", model.initializer_range),
        ("deadline_seconds", config.deadline_seconds),
    ):
        if value <= 0:
            yield path, f"is {value}; it must be positive"
    if not config.phases:
        yield "phases", "is empty; a run needs at least one phase"
    for i, phase in enumerate(config.phases):
        yield from ((f"phases.{i}.{name}", text) for name, text in _phase_problems(phase, config))
    if not 0 <= optimizer.warmup_steps < max(config.total_steps, 1):
        yield (
            "optimizer.warmup_steps",
            f"is {optimizer.warmup_steps}, but the run has {config.total_steps} steps: "
            "the learning rate would never come down",
        )
    for name, size in (
        ("num_attention_heads", model.num_attention_heads),
        ("intermediate_size", model.intermediate_size),
    ):
        if size % max(config.mesh.tensor, 1):
            yield "mesh.tensor", f"is {config.mesh.tensor}, which does not divide {name} {size}"
    if config.mesh.fsdp != -1 and config.mesh.fsdp < 1:
        yield "mesh.fsdp", "must be -1 (all devices) or at least 1"


def _head_problems(head: HeadConfig):
    for part in head.parts:
        if part not in PARTS:
            yield "head.parts", f"has {part!r}; choose from {', '.join(PARTS)}"
    if len(set(head.parts) & set(_CLASSIFIERS)) > 1 or len(set(head.parts)) < len(head.parts):
        yield "head.parts", f"is {', '.join(head.parts)}; each once, and one classifier at most"
    if {"nsp", "sequence_classifier"} & set(head.parts) and "pooler" not in head.parts:
        yield "head.parts", f"is {', '.join(head.parts)}; these stand on the pooler, too"
    if len(set(head.labels)) < len(head.labels):
        yield "head.labels", f"is {', '.join(head.labels)}; each label once"


def _phase_problems(phase: PhaseConfig, config: TrainConfig):
    if phase.steps < 1:
        yield "steps", f"is {phase.steps}; it must be at least 1"
    if phase.global_batch_size < 1:
        yield "global_batch_size", f"is {phase.global_batch_size}; it must be at least 1"
    if phase.sequence_length < 8:
        yield "sequence_length", f"is {phase.sequence_length}; a pair of segments needs at least 8"
    if phase.sequence_length > config.model.max_position_embeddings:
        yield (
            "sequence_length",
            f"is {phase.sequence_length}, longer than the position table "
            f"(model.max_position_embeddings = {config.model.max_position_embeddings}); "
            "shorten the sequence or enlarge the table",
        )
    if not 1 <= phase.max_predictions <= phase.sequence_length - 3:
        yield (
            "max_predictions",
            f"is {phase.max_predictions}; a row of {phase.sequence_length} has "
            f"{phase.sequence_length - 3} tokens to choose from (three are [CLS] and [SEP]); "
            f"the usual value is {round(phase.sequence_length * config.data.masked_lm_prob)}",
        )
    slices = config.optimizer.gradient_accumulation_steps
    if phase.global_batch_size % slices:
        yield (
            "global_batch_size",
            f"is {phase.global_batch_size}, which gradient_accumulation_steps = {slices} "
            "does not divide",
        )


# --- JSON ----------------------------------------------------------------------------------------


def to_dict(config: Any) -> dict[str, Any]:
    """Plain JSON-able form of any config dataclass; `from_dict` is its inverse."""
    return json.loads(json.dumps(dataclasses.asdict(config)))


def from_dict(values: dict[str, Any], cls: Any = TrainConfig, path: str = "") -> Any:
    """Builds `cls` from JSON values. Unknown keys and wrong types are `UsageError`s."""
    return _convert(values, cls, path)


def flatten(config: Any) -> dict[str, Any]:
    """`{"model.hidden_size": 768, "phases.0.steps": ...}`: one entry for each leaf."""

    def walk(value, path):
        if isinstance(value, dict):
            for key, child in value.items():
                yield from walk(child, f"{path}.{key}" if path else key)
        elif isinstance(value, list):
            for i, child in enumerate(value):
                yield from walk(child, f"{path}.{i}")
        else:
            yield path, value

    return dict(walk(to_dict(config), ""))


def _convert(value: Any, annotation: Any, path: str) -> Any:
    """`value`, as read from JSON, as an instance of `annotation`."""
    where = path or "the config"
    if dataclasses.is_dataclass(annotation) and isinstance(annotation, type):
        if not isinstance(value, dict):
            raise UsageError(f"{where}: expected a section of fields, got {brief(value)}")
        hints = typing.get_type_hints(annotation)
        for key in value:
            if key not in hints:
                raise UsageError(
                    f"{_join(path, brief(key)[1:-1])}: no such field.{nearest(key, hints)}"
                )
        return annotation(**{k: _convert(v, hints[k], _join(path, k)) for k, v in value.items()})
    if typing.get_origin(annotation) is tuple:
        if not isinstance(value, list | tuple):
            raise UsageError(f"{where}: expected a list, got {brief(value)}")
        (item,) = [a for a in typing.get_args(annotation) if a is not Ellipsis]
        return tuple(_convert(v, item, _join(path, str(i))) for i, v in enumerate(value))
    if isinstance(annotation, types.UnionType):
        if value is None and type(None) in typing.get_args(annotation):
            return None
        (annotation,) = [a for a in typing.get_args(annotation) if a is not type(None)]
    if annotation is int and isinstance(value, float) and value.is_integer():
        value = int(value)  # 1e6 is how people write a million
    if isinstance(value, int) and abs(value) >= 2**63:
        raise UsageError(f"{where}: {brief(value)} does not fit in 64 bits")
    if annotation is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if type(value) is not annotation:
        name = getattr(annotation, "__name__", annotation)
        raise UsageError(f"{where}: expected {name}, got {brief(value)}")
    return value


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def nearest(key: str, names) -> str:
    """What to say after an unknown `key`: the name it resembles, or all there are."""
    close = difflib.get_close_matches(key, list(names), n=1, cutoff=0.5)
    if close:
        return f" Did you mean {close[0]!r}?"
    return f" Fields here: {', '.join(names)}."
