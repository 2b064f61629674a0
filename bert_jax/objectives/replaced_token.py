"""Replaced-token detection (Clark et al. 2020, ELECTRA): a generator fills the masked positions,
and the encoder predicts for each token whether it is the original.

Dims: B batch, L length, M masked positions, K bins of scores.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.config import ModelConfig, PhaseConfig, TrainConfig
from bert_jax.data.pretraining.batch import Batch, Draw, Field
from bert_jax.model import bert
from bert_jax.model.dropout import DropoutKey
from bert_jax.model.flops import discriminator_flops, encoder_flops, masked_lm_flops
from bert_jax.model.heads.replaced_token import GENERATOR_HEAD, generator_params
from bert_jax.model.losses import Sums
from bert_jax.model.sampling import sample
from bert_jax.objectives.mlm import MLM, MaskedLanguageModel
from bert_jax.objectives.objective import Figure

# Weight of the discriminator's loss, which is much smaller (Clark et al. 2020, section 3.1; table
# 6).
_WEIGHT = 50.0
# The dropout of the generator counts as a separate layer, after the heads (model/bert.py).
_GENERATOR_LAYER = 2**31 + 2
# The purpose number of a row's noise; masks use numbers from 0.
_NOISE = 2**31
# The ROC curve is computed from counts of scores (logits) in bins of this width around 0.
_BINS, _BIN_WIDTH = 400, 0.05


class ReplacedTokenDetection(MaskedLanguageModel):
    """The generator's mean over the predicted tokens, plus 50 times the mean binary cross-entropy
    over all tokens, [CLS] and [SEP] included.
    """

    name = "rtd"
    parts = ("generator", "discriminator")
    losses = {"mlm": 1.0, "rtd": _WEIGHT}
    takes_z_loss = False
    takes_slices = False
    fields = {
        **MLM.fields,
        # 1 on tokens, 0 on padding.
        "rtd_weights": Field("L", np.float32),
        # Two words of random bits per prediction, for the noise of its sample.
        "rtd_noise_1": Field("M", np.int32),
        "rtd_noise_2": Field("M", np.int32),
    }
    figures = (
        Figure("mlm_loss", "generator's MLM loss", "{:.3f} nats", "unigram entropy"),
        Figure("sampled_accuracy", "correct samples"),
        Figure("rtd_loss", "discriminator's loss", "{:.4f} nats"),
        Figure("replaced_share", "tokens replaced", "{:.4f}"),
        Figure("rtd_precision", "precision"),
        Figure("rtd_recall", "recall"),
        Figure("rtd_auc", "AUC", "{:.4f}", "0.5: chance"),
    )

    def collate(self, rows: Batch, draw: Draw) -> Batch:
        """Makes the masks as `mlm` does, and draws the noise of each example's predictions.

        The number of an example follows from the step and the row in the global batch: samples
        depend only on (seed, step, global row), so that they are equal on any mesh, after a resume,
        for packed rows, and in each evaluation.
        """
        masked = super().collate(rows, draw)
        noise = draw.position_keys(_NOISE, masked["mlm_positions"])
        words = noise[..., None].view(np.int32)
        return {
            **masked,
            "rtd_weights": (masked["sequence_ids"] > 0).astype(np.float32),
            "rtd_noise_1": words[..., 0],
            "rtd_noise_2": words[..., 1],
        }

    def forward(
        self,
        params: bert.Params,
        batch: dict[str, jax.Array],
        *,
        config: TrainConfig,
        key: DropoutKey | None,
    ) -> Sums:
        """Makes two passes: the generator at the masked positions, and the encoder over the
        corrupted rows.
        """
        model = config.model
        generated = bert.apply(
            generator_params(params, model),
            batch,
            config=model.generator(),
            head=GENERATOR_HEAD,
            compute=config.compute,
            key=None if key is None else key.fold(_GENERATOR_LAYER),
        )
        samples_BM = sample(
            generated["mlm_logits"],
            keys=(batch["rtd_noise_1"], batch["rtd_noise_2"]),
            vocab_size=model.vocab_size,
        )
        corrupted_BL, is_replaced_BL = corrupt(batch, samples_BM)
        found = bert.apply(
            params,
            batch | {"input_ids": corrupted_BL},
            config=model,
            head=config.head,
            compute=config.compute,
            key=key,
        )
        outputs = {
            **generated,
            "replaced_logits": found["replaced_logits"],
            "samples": samples_BM,
            "is_replaced": is_replaced_BL,
        }
        return self.sums(outputs, batch)

    def sums(self, outputs: dict[str, Any], batch: dict[str, jax.Array]) -> Sums:
        """Also sums the terms of precision, recall and AUC; the AUC uses histograms of scores,
        `[K]` for replaced and for original tokens.
        """
        weights, label = batch["rtd_weights"], outputs["is_replaced"].astype(jnp.float32)
        logits = outputs["replaced_logits"]
        loss = jax.nn.softplus(logits) - label * logits
        flagged = (logits > 0).astype(jnp.float32)
        is_right = (outputs["samples"] == batch["mlm_targets"]).astype(jnp.float32)
        bin_BL = jnp.clip(jnp.floor(logits / _BIN_WIDTH) + _BINS // 2, 0, _BINS - 1)
        is_in_BLK = bin_BL[..., None] == jnp.arange(_BINS, dtype=jnp.float32)

        def histogram(weights_BL: jax.Array) -> jax.Array:
            return jnp.sum(jnp.where(is_in_BLK, weights_BL[..., None], 0.0), axis=(0, 1))

        return {
            **super().sums(outputs, batch),
            "sampled_hits": jnp.sum(batch["mlm_weights"] * is_right),
            "rtd_loss": jnp.sum(weights * loss),
            "rtd_hits": jnp.sum(weights * (flagged == label)),
            "rtd_count": jnp.sum(weights),
            "rtd_replaced": jnp.sum(weights * label),
            "rtd_flagged": jnp.sum(weights * flagged),
            "rtd_found": jnp.sum(weights * label * flagged),
            "rtd_scores_replaced": histogram(weights * label),
            "rtd_scores_original": histogram(weights * (1 - label)),
        }

    def metrics(self, sums: Sums) -> dict[str, Any]:
        def share(name: str, of: str) -> jax.Array:
            return sums[name] / jnp.maximum(sums[of], 1.0)

        return {
            **super().metrics(sums),
            "sampled_accuracy": share("sampled_hits", "mlm_count"),
            "replaced_share": share("rtd_replaced", "rtd_count"),
            "rtd_precision": share("rtd_found", "rtd_flagged"),
            "rtd_recall": share("rtd_found", "rtd_replaced"),
            "rtd_auc": auc(sums["rtd_scores_replaced"], sums["rtd_scores_original"]),
        }

    def uniform_loss(self, model: ModelConfig) -> float:
        """Returns ln V + 50 ln 2: 44.98 for BERT's vocabulary."""
        return math.log(model.vocab_size) + _WEIGHT * math.log(2)

    def forward_flops(self, model: ModelConfig, phase: PhaseConfig) -> int:
        """The generator's last block computes the masked positions, the encoder's all positions."""
        length, read = phase.sequence_length, phase.max_predictions
        generator = model.generator()
        return (
            encoder_flops(generator, length=length, read=read)
            + masked_lm_flops(generator, predictions=read)
            + encoder_flops(model, length=length)
            + discriminator_flops(model, length=length)
        )


def corrupt(batch: dict[str, jax.Array], samples_BM: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the original ids with the samples inserted, int32 `[B, L]`, and where a sample
    differs from the original, bool `[B, L]`.

    Every predicted position gets a sample, even if the generator saw the original token. Therefore
    no [MASK] remains, and the original row is not needed except for the targets.
    """
    length = batch["input_ids"].shape[1]
    is_used_BM1 = batch["mlm_weights"][..., None] > 0
    at_BML = jax.nn.one_hot(batch["mlm_positions"], length, dtype=bool) & is_used_BM1
    differs_BM = samples_BM != batch["mlm_targets"]
    sampled_BL = jnp.sum(jnp.where(at_BML, samples_BM[..., None], 0), axis=1)
    corrupted_BL = jnp.where(jnp.any(at_BML, axis=1), sampled_BL, batch["input_ids"])
    return corrupted_BL, jnp.any(at_BML & differs_BM[..., None], axis=1)


def auc(replaced_K: jax.Array, original_K: jax.Array) -> jax.Array:
    """Returns the probability that a replaced token has a higher score than an original one, from
    counts by ascending score; equal bins count one half. 0.5 if either kind is absent.
    """
    count = jnp.sum(replaced_K) * jnp.sum(original_K)
    replaced_K = replaced_K / jnp.maximum(jnp.sum(replaced_K), 1.0)
    original_K = original_K / jnp.maximum(jnp.sum(original_K), 1.0)
    below_K = jnp.cumsum(original_K) - original_K / 2
    return jnp.where(count > 0, jnp.sum(replaced_K * below_K), 0.5)


REPLACED_TOKEN = ReplacedTokenDetection()
