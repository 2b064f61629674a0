"""Checks a config as a whole: each message starts with the path of the option."""

import dataclasses
from collections.abc import Collection, Iterator
from typing import Any

from bert_jax.config import (
    DataConfig,
    EmbeddingConfig,
    HeadConfig,
    ModelConfig,
    PhaseConfig,
    TrainConfig,
    from_dict,
    source_shares,
    to_dict,
)
from bert_jax.config.conversion import unknown_names
from bert_jax.config.fields import fields_of
from bert_jax.config.model import GENERATOR_FIELDS
from bert_jax.errors import UsageError
from bert_jax.registry import ATTENTION, OBJECTIVES, PARTS, POSITIONS, SEQUENCE_FORMATS

# The path of an option, and the problem of its value.
Problems = Iterator[tuple[str, str]]
_CLASSIFIERS = {"sequence_classifier", "token_classifier", "span_classifier"}
_ROTARY = ("rotary", "rotary_interleaved")
# Options that only have an effect with some values of another option of their section: Hugging
# Face's flat names of a model, and two of rows. An empty list means any value except 0 and false.
_NEEDS = (
    ("rope_theta", "position_embedding_type", _ROTARY),
    ("local_rope_theta", "position_embedding_type", _ROTARY),
    ("local_rope_theta", "attention_window", ()),
    ("global_attention_every_n_layers", "attention_window", ()),
    ("first_global_layer", "global_attention_every_n_layers", ()),
    ("masked_lm_inner_size", "masked_lm_transform", ()),
    ("first_norm", "norm_placement", ("pre",)),
    ("norm_bias", "norm", ("layernorm",)),
    ("short_seq_prob", "sequence_format", ("sentence_pairs",)),
    ("random_next_prob", "sequence_format", ("sentence_pairs",)),
)


def complete(config: TrainConfig) -> TrainConfig:
    """Returns the config with derived values: the head of its objective, if the config has the
    default head, and the number of masked positions of each phase.
    """
    rate, packing, head = config.data.masked_lm_prob, config.data.packing, config.head
    phases = tuple(phase.resolved(rate, packing=packing) for phase in config.phases)
    is_default = config.objective == TrainConfig.objective  # its head is the default
    if not is_default and head == HeadConfig() and config.objective in OBJECTIVES:
        head = HeadConfig(parts=OBJECTIVES[config.objective].parts)
    return dataclasses.replace(config, phases=phases, head=head)


def validate(config: TrainConfig) -> TrainConfig:
    """Returns `config`, or raises a `UsageError` that names the first invalid option."""
    try:
        from_dict(to_dict(config), TrainConfig)
    except UsageError as error:
        raise UsageError(f"config {config.name!r}: {error}") from error
    for path, problem in _problems(config):
        raise UsageError(f"config {config.name!r}: {path} {problem}")
    return config


def validate_model(model: ModelConfig, head: HeadConfig) -> ModelConfig:
    """Returns a model without a run, or raises a `UsageError`."""
    config = TrainConfig(model=model, head=head)
    from_dict(to_dict(config), TrainConfig)
    for path, problem in (*unknown_names(config), *_model_problems(model), *_head_problems(head)):
        raise UsageError(f"{path} {problem}")
    return model


def require_registered(config: TrainConfig) -> None:
    """Raises `UsageError` if the model has an entry of a file that was not loaded.

    Unknown optimizers, schedules and hooks are accepted, because inference does not use them.
    """
    unknown = [*unknown_names(config)]
    if any(path.startswith(("model.", "compute.", "head.")) for path, _ in unknown):
        path, problem = unknown[0]
        raise UsageError(f"config {config.name!r}: {path} {problem}")


def mask_warnings(config: TrainConfig) -> Iterator[str]:
    """Yields a warning for each phase that truncates a tenth or more of the predictions of full
    rows.
    """
    if not {"mlm", "generator"} & set(config.head.parts):
        return
    for i, phase in enumerate(config.phases):
        rate, room = phase.mask_rate(config.data.masked_lm_prob), phase.max_predictions
        length = phase.sequence_length
        field = "data" if phase.masked_lm_prob == -1 else f"phases.{i}"
        if 0 < room < min(0.9 * rate * length, length - 3):
            enough = dataclasses.replace(phase, max_predictions=-1).resolved(rate).max_predictions
            yield (
                f"warning: phases.{i}.max_predictions is {room}: a full row of {length} has "
                f"{100 * room / length:.1f} % of its tokens predicted, not {100 * rate:.3g} % "
                f"({field}.masked_lm_prob); set phases.{i}.max_predictions={enough}"
            )


def _problems(config: TrainConfig) -> Problems:
    model, data, optimizer = config.model, config.data, config.optimizer
    yield from unknown_names(config)
    yield from _model_problems(model)
    yield from _head_problems(config.head)
    yield from _generator_problems(config)
    if data.mask_token_prob + data.random_token_prob > 1 + 1e-9:
        yield "data.random_token_prob", "and data.mask_token_prob together exceed 1"
    yield from _prefixed("data.", source_shares.problems(data))
    frozen, layers = optimizer.frozen_layers, model.num_hidden_layers
    if frozen > layers:
        yield "optimizer.frozen_layers", f"is {frozen}, but the model has {layers} layers"
    if 0 < optimizer.spike_factor <= 1:
        yield "optimizer.spike_factor", f"is {optimizer.spike_factor}; must be 0 or more than 1"
    yield from _objective_problems(config)
    yield from _embedding_problems(config)
    if not config.phases:
        yield "phases", "is empty; a run needs at least one phase"
    for i, phase in enumerate(config.phases):
        yield from _prefixed(f"phases.{i}.", _phase_problems(phase, config.in_phase(i), i == 0))
        if i == 0 or phase.starts_schedule:
            yield from _schedule_problems(config, i)
    yield from _layout_problems(config)


def _prefixed(prefix: str, problems: Problems) -> Problems:
    yield from ((f"{prefix}{name}", text) for name, text in problems)


def _layout_problems(config: TrainConfig) -> Problems:
    """Checks the options that map the model to devices."""
    model, name, tensor = config.model, config.compute.attention, config.mesh.tensor
    # The entry imports its kernel: it is used only if it may have a problem.
    if ATTENTION.is_builtin(name) and name not in ("auto", "fused"):
        for text in ATTENTION[name].problems(config):
            yield "compute.attention", f"is {name}, which {text}"
    for field in ("num_attention_heads", "num_key_value_heads", "intermediate_size"):
        if (size := getattr(model, field)) % tensor:
            yield "mesh.tensor", f"is {tensor}, which does not divide {field} {size}"
    if config.mesh.fsdp != -1 and config.mesh.fsdp < 1:
        yield "mesh.fsdp", "must be -1 (all devices) or at least 1"


def _schedule_problems(config: TrainConfig, number: int) -> Problems:
    """Checks the schedule that starts with a phase."""
    steps, optimizer = len(config.schedule_span(number)), config.in_phase(number).optimizer
    prefix, warmup = f"phases.{number}." if number else "optimizer.", optimizer.warmup_steps
    if not 0 <= warmup < max(steps, 1):
        remedy = f"set {prefix}warmup_steps={steps // 10} (a tenth of the steps)"
        yield f"{prefix}warmup_steps", f"is {warmup}, but the schedule has {steps} steps; {remedy}"
    yield from _prefixed(prefix, optimizer.schedule.problems(optimizer, steps))


def _phase_problems(phase: PhaseConfig, config: TrainConfig, is_first: bool) -> Problems:
    """Checks a phase; `config` has the overrides of the phases up to this one."""
    length, rate = phase.sequence_length, config.data.masked_lm_prob
    if is_first:
        for path in phase.overrides:
            name = path.rpartition(".")[2]
            yield name, f"is an override in the first phase; set {path} instead"
    if phase.source_weights is not None:
        yield from source_shares.problems(config.data)
    yield from _without_effect(config.model, [p.rpartition(".")[2] for p in phase.overrides])
    if length > (longest := config.model.max_position_embeddings):
        kind = config.model.position_embedding_type
        has_table = kind not in POSITIONS or POSITIONS[kind].has_table()
        limit = "the position table" if has_table else "the model allows"
        problem = f"is {length}, longer than {limit} (model.max_position_embeddings = {longest})"
        yield "sequence_length", f"{problem}; shorten the sequence or raise the limit"
    if phase.masked_lm_prob != -1 and not 0 < phase.masked_lm_prob <= 1:
        problem = "must be above 0 and at most 1, or -1 for data.masked_lm_prob"
        yield "masked_lm_prob", f"is {phase.masked_lm_prob}; {problem}"
    if phase.max_predictions != -1 and not 1 <= phase.max_predictions <= length - 3:
        usual = f"the usual value is {round(length * phase.mask_rate(rate))}, -1 the mask rate's"
        problem = f"must be 1 to {length - 3}, without [CLS] and two [SEP]; {usual}"
        yield "max_predictions", f"is {phase.max_predictions}; {problem}"
    yield from _packing_problems(phase, config.data)
    pieces, rows = config.optimizer.gradient_accumulation_steps, phase.global_batch_size
    if rows % pieces:
        problem = f"which gradient_accumulation_steps = {pieces} does not divide"
        yield "global_batch_size", f"is {rows}, {problem}"


def _packing_problems(phase: PhaseConfig, data: DataConfig) -> Problems:
    most, limit = phase.max_sequences, phase.sequence_length // 3
    if data.packing == "none":
        if most != -1:
            yield "max_sequences", f"is {most}, but data.packing is none; leave it at -1"
    elif most == -1:  # not completed yet
        return
    elif not 1 <= most <= limit:
        problem = f"tokens holds 1 to {limit} sequences; -1 chooses"
        yield "max_sequences", f"is {most}; a packed row of {phase.sequence_length} {problem}"
    elif phase.max_predictions < (needed := phase.predictions_of(data.masked_lm_prob)):
        problem = f"a packed row of up to {most} sequences has {needed} tokens to predict"
        yield "max_predictions", f"is {phase.max_predictions}, but {problem}; use -1"


def _objective_problems(config: TrainConfig) -> Problems:
    """Checks that rows and loss match the objective. A task has neither."""
    data, objective, z_loss = config.data, config.objective, config.optimizer.z_loss
    bias, parts = config.output_bias, config.head.parts
    if bias != TrainConfig.output_bias:
        if not any(PARTS[part].output_bias for part in parts if part in PARTS):
            yield "output_bias", f"is {bias}, but head.parts has no mlm and no generator"
        if not config.model.decoder_bias:
            yield "output_bias", f"is {bias}, but model.decoder_bias is false"
    # Tasks leave the objective at its default.
    is_pair_task = "embedding" in parts and objective == TrainConfig.objective
    if is_pair_task or _CLASSIFIERS & {*parts}:
        if z_loss:
            yield "optimizer.z_loss", f"is {z_loss}, which a task ignores; set it to 0"
        return
    yield from _prefixed("data.", _without_effect(data))
    # [CLS], and one [SEP] per segment. The texts of a pair are separate sequences.
    segments, name = config.model.type_vocab_size, data.sequence_format
    if name not in SEQUENCE_FORMATS or objective not in OBJECTIVES:
        return
    if segments < 2:
        rows = SEQUENCE_FORMATS[name]
        if rows.num_special > 2 and rows.texts == 1:
            yield "model.type_vocab_size", f"is {segments}; rows of {name} need 2 segments"
    # An objective imports JAX: it is used only if it may have a problem.
    if (objective, name) == (TrainConfig.objective, DataConfig.sequence_format):
        return
    chosen = OBJECTIVES[objective]

    def fits(rows: str) -> bool:
        if chosen.rows:
            return rows in chosen.rows
        return SEQUENCE_FORMATS[rows].texts == chosen.texts

    if not fits(name):
        fitting = " or ".join(filter(fits, SEQUENCE_FORMATS.names()))
        problem = f"objective {objective} learns from {fitting}: choose those rows"
        yield "data.sequence_format", f"is {name}; {problem}"
    if z_loss and not chosen.takes_z_loss:
        problem = f"is {z_loss}, which objective {objective} ignores; set it to 0"
        yield "optimizer.z_loss", problem
    if config.compute.loss_slices > 1 and not chosen.takes_slices:
        yield "compute.loss_slices", f"is above 1; objective {objective} needs 1"


def _embedding_problems(config: TrainConfig) -> Problems:
    options, model, data = config.embedding, config.model, config.data
    if "embedding" not in config.head.parts:
        if options != EmbeddingConfig():
            yield "embedding", "is set, but head.parts has no embedding (objective contrastive)"
        return
    dims, width = options.dims, model.hidden_size
    if [*dims] != sorted({dim for dim in dims if dim < width}, reverse=True):
        problem = f"write widths below model.hidden_size {width}, each once, the largest first"
        yield "embedding.dims", f"is {dims}; {problem}"
    if labels := config.head.labels:
        yield "head.labels", f"is {', '.join(labels)}, and embeddings have no labels; leave it out"
    if config.objective != "contrastive":
        return
    if options.loss.needs_scores:
        problem = "needs scores, and a corpus has none; choose info_nce, or fine-tune on scores"
        yield "embedding.loss.kind", f"is {options.loss.kind}, which {problem}"
    for name in ("query_prompt", "document_prompt"):
        if getattr(options, name):
            yield f"embedding.{name}", "is set, but texts of a corpus get none; fine-tune with it"
    has_dropout = model.hidden_dropout_prob or model.attention_probs_dropout_prob
    if data.sequence_format == "same" and not has_dropout:
        problem = "is same, and without dropout both vectors of a text are equal"
        yield "data.sequence_format", f"{problem}: set model.hidden_dropout_prob=0.1"
    for i, phase in enumerate(config.phases):
        if phase.global_batch_size < 2:
            problem = "is 1: a pair has no negatives in its batch; use at least 2"
            yield f"phases.{i}.global_batch_size", problem


def _without_effect(section: Any, names: Collection[str] | None = None) -> Problems:
    """Yields the options without an effect, of `names` or of those that differ from their defaults.

    An entry that is not built in may read any option.
    """
    fields = fields_of(type(section))
    for name, other, values in (needed for needed in _NEEDS if needed[0] in fields):
        value, chosen = getattr(section, name), getattr(section, other)
        table = fields[other].choices
        is_custom = table is not None and not table.is_builtin(chosen)
        is_set = value != fields[name].default if names is None else name in names
        if is_set and not is_custom and not (chosen in values if values else chosen):
            only = f"{other} {' or '.join(values)}" if values else other
            yield name, f"is {value}, which has an effect with {only} only"


def _model_problems(model: ModelConfig) -> Problems:
    heads, fewer, width = model.num_attention_heads, model.num_key_value_heads, model.hidden_size
    if width % heads:
        yield "model.num_attention_heads", f"is {heads}, which does not divide hidden_size {width}"
    if fewer and heads % fewer:
        yield "model.num_key_value_heads", f"is {fewer}, which does not divide {heads} heads"
    if not model.masked_lm_transform and model.table_size != width:
        yield "model.masked_lm_transform", f"is false, but needs embedding_size {width}"
    yield from _prefixed("model.", _without_effect(model))
    # A mixer imports JAX: it is used only if it may have a problem.
    choosers = ("position_embedding_type", "mixer")
    is_default = all(getattr(model, name) == getattr(ModelConfig, name) for name in choosers)
    if not is_default and not [*unknown_names(model)]:
        yield from _prefixed("model.", model.mixer.entry().problems(model))


def _generator_problems(config: TrainConfig) -> Problems:
    model = config.model
    if "generator" not in config.head.parts:
        for name in GENERATOR_FIELDS:
            if (value := getattr(model, name)) != getattr(ModelConfig, name):
                problem = "which only a model with a generator reads: objective rtd"
                yield f"model.{name}", f"is {value}, {problem}"
        return
    generator = model.generator()
    width, heads = generator.hidden_size, generator.num_attention_heads
    sizes = f"a generator of width {width} with {heads} heads"
    if width % heads:
        problem = f"{sizes} (one per 64 columns), which do not divide it"
        yield "model.generator_size", f"is {model.generator_size}: {problem}"
    if not model.masked_lm_transform and model.table_size != width:
        problem = f"{sizes} (model.generator_size) predicts from embeddings of {model.table_size}"
        yield "model.masked_lm_transform", f"is false, but {problem}; set it to true"
    kind = model.position_embedding_type
    is_default = kind == ModelConfig.position_embedding_type
    can_share = is_default or kind not in POSITIONS or PARTS["generator"].can_share_positions(model)
    if model.embedding_sharing != "none" and not can_share:
        problem = f"is {model.embedding_sharing}: {sizes} cannot share the values that {kind} has"
        problem += f" for each of {model.num_attention_heads}; choose none"
        yield "model.embedding_sharing", problem
    if heads % config.mesh.tensor:
        yield "mesh.tensor", f"is {config.mesh.tensor}, which does not divide {sizes}"


def _head_problems(head: HeadConfig) -> Problems:
    parts, there = ", ".join(head.parts), set(head.parts)
    if len(there & _CLASSIFIERS) > 1 or len(there) < len(head.parts):
        yield "head.parts", f"is {parts}; name each once, and at most one classifier"
    # A part imports JAX: the parts of BERT need no check.
    for part in () if head.parts == HeadConfig.parts else head.parts:
        needed = PARTS[part].needs if part in PARTS else None
        if needed is not None and (needed not in there or PARTS[needed].needs is not None):
            yield "head.parts", f"has {part}, which needs {needed}"
    if len(set(head.labels)) < len(head.labels):
        yield "head.labels", f"is {', '.join(head.labels)}; name each label once"
