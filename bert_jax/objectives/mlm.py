"""Masked words without next sentences (Liu et al. 2019, RoBERTa, section 4.2)."""

import math
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.config import ModelConfig, PhaseConfig
from bert_jax.config.entries import entry_of
from bert_jax.data.pretraining.batch import INPUTS, PREDICTIONS, Batch, Draw
from bert_jax.model.flops import encoder_flops, masked_lm_flops
from bert_jax.model.losses import Sums, cross_entropy, cross_entropy_and_normaliser
from bert_jax.objectives.objective import Figure, Objective


class MaskedLanguageModel(Objective):
    """The mean over the predicted tokens."""

    name = "mlm"
    parts = ("mlm",)
    losses = {"mlm": 1.0}
    takes_z_loss = True
    takes_slices = True
    fields = {**INPUTS, **PREDICTIONS}
    figures = (
        Figure("mlm_loss", "MLM loss", "{:.3f} nats", "unigram entropy"),
        Figure("mlm_accuracy", "MLM accuracy"),
        Figure("perplexity", "perplexity", "{:.1f}"),
    )

    def collate(self, rows: Batch, draw: Draw) -> Batch:
        masked = entry_of(draw.options, "mask")(rows, draw)
        return {**{name: rows[name] for name in INPUTS}, **masked}

    def sums(
        self, outputs: dict[str, Any], batch: dict[str, jax.Array], *, z_loss: float = 0.0
    ) -> Sums:
        """Adds up cross-entropy; its gradient is that of `z_loss` times the square of the log
        normaliser, too, which keeps the logits near zero (PaLM, Chowdhery et al. 2022, section 5).
        """
        weights, targets = batch["mlm_weights"], batch["mlm_targets"]
        if "mlm_scores" in outputs:
            found = outputs["mlm_scores"].cross_entropy(targets)
        elif z_loss:
            found = cross_entropy_and_normaliser(outputs["mlm_logits"], targets)
        else:
            found = cross_entropy(outputs["mlm_logits"], targets)
        loss, hits, *log_normaliser = found
        if z_loss:
            extra = z_loss * jnp.square(log_normaliser[0])
            # Its value is left out: the logged loss stays what evaluation measures.
            loss = loss + (extra - jax.lax.stop_gradient(extra))
        return {
            "mlm_loss": jnp.sum(weights * loss),
            "mlm_hits": jnp.sum(weights * hits),
            "mlm_count": jnp.sum(weights),
        }

    def uniform_loss(self, model: ModelConfig) -> float:
        return math.log(model.vocab_size)

    def forward_flops(self, model: ModelConfig, phase: PhaseConfig) -> int:
        """The last block computes the masked positions: what the head reads."""
        read = phase.max_predictions
        encoder = encoder_flops(model, length=phase.sequence_length, read=read)
        return encoder + masked_lm_flops(model, predictions=read)


MLM = MaskedLanguageModel()
