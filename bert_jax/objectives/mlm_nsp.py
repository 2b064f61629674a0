"""Masked language modeling and next-sentence prediction, as in BERT (Devlin et al. 2019, section
3.1).
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.config import ModelConfig, PhaseConfig
from bert_jax.data.pretraining.batch import Batch, Draw, Field
from bert_jax.model.flops import encoder_flops, masked_lm_flops, pooler_flops
from bert_jax.model.losses import Sums, cross_entropy
from bert_jax.objectives.mlm import MLM, MaskedLanguageModel
from bert_jax.objectives.objective import Figure


class MaskedLanguageModelAndNextSentence(MaskedLanguageModel):
    """The sum of two means: over the predicted tokens and over the sentence pairs."""

    name = "mlm+nsp"
    parts = ("pooler", "mlm", "nsp")
    losses = {"mlm": 1.0, "nsp": 1.0}
    rows = ("sentence_pairs",)
    fields = {
        **MLM.fields,
        "nsp_positions": Field("P", np.int32),
        "nsp_labels": Field("P", np.int32),
        "nsp_weights": Field("P", np.float32),
    }
    figures = (
        *MLM.figures,
        Figure(
            "nsp_accuracy",
            "NSP accuracy",
            "{:.3f}",
            "chance: the share of the more frequent label, at least 0.5",
        ),
    )

    def uniform_loss(self, model: ModelConfig) -> float:
        return super().uniform_loss(model) + math.log(2)

    def collate(self, rows: Batch, draw: Draw) -> Batch:
        count = len(rows["input_ids"])
        return {
            **super().collate(rows, draw),
            "nsp_positions": np.zeros((count, 1), np.int32),
            "nsp_labels": rows["is_random"][:, None].astype(np.int32),
            "nsp_weights": np.ones((count, 1), np.float32),
        }

    def sums(
        self, outputs: dict[str, Any], batch: dict[str, jax.Array], *, z_loss: float = 0.0
    ) -> Sums:
        weights = batch["nsp_weights"]
        masked = super().sums(outputs, batch, z_loss=z_loss)
        loss, hits = cross_entropy(outputs["nsp_logits"], batch["nsp_labels"])
        return {
            **masked,
            "nsp_loss": jnp.sum(weights * loss),
            "nsp_hits": jnp.sum(weights * hits),
            "nsp_count": jnp.sum(weights),
        }

    def forward_flops(self, model: ModelConfig, phase: PhaseConfig) -> int:
        """The last block computes only the positions that the heads read: masked positions and the
        first one of each pair.
        """
        read, pairs = phase.max_predictions, phase.sequences
        encoder = encoder_flops(model, length=phase.sequence_length, read=read + pairs)
        heads = masked_lm_flops(model, predictions=read) + pairs * pooler_flops(model, classes=2)
        return encoder + heads


MLM_NSP = MaskedLanguageModelAndNextSentence()
