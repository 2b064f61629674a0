"""Sections of a config: how, where and how often, which changes no result beyond rounding."""

from typing import Literal

from bert_jax.config.fields import Count, Natural, NonNegative, section, setting
from bert_jax.registry import ATTENTION


@section
class ComputeConfig:
    """How the step is computed. These fields change the result by rounding only."""

    free = True

    # Master weights, softmax, normalization, loss and update are float32.
    dtype: Literal["bfloat16", "float32"] = setting(
        "bfloat16",
        "Data type of matmuls and activations. Weights, softmax, norms, loss and update use "
        "float32. On a CPU, gradients of embeddings and biases are also summed in this type.",
        free=False,
    )
    remat: Literal["none", "full", "dots"] = setting(
        "none",
        "Rematerialization in the backward pass: `none`, `full` (whole layers) or `dots` "
        "(everything except the matmuls with weights).",
    )
    layer_loop: Literal["unroll", "scan"] = setting(
        "unroll",
        "How the layers are compiled: `unroll` gives the fastest step, `scan` (a loop over one "
        "layer) the fastest compilation.",
    )
    weight_gather: Literal["per_step", "per_layer"] = setting(
        "per_step",
        "When sharded weights are gathered: `per_step` keeps them for the backward pass, "
        "`per_layer` gathers each layer again in the backward pass (less memory, more traffic).",
    )
    attention: str = setting(
        "auto",
        "Attention implementation; `auto` chooses per kind of layer by length, device and model.",
        choices=ATTENTION,
    )
    loss_slices: Count = setting(
        1,
        "Number of vocabulary slices of the masked-LM loss. More than 1 saves memory, because the "
        "logits are recomputed in the backward pass.",
    )


@section
class MeshConfig:
    """The mesh: how devices share the batch, the weights and each matmul."""

    free = True

    # Groups of devices joined by a slower network.
    slices: Count = setting(1, "Number of slices of a multi-slice TPU job.")
    fsdp: int = setting(-1, "Devices per slice that share the batch; -1 uses all remaining.")
    tensor: Count = setting(
        1, "Devices that share each matmul; a divisor of the attention heads and the inner width."
    )
    shard_weights: bool = setting(
        True, "Whether `mesh.fsdp` also shards weights, optimizer moments and the update."
    )


@section
class EvaluationConfig:
    """Evaluation on the validation split: the same examples with the same masks every time."""

    free = True

    every_steps: Natural = setting(10_000, "Steps between evaluations; 0 means at phase ends only.")
    num_examples: Count = setting(4096, "Validation examples to use; all if there are fewer.")
    batch_size: Count = setting(256, "Sequences per batch; rounded up to a multiple of devices.")


@section
class CheckpointConfig:
    """When to save and what to keep. The last step is always saved."""

    free = True

    every_steps: Count = setting(1000, "Steps between checkpoints; phase ends are also saved.")
    # On a slice 1000 steps pass in a minute, and a save is gigabytes.
    every_minutes: NonNegative = setting(
        0.0, "Minutes between checkpoints, in place of steps; 0 uses steps. TPU recipes use 10."
    )
    keep_last: Count = setting(3, "Number of newest checkpoints to keep.")
    keep_every: Natural = setting(
        0, "Also keep each checkpoint whose step is divisible by this; 0 keeps the newest only."
    )
    at_words: tuple[Count, ...] = setting(
        (),
        "Also save and keep forever the first step at which this many words of the corpus were "
        "seen, repeats included; for example `[1000000, 10000000]` (pre-training only).",
    )
    max_failed_saves: Natural = setting(
        3, "Consecutive failed saves that a run survives; then exit code 7, or 75 for the network."
    )
