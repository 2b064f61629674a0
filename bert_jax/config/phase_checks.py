"""Says what is impossible in the phases of a config, by the name of the field."""

from collections.abc import Iterator

from bert_jax.config import PhaseConfig, TrainConfig, setting_of
from bert_jax.registry import POSITIONS


def phase_problems(number: int, config: TrainConfig) -> Iterator[tuple[str, str]]:
    """Yields what is impossible in a phase of a config: the name of the field, and why."""
    phase = config.phases[number]
    yield from _change_problems(number, phase)
    config = config.in_phase(number)
    if phase.sequence_length > config.model.max_position_embeddings:
        kind = config.model.position_embedding_type
        has_table = POSITIONS[kind].has_table()
        longest = "the position table" if has_table else "the model says its rows may be"
        remedy = "enlarge the table" if has_table else f"set it higher: {kind} has no table"
        yield (
            "sequence_length",
            f"is {phase.sequence_length}, longer than {longest} "
            f"(model.max_position_embeddings = {config.model.max_position_embeddings}); "
            f"shorten the sequence or {remedy}",
        )
    if phase.masked_lm_prob != -1 and not 0 < phase.masked_lm_prob <= 1:
        yield (
            "masked_lm_prob",
            f"is {phase.masked_lm_prob}; a share above 0 and at most 1, or -1 for "
            "data.masked_lm_prob",
        )
    if phase.max_predictions != -1 and not 1 <= phase.max_predictions <= phase.sequence_length - 3:
        yield (
            "max_predictions",
            f"is {phase.max_predictions}; a row of {phase.sequence_length} has "
            f"{phase.sequence_length - 3} tokens to choose from (three are [CLS] and [SEP]); "
            "the usual value is "
            f"{round(phase.sequence_length * phase.mask_rate(config.data.masked_lm_prob))}, and "
            "-1 follows the mask rate",
        )
    yield from _packing_problems(phase, config)
    microbatches = config.optimizer.gradient_accumulation_steps
    if phase.global_batch_size % microbatches:
        yield (
            "global_batch_size",
            f"is {phase.global_batch_size}, which gradient_accumulation_steps = {microbatches} "
            "does not divide",
        )


def _change_problems(number: int, phase: PhaseConfig) -> Iterator[tuple[str, str]]:
    """Yields what a phase may not change: what is saved, or is no number of an update."""
    for path in phase.changes:
        described = setting_of(path)
        if number == 0:
            yield path, "is changed by the first phase; set it in the config itself"
        elif path == "data.masked_lm_prob":
            yield path, f"decides the evaluation; a phase's own is phases.{number}.masked_lm_prob"
        elif described and not described.by_phase and described.rule.on_resume != "flag":
            yield path, "is the whole run's; a phase cannot change it"


def _packing_problems(phase: PhaseConfig, config: TrainConfig) -> Iterator[tuple[str, str]]:
    most, data = phase.max_sequences, config.data
    if data.packing == "none":
        if most != -1:
            yield "max_sequences", f"is {most}, but no rows are packed (data.packing); leave it -1"
        return
    if most == -1:  # not completed yet
        return
    if not 1 <= most <= phase.sequence_length // 3:
        yield (
            "max_sequences",
            f"is {most}; a packed row of {phase.sequence_length} has room for 1 to "
            f"{phase.sequence_length // 3} sequences, and -1 chooses",
        )
        return
    needed = phase.predictions_of(data.masked_lm_prob)
    if phase.max_predictions < needed:
        yield (
            "max_predictions",
            f"is {phase.max_predictions}, but the {most} sequences that a packed row may hold have "
            f"{needed} tokens to predict (data.packing); -1 makes room for them",
        )
