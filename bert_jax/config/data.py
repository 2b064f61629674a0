"""Sections of a config: how ids become batches, and the phases of a run."""

import dataclasses
import math

from bert_jax.config.fields import DATA, FREE, PHASE, PRETRAINING, WithOptions, section, setting
from bert_jax.registry import MASKS, ROWS

# fmt: off
# The facts of a field stand side by side.


@section
class DataConfig(WithOptions):
    """How ids become masked sentence pairs (google-research/bert create_pretraining_data.py)."""

    short_seq_prob: float = setting(
        0.1, DATA,
        "Share of documents whose pairs aim at a shorter length (`sentence_pairs`).",
        least=0, most=1, read_by=("rows",),
    )
    random_next_prob: float = setting(
        0.5, DATA,
        "Share of pairs whose second segment comes from another document by choice "
        "(`sentence_pairs`).",
        least=0, most=1, read_by=("rows",),
    )
    masked_lm_prob: float = setting(
        0.15, DATA,
        "Share of a row's tokens to predict; at most the phase's `max_predictions` are.",
        least=0, most=1, called=("mlm_probability", "mask_rate", "mask_prob", "mlm_prob"),
    )
    mask_token_prob: float = setting(
        0.8, DATA, "Share of the predicted tokens that become `[MASK]`.", least=0, most=1
    )
    random_token_prob: float = setting(
        0.1, DATA,
        "Share of the predicted tokens that become a random id; the rest stay as they are.",
        least=0, most=1,
    )
    num_workers: int = setting(
        2, FREE._replace(finetune=PRETRAINING),
        "Threads that make batches ahead of the step.",
        least=1, called=("workers", "dataloader_num_workers"),
    )
    prefetch: int = setting(
        4, FREE._replace(finetune=PRETRAINING),
        "Batches that may wait for the step on the host.", least=1,
    )
    verify: str = setting(
        "full", FREE._replace(finetune=PRETRAINING),
        "What of the corpus is checked at every start: `full` compares "
        "[checksums](data.md#damage-is-found-before-step-1), `sizes` only sizes.",
        choices=("full", "sizes"),
    )
    rows: str = setting(
        "sentence_pairs", DATA,
        "How documents become rows ([rows](lineage.md#rows)).",
        choices=ROWS,
    )
    mask: str = setting(
        "tokens", DATA,
        "Which tokens of a row are predicted: `tokens` draws each on its own, `whole_words` all "
        "pieces of a word or none (BERT's whole-word masking), `spans` up to ten words in a row, "
        "3.8 on average (SpanBERT).",
        choices=MASKS,
    )
    packing: str = setting(
        "none", DATA,
        "Whether sequences share the rows of training: with `best_fit` a row has as many as there "
        "is room for ([lineage.md](lineage.md#packing)).",
        choices=("none", "best_fit"),
    )


@section
class PhaseConfig:
    """A stretch of a run with one sequence length. Phases share schedule, moments and cursor."""

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
