"""The base of all objectives: everything else reads the properties of an objective here.

Data feed, step, evaluation, logs, model card and cost estimate know no objective by name: they use
its model parts, batch arrays, sums, metrics and FLOPs.
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
    """A validation metric as shown to users: in the log, the closing table and the model card."""

    # Its name in the records of metrics.jsonl.
    name: str
    title: str
    format: str = "{:.3f}"
    # The value it is compared with, in the closing table.
    compared_with: str = ""

    def shown(self, value: float) -> str:
        """Returns a value formatted with its unit."""
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

    # The name in the config.
    name: str
    # The parts of the model that it needs (registry.PARTS).
    parts: tuple[str, ...]
    # The losses that are added, each a mean over the global batch, and their factors.
    losses: Mapping[str, float]
    # All arrays of a batch.
    fields: Mapping[str, Field]
    # The metrics of an evaluation that are shown.
    figures: tuple[Figure, ...] = ()
    # The kinds of rows that it supports (registry.SEQUENCE_FORMATS); empty means all.
    rows: tuple[str, ...] = ()
    # Texts per row: 2 for pairs (data/pairs/).
    texts: int = 1
    # Whether `sums` takes `z_loss`, which is `optimizer.z_loss` in training.
    takes_z_loss: bool = False
    # Whether its loss depends on the batch as a whole, for example a softmax over all texts of a
    # batch. If so, `forward` gets the whole batch, and splits it into microbatches itself.
    needs_whole_batch: bool = False
    # Whether `sums` takes the scores of masked tokens in slices (`compute.loss_slices`).
    takes_slices: bool = False

    def collate(self, rows: Batch, draw: Draw) -> Batch:
        """Returns the arrays of `fields` for some rows, as read by `data.sequence_format`.

        A pure function: all randomness comes from `draw`.
        """
        raise NotImplementedError

    def sums(
        self, outputs: dict[str, Any], batch: dict[str, jax.Array], *, z_loss: float = 0.0
    ) -> Sums:
        """Returns the sums over a batch: loss, hits and weights of each loss.

        `z_loss` is passed only if the objective `takes_z_loss`; others may omit the argument.
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

        The default is one pass through the model.
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
        """Returns the total weight of each loss in the global batch, its divisor."""
        return {name: jnp.maximum(jnp.sum(batch[f"{name}_weights"]), 1.0) for name in self.losses}

    def loss(self, sums: Sums, counts: dict[str, jax.Array]) -> Any:
        """Returns the loss: the sum of one ratio of global sums per part.

        The sums may be accumulated over microbatches, which does not change the ratios.
        """
        return sum(
            _scaled(sums[f"{name}_loss"] / counts[name], weight)
            for name, weight in self.losses.items()
        )

    def metrics(self, sums: Sums) -> dict[str, Any]:
        """Returns `loss`, and `NAME_loss` and `NAME_accuracy` for each part of it."""
        result = {}
        for name in self.losses:
            count = jnp.maximum(sums[f"{name}_count"], 1.0)  # without predictions: 0 / 1
            result[f"{name}_loss"] = sums[f"{name}_loss"] / count
            result[f"{name}_accuracy"] = sums[f"{name}_hits"] / count
        total = sum(_scaled(result[f"{name}_loss"], w) for name, w in self.losses.items())
        return {"loss": total, **result}

    def watched(self) -> list[str]:
        """Returns the validation metrics that hooks may follow: the losses, and `figures`."""
        each = [f"{name}_{figure}" for name in self.losses for figure in ("loss", "accuracy")]
        more = ["perplexity"] if "mlm" in self.losses else []
        return [*dict.fromkeys(("loss", *each, *more, *(figure.name for figure in self.figures)))]

    def uniform_loss(self, model: ModelConfig) -> float | None:
        """Returns the loss, in nats, of a model that gives every answer the same probability, the
        reference for detecting divergence; None if it is unknown.
        """
        return None

    def summarise(self, sums: Mapping[str, Any]) -> dict[str, float]:
        """Returns the validation metrics from float64 sums over all validation batches."""
        found = self.metrics({name: jnp.float32(value) for name, value in sums.items()})
        result = {name: float(value) for name, value in found.items()}
        if "mlm_loss" in result:
            # exp overflows float64 at 709; a useful model never has such a loss.
            result["perplexity"] = math.exp(min(result["mlm_loss"], 700.0))
        return result

    def forward_flops(self, model: ModelConfig, phase: PhaseConfig) -> int:
        """Returns the FLOPs of the matmuls of one row's forward pass (a multiply-add is two)."""
        raise NotImplementedError


def _scaled(value: Any, weight: float) -> Any:
    return value if weight == 1.0 else weight * value
