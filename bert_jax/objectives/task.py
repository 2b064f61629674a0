"""The fine-tuning objective: one loss, determined by the head of the task.

Dims: B batch, L length, C classes, P texts of a row.
"""

from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.config import HeadConfig
from bert_jax.model.losses import Sums, cross_entropy
from bert_jax.objectives.objective import Objective

# The name of each head's outputs.
LOGITS = {
    "sequence_classifier": "sequence_logits",
    "token_classifier": "token_logits",
    "span_classifier": "span_logits",
}


class TaskObjective(Objective):
    """The loss of the task's head, as a mean over the weights of a batch."""

    name = "task"
    # The batch has `labels` and `weights`, filled by the task.
    losses = {"task": 1.0}
    fields = {}

    def __init__(self, head: HeadConfig):
        self.parts = head.parts
        self._has_hits = head.parts[-1] != "sequence_classifier" or bool(head.labels)

    @property
    def output(self) -> str:
        """Returns the name of the head's outputs."""
        return next(LOGITS[part] for part in self.parts if part in LOGITS)

    def counts(self, batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
        return {"task": jnp.maximum(jnp.sum(batch["weights"]), 1.0)}

    def sums(self, outputs: dict[str, Any], batch: dict[str, jax.Array]) -> Sums:
        """Sums the loss of the head: cross-entropy for classes of texts or tokens, squared error
        for a number (without hits).

        A batch has one text per row, or P texts with their positions (`data/tasks/packing.py`). The
        loss of a span is the mean of the cross-entropies of its first and last token, over all
        tokens without padding; a hit needs both.
        """
        weights, labels = batch["weights"], batch["labels"]
        if "span_logits" in outputs:
            is_token_BL = batch["sequence_ids"] > 0
            ends = [
                cross_entropy(
                    jnp.where(is_token_BL, outputs["span_logits"][:, :, end], -1e9),
                    labels[:, end],
                )
                for end in range(2)
            ]
            loss = (ends[0][0] + ends[1][0]) / 2
            hits = ends[0][1] * ends[1][1]
        elif "token_logits" in outputs:
            loss, hits = cross_entropy(outputs["token_logits"], labels)
        elif outputs["sequence_logits"].shape[-1] > 1:
            loss, hits = cross_entropy(outputs["sequence_logits"], labels)
        else:
            loss = jnp.square(outputs["sequence_logits"][..., 0] - labels)
            hits = jnp.zeros_like(loss)
        return {
            "task_loss": jnp.sum(weights * loss),
            "task_hits": jnp.sum(weights * hits),
            "task_count": jnp.sum(weights),
        }

    def metrics(self, sums: Sums) -> dict[str, Any]:
        count = jnp.maximum(sums["task_count"], 1.0)
        found = {"loss": sums["task_loss"] / count}
        # Regression has no accuracy.
        return found | ({"accuracy": sums["task_hits"] / count} if self._has_hits else {})
