"""The phases of a run: each has one shape of a batch, and may change other fields."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, ClassVar

from bert_jax.config.data import DataConfig
from bert_jax.config.fields import PHASE, WithChanges, section, setting
from bert_jax.config.model import ModelConfig
from bert_jax.config.optimizer import OptimizerConfig
from bert_jax.errors import UsageError

# fmt: off
# The facts of a field stand side by side.


@section
class PhaseConfig(WithChanges):
    """A stretch of a run with one shape of a batch. State and cursor go through all phases.

    `changes` are other fields of the config that change when the phase begins, and hold until
    another phase changes them: `{"optimizer.learning_rate": 3e-4, "model.rope_theta": 160_000.0}`.
    In JSON, and for `--set`, they stand in the phase as they do in the config:
    `{"steps": 10, "model": {"rope_theta": 160000}}`, `phases.1.model.rope_theta=160000`.
    """

    sections: ClassVar[Mapping[str, Any]] = {
        "model": ModelConfig, "data": DataConfig, "optimizer": OptimizerConfig,
    }

    sequence_length: int = setting(
        128, PHASE,
        "Tokens in a row, special ones included; at least 8, at most the position table.",
        least=8,
        called=("seq_len", "seq_length", "max_seq_length", "max_length", "length"),
    )
    steps: int = setting(
        900_000, PHASE, "Updates in this phase.",
        least=1, called=("max_steps", "num_steps", "total_steps", "train_steps", "num_train_steps",
                         "iterations", "iters", "updates"),
    )
    global_batch_size: int = setting(
        256, PHASE,
        "Rows in one update, over all devices; a multiple of `mesh.slices` x `mesh.fsdp` x "
        "`optimizer.gradient_accumulation_steps`.",
        least=1, called=("batch_size", "batch", "bs", "train_batch_size",
                         "per_device_train_batch_size"),
    )
    # 77 at length 512, where the original recipe has 76.
    max_predictions: int = setting(
        -1, PHASE,
        "Masked positions a row has room for, at most the sequence length less 3; `-1` follows the "
        "mask rate: 20 at length 128. A run warns if there is room for less than nine tenths of "
        "that share.",
        called=("max_predictions_per_seq",),
    )
    masked_lm_prob: float = setting(
        -1.0, PHASE,
        "Share of a row's tokens to predict in this phase; `-1` is `data.masked_lm_prob`, at which "
        "every phase is evaluated.",
    )
    max_sequences: int = setting(
        -1, PHASE,
        "Sequences that a packed row has room for (`data.packing`); `-1` chooses one for each 64 "
        "tokens of a row, and 3 at least.",
    )

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


# fmt: on
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
