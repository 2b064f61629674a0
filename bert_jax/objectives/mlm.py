"""Masked language modeling without next sentences (Liu et al. 2019, RoBERTa, section 4.2)."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.config import ModelConfig, PhaseConfig
from bert_jax.data.pretraining.batch import INPUTS, PREDICTIONS, Batch, Draw
from bert_jax.model.flops import encoder_flops, masked_lm_flops
from bert_jax.model.losses import Sums, cross_entropy, cross_entropy_and_normaliser
from bert_jax.model.sharding import reshaped, spec_of
from bert_jax.objectives.objective import Figure, Objective
from bert_jax.registry import MASKINGS


class MaskedLanguageModel(Objective):
    """The mean cross-entropy over the predicted tokens."""

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
        masked = MASKINGS[draw.options.masking](rows, draw)
        return {**{name: rows[name] for name in INPUTS}, **masked}

    def sums(
        self, outputs: dict[str, Any], batch: dict[str, jax.Array], *, z_loss: float = 0.0
    ) -> Sums:
        """Sums the cross-entropy. Its gradient also has the term `z_loss` x (log normalizer)^2,
        which keeps the logits near zero (PaLM, Chowdhery et al. 2022, section 5).
        """
        weights, targets = batch["mlm_weights"], batch["mlm_targets"]
        if "mlm_scores" in outputs:
            found = outputs["mlm_scores"].cross_entropy(targets)
        else:
            function = cross_entropy_and_normaliser if z_loss else cross_entropy
            found = _of_rows(function, outputs["mlm_logits"], targets)
        loss, hits, *log_normaliser = found
        if z_loss:
            extra = z_loss * jnp.square(log_normaliser[0])
            # The term's value is excluded: the logged loss stays comparable with evaluation.
            loss = loss + (extra - jax.lax.stop_gradient(extra))
        return {
            "mlm_loss": jnp.sum(weights * loss),
            "mlm_hits": jnp.sum(weights * hits),
            "mlm_count": jnp.sum(weights),
        }

    def uniform_loss(self, model: ModelConfig) -> float:
        return math.log(model.vocab_size)

    def forward_flops(self, model: ModelConfig, phase: PhaseConfig) -> int:
        """The last block computes only the masked positions, which the head reads."""
        read = phase.max_predictions
        encoder = encoder_flops(model, length=phase.sequence_length, read=read)
        return encoder + masked_lm_flops(model, predictions=read)


def _of_rows(function: Callable, logits_BMV: jax.Array, targets_BM: jax.Array) -> list[jax.Array]:
    """Returns the results of a function of rows of logits, each `[B, M]`.

    The rows form one matrix, as in the output of the vocabulary matmul: a TPU stores the last two
    dims in tiles of 8 rows, and would copy all logits for 20 positions per row.
    """
    shape, words, cut = targets_BM.shape, logits_BMV.shape[-1], spec_of(logits_BMV)[-1]
    rows = math.prod(shape)
    found = function(reshaped(logits_BMV, (rows, words), cut), reshaped(targets_BM, (rows,)))
    return [reshaped(x, shape) for x in found]


MLM = MaskedLanguageModel()
