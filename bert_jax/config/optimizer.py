"""The section of a config with the optimizer and its learning-rate schedule."""

from collections.abc import Iterator
from typing import Any, ClassVar

from bert_jax.config.fields import (
    Count,
    Kind,
    Natural,
    NonNegative,
    Positive,
    Rate,
    section,
    setting,
)
from bert_jax.registry import OPTIMIZERS, SCHEDULES


@section
class Schedule(Kind, table=SCHEDULES):
    """The base of the learning-rate schedules (update/schedules.py)."""

    default_kind = "bert_linear"
    # The options that count steps: a shorter run has fewer.
    in_steps: ClassVar[tuple[str, ...]] = ()

    def rate(self, step: Any, *, config: "Optimizer", total_steps: int) -> Any:
        """Returns the float32 learning rate of update `step`, an int32 scalar from 0."""
        return self.entry()(step, config=config, total_steps=total_steps)

    def problems(self, config: "Optimizer", total_steps: int) -> Iterator[tuple[str, str]]:
        """Yields the name of each option that is impossible in `total_steps`, and a message."""
        yield from ()


@section
class BertLinear(Schedule, kind="bert_linear"):
    """The schedule of BERT."""


@section
class Optimizer(Kind, table=OPTIMIZERS):
    """The base of the optimizers: the options that all of them have."""

    default_kind = "bert_adamw"

    schedule: Schedule = setting(
        BertLinear(), "How the learning rate changes over the run, see [below](#schedules)."
    )
    learning_rate: Positive = setting(
        1e-4, "Where the warm-up line would end, and the decay line starts."
    )
    warmup_steps: int = setting(10_000, "Steps of linear rise from 0; fewer than the run has.")
    beta1: Rate = setting(0.9, "Decay of the first moment.")
    beta2: Rate = setting(0.999, "Decay of the second moment.")
    epsilon: Positive = setting(1e-6, "Added to the root of the second moment.")
    weight_decay: NonNegative = setting(0.01, "Decoupled decay of kernels and embeddings.")
    clip_norm: NonNegative = setting(
        1.0, "Largest global norm of the gradient; 0 disables clipping."
    )
    frozen_layers: Natural = setting(
        0,
        "1 or more keeps the parameters of the embeddings and of the first layers, this many; MFU "
        "still counts their FLOPs.",
    )
    gradient_accumulation_steps: Count = setting(
        1,
        "Microbatches per batch, to fit in memory; the update is the same. A contrastive loss sees "
        "the vectors of all microbatches: their negatives are those of the whole batch.",
    )
    spike_factor: NonNegative = setting(
        0.0,
        "An update is skipped if its gradient norm is this many times the usual norm "
        "([numbers that go wrong](reliability.md#numbers-that-go-wrong)); 0 disables the check.",
    )
    max_skipped_updates: Natural = setting(
        100, "Skipped updates a run may have; one more ends it with exit code 6.", free=True
    )
    z_loss: NonNegative = setting(
        0.0,
        "Weight of the squared log normalizer of the masked-LM logits in the gradient; 1e-4 is "
        "usual ([z-loss](lineage.md#the-loss-of-masked-words)).",
    )

    def transformation(self) -> Any:
        """Returns an `optax.GradientTransformation` at a learning rate of 1, or a `Direction`
        (update/optimizers.py). A kind that is a class overrides it.
        """
        return self.entry()(self)


@section
class OptimizerConfig(Optimizer, kind="bert_adamw"):
    """AdamW of BERT (google-research/bert optimization.py)."""

    bias_correction: bool = setting(False, "Whether Adam corrects the bias, as in its paper.")
