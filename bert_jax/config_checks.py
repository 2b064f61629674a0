"""Says what is impossible in a config, by the name of the field, before anything starts."""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

from bert_jax.config import (
    DataConfig,
    HeadConfig,
    ModelConfig,
    OptimizerConfig,
    TrainConfig,
    flatten,
    setting_of,
    source_shares,
)
from bert_jax.config.entries import entry_of, settings_chosen
from bert_jax.config.fields import WithOptions, fields_read_by, settings_of
from bert_jax.config.phase_checks import phase_problems
from bert_jax.errors import UsageError, brief
from bert_jax.registry import (
    ATTENTION,
    HOOKS,
    MIXERS,
    OBJECTIVES,
    PARTS,
    POSITIONS,
    ROWS,
    SCHEDULES,
    SCORES,
    Registry,
)


def complete(config: TrainConfig) -> TrainConfig:
    """Returns the config with what follows from other fields of it: the head that its objective
    needs, where none was chosen, and room for the predictions of each phase.
    """
    rate = config.data.masked_lm_prob
    phases = tuple(
        phase.resolved(rate, packing=config.in_phase(i).data.packing)
        for i, phase in enumerate(config.phases)
    )
    if phases != config.phases:
        config = dataclasses.replace(config, phases=phases)
    is_default = config.objective == TrainConfig.objective
    if is_default or config.head != HeadConfig() or config.objective not in OBJECTIVES:
        return config
    head = HeadConfig(parts=entry_of(config, "objective").parts)
    return dataclasses.replace(config, head=head)


def validate(config: TrainConfig) -> TrainConfig:
    """Returns `config`, or raises a `UsageError` that names the first impossible field."""
    for path, problem in _problems(config):
        raise UsageError(f"config {config.name!r}: {path} {problem}")
    return config


def mask_warnings(config: TrainConfig) -> Iterator[str]:
    """Yields a line for each phase without room for a tenth or more of the tokens to predict."""
    if not {"mlm", "generator"} & set(config.head.parts):
        return
    for i, phase in enumerate(config.phases):
        rate = phase.mask_rate(config.data.masked_lm_prob)
        field = "data" if phase.masked_lm_prob == -1 else f"phases.{i}"
        wanted, room = rate * phase.sequence_length, phase.max_predictions
        if 0 < room < 0.9 * wanted and room < phase.sequence_length - 3:
            enough = dataclasses.replace(phase, max_predictions=-1).resolved(rate).max_predictions
            yield (
                f"warning: phases.{i}.max_predictions is {room}, so that a full row of "
                f"{phase.sequence_length} has {100 * room / phase.sequence_length:.1f} % of its "
                f"tokens predicted, not {100 * rate:.3g} % ({field}.masked_lm_prob); "
                f"set phases.{i}.max_predictions={enough}"
            )


def require_registered(config: TrainConfig) -> None:
    """Raises `UsageError` for a name in `config` that no table has: of a file not yet executed.

    Only what computes outputs is asked for: who trains or scores finds the rest missing when it is
    looked up, and who fills a mask needs no optimiser.
    """
    unknown = {path: text for path, text in _field_problems(config, "") if _is_of_a_table(path)}
    if any(path.startswith(("model.", "compute.", "head.")) for path in unknown):
        path, problem = next(iter(unknown.items()))
        raise UsageError(f"config {config.name!r}: {path} {problem}")


def require_possible(config: TrainConfig) -> None:
    """Raises `UsageError` for a number in a stored config that no run has: what reads somebody
    else's workdir would divide by it. Names that no table has are for `require_registered`.
    """
    problems = [p for p in _field_problems(config, "") if not _is_of_a_table(p[0])]
    for path, problem in [*problems, *([] if config.phases else [("phases", "is empty")])]:
        raise UsageError(f"config {config.name!r}: {path} {problem}")


def _is_of_a_table(path: str) -> bool:
    """Returns whether the field at a path names entries of a table."""
    described = setting_of(path)
    return described is not None and isinstance(described.choices, Registry)


def validate_model(model: ModelConfig, head: HeadConfig) -> ModelConfig:
    """Returns `model`, or raises a `UsageError`: the model of another system, without a run."""
    labels = _value_problems(head, "head.")
    for path, problem in (*_model_problems(model), *labels, *_head_problems(head)):
        raise UsageError(f"{path} {problem}")
    return model


def _field_problems(section: Any, prefix: str) -> Iterator[tuple[str, str]]:
    """Checks each field of a section, and of those inside it, and each option of the entries that
    it chooses, against its own limits.
    """
    for name, described in settings_of(type(section)).items():
        value, path = getattr(section, name), f"{prefix}{name}"
        if described is not None:
            yield from ((path, text) for text in described.problems(value))
        elif isinstance(value, tuple):
            for i, item in enumerate(value):
                yield from _field_problems(item, f"{path}.{i}.")
        else:
            yield from _field_problems(value, f"{path}.")
    if isinstance(section, WithOptions):
        chosen = {n: each for n, each, _ in settings_chosen(type(section), vars(section))}
        for name, value in section.options.items():
            if name in chosen:
                yield from ((f"{prefix}{name}", text) for text in chosen[name].problems(value))


def reads(section: Any, name: str) -> bool:
    """Returns whether the chosen kinds read a field of a section."""
    described = settings_of(type(section))[name]
    chooser, *kinds = (described and described.read_by) or ("",)
    by = settings_of(type(section)).get(chooser)
    if by is None:
        return True
    chosen, table = getattr(section, chooser), by.choices
    if not isinstance(table, Registry):
        return chosen in kinds
    return chosen not in table or _reads(table, chosen, name)


def _reads(table: Registry, chosen: str, name: str) -> bool:
    """Returns whether an entry reads a field; that of a user may, unless it says what it reads."""
    names = getattr(table[chosen], "reads", () if table.is_builtin(chosen) else None)
    return names is None or name in names


def _readers(section: Any, name: str, chooser: str, kinds: Sequence[str]) -> Sequence[str]:
    """Returns the values of the field `chooser` with which a field of a section is read."""
    by = settings_of(type(section))[chooser]
    table = by and by.choices
    if not isinstance(table, Registry):
        return kinds
    return [each for each in table.names() if _reads(table, each, name)]


def _unread(section: Any, prefix: str) -> Iterator[tuple[str, str]]:
    """Yields the fields that were changed where nothing reads them: they would do nothing."""
    for name, described in settings_of(type(section)).items():
        value = getattr(section, name)
        if described is not None and value != described.default and not reads(section, name):
            chooser, *kinds = described.read_by
            chosen = getattr(section, chooser)
            readers = ", ".join(_readers(section, name, chooser, kinds))
            yield (
                f"{prefix}{name}",
                f"is {value}, which {chooser} {chosen} does not read: only {readers}",
            )


def _problems(config: TrainConfig) -> Iterator[tuple[str, str]]:
    yield from _section_problems(config, config.schedule_span(0))
    for hook in config.hooks:
        if (name := hook.partition(":")[0]) not in HOOKS:
            yield "hooks", HOOKS.problem(name)
    if not config.phases:
        yield "phases", "is empty; a run needs at least one phase"
    for i, phase in enumerate(config.phases):
        for name, text in phase_problems(i, config):
            yield f"phases.{i}.{name}", text
        if phase.changes:
            changed = dataclasses.replace(config.in_phase(i), phases=(phase,))
            span = config.schedule_span(i)
            for problems in (_section_problems(changed, span), _warmup_problems(changed, span)):
                yield from ((f"phases.{i}.{path}", text) for path, text in problems)
    yield from _warmup_problems(config, config.schedule_span(0))
    name = config.compute.attention
    # The entry imports its kernel: looked up only where it may have a problem.
    if name in ATTENTION and ATTENTION.is_builtin(name) and name not in ("auto", "fused"):
        for text in ATTENTION[name].problems(config):
            yield "compute.attention", f"is {name}, which {text}"
    for name, size in (
        ("num_attention_heads", config.model.num_attention_heads),
        ("num_key_value_heads", config.model.num_key_value_heads),
        ("intermediate_size", config.model.intermediate_size),
    ):
        if size % max(config.mesh.tensor, 1):
            yield "mesh.tensor", f"is {config.mesh.tensor}, which does not divide {name} {size}"
    if config.mesh.fsdp != -1 and config.mesh.fsdp < 1:
        yield "mesh.fsdp", "must be -1 (all devices) or at least 1"


def _section_problems(config: TrainConfig, span: range) -> Iterator[tuple[str, str]]:
    """Yields what is impossible in the sections that a phase may change, too. `span` are the
    updates of the schedule.
    """
    model, data, optimizer = config.model, config.data, config.optimizer
    yield from _value_problems(config, "")
    yield from _field_problems(config, "")
    yield from _model_problems(model)
    yield from _head_problems(config.head)
    yield from _generator_problems(config)
    if data.mask_token_prob + data.random_token_prob > 1 + 1e-9:
        yield "data.random_token_prob", "and data.mask_token_prob together exceed 1"
    yield from ((f"data.{name}", text) for name, text in source_shares.problems(data))
    if optimizer.frozen_layers > model.num_hidden_layers:
        yield (
            "optimizer.frozen_layers",
            f"is {optimizer.frozen_layers}, and the model has {model.num_hidden_layers} layers",
        )
    if 0 < optimizer.spike_factor <= 1:
        yield "optimizer.spike_factor", f"is {optimizer.spike_factor}; 0 or more than 1"
    yield from _objective_problems(config)
    yield from _optimizer_problems(optimizer, len(span))


def _warmup_problems(config: TrainConfig, span: range) -> Iterator[tuple[str, str]]:
    warmup, steps = config.optimizer.warmup_steps, len(span)
    if not 0 <= warmup < max(steps, 1):
        what = "run" if span == range(config.total_steps) else "schedule"
        yield (
            "optimizer.warmup_steps",
            f"is {warmup}, but the {what} has {steps} steps: the learning rate would never come "
            f"down; set optimizer.warmup_steps={steps // 10} is a tenth of them",
        )


def _objective_problems(config: TrainConfig) -> Iterator[tuple[str, str]]:
    """Checks that rows and loss go with the objective. A task has neither."""
    data, objective, z_loss = config.data, config.objective, config.optimizer.z_loss
    if config.output_bias != TrainConfig.output_bias and not any(
        PARTS[part].output_bias for part in config.head.parts if part in PARTS
    ):
        yield "output_bias", f"is {config.output_bias}, but head.parts has no mlm and no generator"
    if config.output_bias != TrainConfig.output_bias and not config.model.decoder_bias:
        yield "output_bias", f"is {config.output_bias}, but model.decoder_bias is false"
    if set(_CLASSIFIERS) & set(config.head.parts):
        if z_loss:
            yield "optimizer.z_loss", f"is {z_loss}, which a task does not read"
        return
    yield from _unread(data, "data.")
    # [CLS], and one [SEP] behind each segment.
    if config.model.type_vocab_size < 2 and data.rows in ROWS and ROWS[data.rows].num_special > 2:
        there = config.model.type_vocab_size
        yield "model.type_vocab_size", f"is {there}; rows of {data.rows} need 2 segments"
    # An objective is looked up, with all that it imports, only where there is a reason.
    is_default = objective == TrainConfig.objective and data.rows == DataConfig.rows
    if is_default or objective not in OBJECTIVES or data.rows not in ROWS:
        return
    chosen = OBJECTIVES[objective]
    if chosen.rows and data.rows not in chosen.rows:
        yield (
            "data.rows",
            f"is {data.rows}; objective {objective} learns from {' or '.join(chosen.rows)}: "
            "choose another objective, such as mlm, or those rows",
        )
    if z_loss and not chosen.takes_z_loss:
        yield "optimizer.z_loss", f"is {z_loss}, which objective {objective} does not read"
    if config.compute.loss_slices > 1 and not chosen.takes_slices:
        yield "compute.loss_slices", f"is set, but objective {objective} reads whole scores"


def _optimizer_problems(optimizer: OptimizerConfig, total_steps: int) -> Iterator[tuple[str, str]]:
    yield from _unread(optimizer, "optimizer.")
    # A schedule is looked up, with all that it imports, only where there is a reason.
    if optimizer.schedule != OptimizerConfig.schedule and optimizer.schedule in SCHEDULES:
        schedule = entry_of(optimizer, "schedule")
        if (problems := getattr(schedule, "problems", None)) is not None:
            for name, problem in problems(optimizer, total_steps):
                yield f"optimizer.{name}", problem


def _value_problems(section: Any, prefix: str) -> Iterator[tuple[str, str]]:
    """Yields what no field may be, whatever it is for."""
    for name, value in flatten(section).items():
        if isinstance(value, float) and not math.isfinite(value):
            yield f"{prefix}{name}", f"is {value}; it must be finite"
        if isinstance(value, str) and any("\ud800" <= c <= "\udfff" for c in value):
            yield (
                f"{prefix}{name}",
                f"is {brief(value)}, which has half a surrogate pair: it cannot be written",
            )


def _model_problems(model: ModelConfig) -> Iterator[tuple[str, str]]:
    yield from _value_problems(model, "model.")
    yield from _field_problems(model, "model.")
    if model.hidden_size % model.num_attention_heads:
        yield (
            "model.num_attention_heads",
            f"is {model.num_attention_heads}, which does not divide hidden_size "
            f"{model.hidden_size}",
        )
    heads, fewer = model.num_attention_heads, model.num_key_value_heads
    if fewer and heads % fewer:
        yield "model.num_key_value_heads", f"is {fewer}, no divisor of num_attention_heads {heads}"
    if not model.masked_lm_transform and model.table_size != model.hidden_size:
        yield "model.masked_lm_transform", "is false, but embedding_size is another width"
    yield from _unread(model, "model.")
    kind = model.position_embedding_type
    for name in ("global_attention_every_n_layers", "first_global_layer", "local_rope_theta"):
        if (value := getattr(model, name)) and not model.attention_window:
            yield (
                f"model.{name}",
                f"is {value}, which only local layers read: model.attention_window",
            )
    if (first := model.first_global_layer) and not model.global_attention_every_n_layers:
        yield (
            "model.first_global_layer",
            f"is {first}, but no layer is global: model.global_attention_every_n_layers",
        )
    if (inner := model.masked_lm_inner_size) and not model.masked_lm_transform:
        yield (
            "model.masked_lm_inner_size",
            f"is {inner}, which only a head with a transform reads: model.masked_lm_transform",
        )
    # A mixer is looked up, with all that it imports, only where there is a reason.
    choosers = ("position_embedding_type", "mixer", "attention_score")
    is_default = all(getattr(model, name) == getattr(ModelConfig, name) for name in choosers)
    is_known = kind in POSITIONS and model.mixer in MIXERS and model.attention_score in SCORES
    if is_known and not is_default:
        yield from ((f"model.{n}", text) for n, text in MIXERS[model.mixer].problems(model))


def _generator_problems(config: TrainConfig) -> Iterator[tuple[str, str]]:
    model = config.model
    if "generator" not in config.head.parts:
        for name in fields_read_by("head.parts", ModelConfig):
            if getattr(model, name) != getattr(ModelConfig, name):
                yield (
                    f"model.{name}",
                    f"is {getattr(model, name)}, which only a model with a generator reads: "
                    "objective rtd",
                )
        return
    generator = model.generator()
    sizes = (
        f"a generator of width {generator.hidden_size} with {generator.num_attention_heads} heads"
    )
    if generator.hidden_size % generator.num_attention_heads:
        yield (
            "model.generator_size",
            f"is {model.generator_size}: {sizes} (one for each 64), which do not divide it",
        )
    kind, is_shared = model.position_embedding_type, model.embedding_sharing != "none"
    is_default = kind == ModelConfig.position_embedding_type
    can_share = is_default or kind not in POSITIONS or PARTS["generator"].can_share_positions(model)
    if is_shared and not can_share:
        yield (
            "model.embedding_sharing",
            f"is {model.embedding_sharing}: {sizes} cannot share the numbers that {kind} has for "
            f"each of {model.num_attention_heads}; choose none",
        )
    if generator.num_attention_heads % max(config.mesh.tensor, 1):
        yield "mesh.tensor", f"is {config.mesh.tensor}, which does not divide {sizes}"


_CLASSIFIERS = ("sequence_classifier", "token_classifier", "span_classifier")


def _head_problems(head: HeadConfig) -> Iterator[tuple[str, str]]:
    yield from _field_problems(head, "head.")
    if len(set(head.parts) & set(_CLASSIFIERS)) > 1 or len(set(head.parts)) < len(head.parts):
        yield "head.parts", f"is {', '.join(head.parts)}; each once, and one classifier at most"
    if {"nsp", "sequence_classifier"} & set(head.parts) and "pooler" not in head.parts:
        yield "head.parts", f"is {', '.join(head.parts)}; these stand on the pooler, too"
    for part in head.parts:
        of_ones_own = part in PARTS and not PARTS.is_builtin(part)
        needed = PARTS[part].needs if of_ones_own else None
        if needed is not None and (needed not in head.parts or PARTS[needed].needs is not None):
            yield "head.parts", f"has {part}, which stands on {needed}: that must be there"
    if len(set(head.labels)) < len(head.labels):
        yield "head.labels", f"is {', '.join(head.labels)}; each label once"
