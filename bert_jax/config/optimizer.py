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
    """Linear warmup, then linear decay to 0, as in google-research/bert."""


@section
class Optimizer(Kind, table=OPTIMIZERS):
    """The optimizer, its learning-rate schedule and its options."""

    default_kind = "bert_adamw"

    schedule: Schedule = setting(BertLinear(), "Learning-rate schedule over the run.")
    learning_rate: Positive = setting(1e-4, "Learning rate between the warmup and the decay.")
    warmup_steps: int = setting(
        10_000, "Steps of the linear warmup from 0; fewer than the run has."
    )
    beta1: Rate = setting(0.9, "Decay rate of the first moment.")
    beta2: Rate = setting(0.999, "Decay rate of the second moment.")
    epsilon: Positive = setting(1e-6, "Added to the square root of the second moment.")
    weight_decay: NonNegative = setting(0.01, "Decoupled weight decay of kernels and embeddings.")
    clip_norm: NonNegative = setting(1.0, "Maximum global gradient norm; 0 disables clipping.")
    frozen_layers: Natural = setting(
        0,
        "Number of first layers to freeze, together with the embeddings; 0 trains all parameters. "
        "The MFU still counts the FLOPs of frozen layers.",
    )
    gradient_accumulation_steps: Count = setting(
        1,
        "Microbatches per batch, to reduce memory. The update stays the same; a contrastive loss "
        "uses the negatives of the whole batch.",
    )
    spike_factor: NonNegative = setting(
        0.0, "Skip updates whose gradient norm exceeds the usual one by this factor; 0 skips none."
    )
    max_skipped_updates: Natural = setting(
        100, "Maximum number of skipped updates; one more ends the run with exit code 6.", free=True
    )
    z_loss: NonNegative = setting(
        0.0, "Weight of the z-loss, the squared log normalizer of masked-LM logits; 1e-4 is usual."
    )

    def transformation(self) -> Any:
        """Returns an `optax.GradientTransformation` at a learning rate of 1, or a `Direction`
        (update/optimizers.py). A kind that is a class overrides it.
        """
        return self.entry()(self)


@section
class OptimizerConfig(Optimizer, kind="bert_adamw"):
    """AdamW of BERT (google-research/bert optimization.py)."""

    bias_correction: bool = setting(False, "Whether Adam uses bias correction, as in its paper.")
