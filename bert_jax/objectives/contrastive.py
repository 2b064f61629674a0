"""Vectors of texts from pairs: each query finds its own document among those of the global batch.

The loss depends on the batch as a whole, so that microbatches are no smaller batches: the encoder
goes through them one after the other, and the loss sees the vectors of all (Gao et al. 2021,
GradCache, arXiv:2101.06983). The backward pass computes the outputs of a microbatch again, with the
same dropout, which is a function of the row.

Dims: B rows, P texts in a row, T texts of an example (a query and its documents), N examples, D
width.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.config import EmbeddingConfig, HeadConfig, ModelConfig, PhaseConfig, TrainConfig
from bert_jax.data.pairs.texts import fields_of_texts, text_ids
from bert_jax.data.pretraining.batch import INPUTS, Batch, Draw
from bert_jax.model import bert
from bert_jax.model.dropout import DropoutKey
from bert_jax.model.encoder import gather_early
from bert_jax.model.flops import encoder_flops
from bert_jax.model.losses import Sums
from bert_jax.model.microbatches import in_microbatches, joined_microbatches
from bert_jax.model.sharding import reshaped
from bert_jax.objectives.objective import Figure, Objective
from bert_jax.objectives.pair_losses import Texts
from bert_jax.objectives.task import TaskObjective

# What the encoder reads.
_READ = (*INPUTS, "text_positions")


class Contrastive(Objective):
    """The loss that `embedding.loss` names, of examples with two texts."""

    name = "contrastive"
    parts = ("embedding",)
    losses = {"contrastive": 1.0}
    texts = 2
    needs_whole_batch = True
    fields = fields_of_texts(2)
    figures = (
        Figure("contrastive_loss", "contrastive loss", "{:.3f} nats"),
        Figure("contrastive_accuracy", "own document found"),
    )

    def collate(self, rows: Batch, draw: Draw) -> Batch:
        ids = text_ids(rows, texts=2)
        weights = np.ones((len(ids), 1), np.float32)
        return {name: rows[name] for name in _READ} | {"text_ids": ids, "weights": weights}

    def forward(
        self,
        params: bert.Params,
        batch: dict[str, jax.Array],
        *,
        config: TrainConfig,
        key: DropoutKey | None,
    ) -> Sums:
        examples = batch["weights"].size

        def of_examples(x: jax.Array) -> jax.Array:
            return reshaped(x, (examples, -1, *x.shape[2:]))

        vectors_NTD = of_examples(vectors(params, batch, config=config, key=key))
        no_scores_NC = jnp.zeros_like(vectors_NTD[:, 1:, 0])
        texts = Texts(
            queries_ND=vectors_NTD[:, 0],
            documents_NCD=vectors_NTD[:, 1:],
            weights_N=of_examples(batch["weights"])[:, 0],
            ids_NT=of_examples(batch["text_ids"]),
            scores_NC=of_examples(batch["labels"]) if "labels" in batch else no_scores_NC,
        )
        return pair_sums(texts, config.embedding)

    def counts(self, batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
        return {"contrastive": jnp.maximum(jnp.sum(batch["weights"]), 1.0)}

    def forward_flops(self, model: ModelConfig, phase: PhaseConfig) -> int:
        """The products of the vectors with each other are left out: a thousandth of the encoder's
        at a batch of 32,768 and a width of 768.
        """
        return encoder_flops(model, length=phase.sequence_length)


def vectors(
    params: bert.Params,
    batch: dict[str, jax.Array],
    *,
    config: TrainConfig,
    key: DropoutKey | None,
) -> jax.Array:
    """Returns the vectors of the texts of each row `[B, P, D]`, float32.

    With a key, and `optimizer.gradient_accumulation_steps` above 1, the rows go through the encoder
    in that many microbatches, of which the backward pass keeps nothing but their vectors.
    """
    inputs = {name: batch[name] for name in _READ}
    apply = functools.partial(
        bert.apply, config=config.model, head=config.head, compute=config.compute
    )

    def encode(params: bert.Params, inputs: dict[str, jax.Array], key: Any) -> jax.Array:
        return apply(params, inputs, key=key)["embeddings"]

    microbatches = config.optimizer.gradient_accumulation_steps
    if key is None or microbatches == 1:
        return encode(params, inputs, key)
    # Once, and not for each microbatch: gradients are summed over devices where they come back.
    params = gather_early(params, config.compute)

    def one(_: None, part: Any) -> tuple[None, jax.Array]:
        inputs, rows_B = part
        return None, jax.checkpoint(encode)(params, inputs, dataclasses.replace(key, rows_B=rows_B))

    _, found = jax.lax.scan(one, None, in_microbatches((inputs, key.rows_B), microbatches))
    return joined_microbatches(found)


def pair_sums(texts: Texts, options: EmbeddingConfig) -> Sums:
    """Returns the sums of a batch.

    The loss of several widths is the sum of the losses (MatryoshkaLoss of sentence-transformers
    with weights of 1; FlagEmbedding has the mean).
    """
    is_cosine = options.similarity == "cosine"
    found = [
        options.loss.mean(texts.with_width(width, is_cosine=is_cosine))
        for width in (texts.queries_ND.shape[1], *options.dims)
    ]
    count = jnp.sum(texts.weights_N)
    return {
        "contrastive_loss": sum(loss for loss, _ in found) * count,
        "contrastive_hits": found[0][1] * count,
        "contrastive_count": count,
    }


class PairObjective(Contrastive):
    """The loss of a task of pairs: an example may have more than two texts, and scores."""

    name = "task"
    fields = {}
    # What evaluation and prediction read.
    output = "embeddings"

    def metrics(self, sums: Sums) -> dict[str, Any]:
        found = super().metrics(sums)
        return {"loss": found["loss"], "accuracy": found["contrastive_accuracy"]}


def task_objective(head: HeadConfig) -> TaskObjective | PairObjective:
    """Returns the objective of fine-tuning with a head."""
    return PairObjective() if "embedding" in head.parts else TaskObjective(head)


CONTRASTIVE = Contrastive()
