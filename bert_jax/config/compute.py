"""Sections of a config: how, where and how often, which changes no result beyond rounding."""

from typing import Literal

from bert_jax.config.fields import Count, Natural, NonNegative, section, setting
from bert_jax.registry import ATTENTION


@section
class ComputeConfig:
    """How the step is computed. No option changes the result, beyond rounding."""

    free = True

    # Master weights, softmax, normalization, loss and update are float32.
    dtype: Literal["bfloat16", "float32"] = setting(
        "bfloat16",
        "The type of matmuls and activations. Everything else is float32, except for the sums over "
        "tokens in the gradients of embeddings and biases, which a CPU adds in this type.",
        free=False,
    )
    remat: Literal["none", "full", "dots"] = setting(
        "none",
        "What the backward pass computes again: `none`, `full` (whole layers) or `dots` (all but "
        "the matmuls with weights).",
    )
    layer_loop: Literal["unroll", "scan"] = setting(
        "unroll",
        "`unroll` gives the fastest step, `scan` (a loop over one layer) the fastest compilation.",
    )
    weight_gather: Literal["per_step", "per_layer"] = setting(
        "per_step",
        "When sharded weights are gathered: `per_step`, and kept for the backward pass, or "
        "`per_layer`, and again in the backward pass (less memory, more traffic).",
    )
    attention: str = setting(
        "auto",
        "What computes attention; `auto` chooses for each kind of layer by length, device and what "
        "the model needs ([what computes attention](lineage.md#what-computes-attention)).",
        choices=ATTENTION,
    )
    loss_slices: Count = setting(
        1,
        "Slices of the vocabulary in which the masked-LM loss is computed, and its scores again in "
        "the backward pass; 1 keeps the scores whole.",
    )


@section
class MeshConfig:
    """How the devices are arranged and what they share (docs/parallelism.md)."""

    free = True

    # Groups of devices joined by a slower network.
    slices: Count = setting(1, "Slices of a multi-slice TPU job.")
    fsdp: int = setting(-1, "Devices of a slice that share a batch; -1 takes all that remain.")
    tensor: Count = setting(
        1, "Devices that share each matmul; divides the heads and the inner width."
    )
    shard_weights: bool = setting(
        True, "Whether `fsdp` also shards weights, moments and the update."
    )


@section
class EvaluationConfig:
    """Evaluation on the validation split: the same examples with the same masks every time."""

    free = True

    every_steps: Natural = setting(
        10_000, "Steps between evaluations; 0: only at the end of each phase."
    )
    num_examples: Count = setting(4096, "Validation examples to use; all, if there are fewer.")
    batch_size: Count = setting(
        256, "Rows in one evaluation batch; rounded up to a multiple of the devices."
    )


@section
class CheckpointConfig:
    """When to save and what to keep. The last step is always saved."""

    free = True

    every_steps: Count = setting(
        1000, "Steps between checkpoints; the end of each phase is always saved."
    )
    # On a slice 1000 steps pass in a minute, and a save is gigabytes.
    every_minutes: NonNegative = setting(
        0.0,
        "Minutes between checkpoints, instead of steps; 0 uses `every_steps`. The configs for "
        "slices have 10.",
    )
    keep_last: Count = setting(3, "How many of the newest checkpoints are kept.")
    keep_every: Natural = setting(
        0, "Steps divisible by this are kept forever; 0 keeps none beyond `keep_last`."
    )
    max_failed_saves: Natural = setting(
        3,
        "Consecutive saves that may fail while training continues; one more ends the run with exit "
        "code 7, or 75 if the network is the cause.",
    )
