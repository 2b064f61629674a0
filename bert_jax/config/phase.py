"""The phases of a run. A phase has one batch shape, and may override other fields of the config."""

import dataclasses
import math
from typing import Annotated

from msgspec import Meta

from bert_jax.config.fields import Count, Natural, NonNegative, Positive, section, setting
from bert_jax.config.optimizer import Schedule
from bert_jax.errors import UsageError

# The fields of PhaseConfig that override a field of the config -> the path of that field.
OVERRIDES = {
    "learning_rate": "optimizer.learning_rate",
    "warmup_steps": "optimizer.warmup_steps",
    "weight_decay": "optimizer.weight_decay",
    "schedule": "optimizer.schedule",
    "rope_theta": "model.rope_theta",
    "local_rope_theta": "model.local_rope_theta",
    "source_weights": "data.source_weights",
}
# A phase that overrides one of these starts a schedule.
_SCHEDULE = ("learning_rate", "warmup_steps", "schedule")


@section
class PhaseConfig:
    """A part of a run with one batch shape. The training state continues from phase to phase, and
    each phase starts new epochs of all corpora.

    An override holds from the start of the phase until another phase overrides the same field.
    """

    sequence_length: Annotated[int, Meta(ge=8)] = setting(
        128, "Tokens per sequence, with special tokens; at most `model.max_position_embeddings`."
    )
    steps: Count = setting(900_000, "Updates of this phase.")
    global_batch_size: Count = setting(
        256,
        "Sequences per update, over all devices; a multiple of `mesh.slices` x `mesh.fsdp` x "
        "`optimizer.gradient_accumulation_steps`.",
    )
    # 77 at length 512, where the original recipe has 76.
    max_predictions: int = setting(
        -1, "Most masked tokens per sequence, up to `sequence_length` - 3; `-1` follows the rate."
    )
    masked_lm_prob: float = setting(
        -1.0, "Fraction of tokens to predict; `-1` uses `data.masked_lm_prob`, as evaluation does."
    )
    max_sequences: int = setting(
        -1, "Maximum of packed sequences (`data.packing`); `-1` is one per 64 tokens, at least 3."
    )
    learning_rate: Positive | None = setting(None, "Overrides `optimizer.learning_rate`.")
    warmup_steps: Natural | None = setting(None, "Overrides `optimizer.warmup_steps`.")
    weight_decay: NonNegative | None = setting(None, "Overrides `optimizer.weight_decay`.")
    schedule: Schedule | None = setting(None, "Overrides `optimizer.schedule`.")
    rope_theta: Positive | None = setting(None, "Overrides `model.rope_theta`.")
    local_rope_theta: NonNegative | None = setting(None, "Overrides `model.local_rope_theta`.")
    source_weights: str | None = setting(None, "Overrides `data.source_weights`.")

    @property
    def overrides(self) -> dict[str, object]:
        """The overridden fields of the config, by path."""
        values = {path: getattr(self, name) for name, path in OVERRIDES.items()}
        return {path: value for path, value in values.items() if value is not None}

    @property
    def starts_schedule(self) -> bool:
        return any(getattr(self, name) is not None for name in _SCHEDULE)

    def without_overrides(self) -> "PhaseConfig":
        return dataclasses.replace(self, **dict.fromkeys(OVERRIDES))

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


def growing(phase: PhaseConfig, *, by: int, tokens: float) -> tuple[PhaseConfig, ...]:
    """Returns a phase as several whose batch grows, with the tokens of the phase in all.

    Batches of `by` rows, 2 x `by`, 3 x `by`, ... come first, each for a share of `tokens` that is
    as large as the batch; then those of the phase itself (AnswerDotAI/ModernBERT
    src/sequence_packer.py, `batch_size_warmup_tokens`). Tokens are those of full rows. Raises
    UsageError where there is no batch before the phase's own, or no step left for it.
    """
    if not 0 < by < phase.global_batch_size:
        raise UsageError(
            f"`by` {by}: a batch that grows to {phase.global_batch_size} rows begins with fewer"
        )
    sizes = range(by, phase.global_batch_size, by)
    one = tokens / sum(sizes) / phase.sequence_length
    grows = [dataclasses.replace(phase, global_batch_size=rows, steps=round(one)) for rows in sizes]
    left = phase.steps - round(tokens / phase.global_batch_size / phase.sequence_length)
    if round(one) < 1 or left < 1:
        row, most = phase.sequence_length, phase.steps * phase.global_batch_size
        raise UsageError(
            f"`tokens` {tokens:g}: each size of the batch needs a step, and the phase has "
            f"{most * row:,} tokens in all"
        )
    return (*grows, dataclasses.replace(phase, steps=left))
