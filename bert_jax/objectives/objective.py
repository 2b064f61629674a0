"""An objective says all about itself in one place, and everything else reads it there.

Feed, step, evaluation, logs, closing table, model card and plan know no objective by name: they ask
for its parts, its batch, its sums, its figures and its FLOPs.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from bert_jax import progress
from bert_jax.config import ModelConfig, PhaseConfig, TrainConfig
from bert_jax.data.pretraining.batch import Batch, Draw, Field
from bert_jax.model import bert
from bert_jax.model.dropout import DropoutKey
from bert_jax.model.losses import Sums


class Figure(NamedTuple):
    """A held-out figure as people see it: in the log, the closing table and the model card."""

    name: str  # in the rows of metrics.jsonl
    title: str
    format: str = "{:.3f}"
    # What it is compared with, in the closing table.
    compared_with: str = ""

    def shown(self, value: float) -> str:
        """Returns a value of it as it is printed, with its unit."""
        if abs(value) < progress.LONG:
            return self.format.format(value)
        return progress.number(value) + self.format.partition("}")[2]

    @property
    def heading(self) -> str:
        """Returns the title with its unit: "MLM loss (nats)"."""
        unit = self.format.partition("}")[2].strip()
        return f"{self.title} ({unit})" if unit else self.title


class Objective:
    """The base of all objectives; the defaults fit sums of means over weighted positions.

    A loss called `NAME` has an array `NAME_weights` in the batch, and its sums are `NAME_loss`,
    `NAME_hits` and `NAME_count`.
    """

    # As the config has it.
    name: str
    # The parts of the model that it needs (registry.PARTS).
    parts: tuple[str, ...]
    # The losses that are added, each a mean over the global batch, and what each is multiplied by.
    losses: Mapping[str, float]
    # Every array of a batch.
    fields: Mapping[str, Field]
    # What is shown of an evaluation.
    figures: tuple[Figure, ...] = ()
    # The kinds of rows that it can learn from (registry.SEQUENCE_FORMATS); none means any.
    rows: tuple[str, ...] = ()
    # How many texts a row has for it: 2 for pairs (data/pairs/).
    texts: int = 1
    # Whether `sums` takes `z_loss`, which is `optimizer.z_loss` in training.
    takes_z_loss: bool = False
    # Whether its loss depends on the batch as a whole, such as a softmax over all texts of a batch.
    # Then `forward` sees the whole batch, and goes through the encoder in as many microbatches as
    # the config has.
    needs_whole_batch: bool = False
    # Whether `sums` takes the scores of masked words as `compute.loss_slices` has them.
    takes_slices: bool = False

    def collate(self, rows: Batch, draw: Draw) -> Batch:
        """Returns the arrays of `fields` for some rows, as `data.sequence_format` has read them.

        A pure function: `draw` decides all that is drawn.
        """
        raise NotImplementedError

    def sums(
        self, outputs: dict[str, Any], batch: dict[str, jax.Array], *, z_loss: float = 0.0
    ) -> Sums:
        """Returns what is added up over a batch: loss, hits and weights of each loss.

        `z_loss` is handed over only where the objective `takes_z_loss`: others need not have it.
        """
        raise NotImplementedError

    def forward(
        self,
        params: bert.Params,
        batch: dict[str, jax.Array],
        *,
        config: TrainConfig,
        key: DropoutKey | None,
    ) -> Sums:
        """Returns the sums of a batch; `key=None` means evaluation.

        One pass through the model, unless an objective needs another.
        """
        outputs = bert.apply(
            params,
            batch,
            config=config.model,
            head=config.head,
            compute=config.compute,
            key=key,
            loss_slices=config.compute.loss_slices,
        )
        if key is None or not config.optimizer.z_loss:
            return self.sums(outputs, batch)
        return self.sums(outputs, batch, z_loss=config.optimizer.z_loss)

    def counts(self, batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
        """Returns the weights of the whole global batch, by which each loss is divided."""
        return {name: jnp.maximum(jnp.sum(batch[f"{name}_weights"]), 1.0) for name in self.losses}

    def loss(self, sums: Sums, counts: dict[str, jax.Array]) -> Any:
        """Returns the loss: a ratio of global sums for each part of it, added.

        Summed over microbatches, the ratios are those of the whole batch.
        """
        return sum(
            _scaled(sums[f"{name}_loss"] / counts[name], weight)
            for name, weight in self.losses.items()
        )

    def metrics(self, sums: Sums) -> dict[str, Any]:
        """Returns `loss`, and for each part of it `NAME_loss` and `NAME_accuracy`."""
        result = {}
        for name in self.losses:
            count = jnp.maximum(sums[f"{name}_count"], 1.0)  # nothing counted: 0 / 1
            result[f"{name}_loss"] = sums[f"{name}_loss"] / count
            result[f"{name}_accuracy"] = sums[f"{name}_hits"] / count
        total = sum(_scaled(result[f"{name}_loss"], w) for name, w in self.losses.items())
        return {"loss": total, **result}

    def watched(self) -> list[str]:
        """Returns the figures of an evaluation that hooks may watch: the losses, and `figures`."""
        each = [f"{name}_{figure}" for name in self.losses for figure in ("loss", "accuracy")]
        more = ["perplexity"] if "mlm" in self.losses else []
        return [*dict.fromkeys(("loss", *each, *more, *(figure.name for figure in self.figures)))]

    def uniform_loss(self, model: ModelConfig) -> float | None:
        """Returns the loss, in nats, of a model that gives every answer the same probability, by
        which a run is known that has diverged; None where there is no such number.
        """
        return None

    def summarise(self, sums: Mapping[str, Any]) -> dict[str, float]:
        """Returns the held-out metrics from sums over all held-out batches, float64."""
        found = self.metrics({name: jnp.float32(value) for name, value in sums.items()})
        result = {name: float(value) for name, value in found.items()}
        if "mlm_loss" in result:
            # exp overflows float64 at 709; a loss up there is no language model's.
            result["perplexity"] = math.exp(min(result["mlm_loss"], 700.0))
        return result

    def forward_flops(self, model: ModelConfig, phase: PhaseConfig) -> int:
        """Returns the FLOPs of the matrix products of one row's forward pass.

        A multiply and an add count two.
        """
        raise NotImplementedError


def _scaled(value: Any, weight: float) -> Any:
    return value if weight == 1.0 else weight * value
