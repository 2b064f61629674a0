"""Sections of a config: how, where and how often, which changes no number beyond rounding."""

from bert_jax.config.fields import FREE, PRETRAINING, Rule, section, setting
from bert_jax.registry import ATTENTION

# fmt: off
# The facts of a field stand side by side.


@section
class ComputeConfig:
    """How the step is computed. None of it changes what is computed, beyond rounding."""

    # Master weights, softmax, normalisation, loss and update.
    dtype: str = setting(
        "bfloat16", Rule("flag", "free"),
        "`bfloat16` or `float32`, for matrix products and activations. All else is always float32, "
        "but for the sums over tokens in the gradients of words, positions and biases, which have "
        "this type where a device adds in it: a CPU does.",
        choices=("bfloat16", "float32"), called=("precision", "mixed_precision", "bf16", "fp16"),
    )
    remat: str = setting(
        "none", FREE,
        "What the backward pass computes again: `none`, `full` (whole layers) or `dots` (all but "
        "the products with weights).",
        choices=("none", "full", "dots"), fits_memory=True,
        called=("gradient_checkpointing", "checkpointing", "rematerialisation"),
    )
    layers: str = setting(
        "unroll", FREE,
        "`unroll` writes every layer out (fastest step), `scan` loops over one (fastest compile).",
        choices=("unroll", "scan"), fits_memory=True,
    )
    gather: str = setting(
        "per_step", FREE,
        "When sharded weights are gathered: `per_step`, once and kept for the backward pass, or "
        "`per_layer`, again in the backward pass (less memory, more traffic).",
        choices=("per_step", "per_layer"), fits_memory=True,
    )
    attention: str = setting(
        "auto", FREE,
        "What computes attention; `auto` chooses for each kind of layer by length, device and what "
        "the model needs ([what computes attention](lineage.md#what-computes-attention)).",
        choices=ATTENTION, called=("attn_implementation", "flash_attention"),
    )
    loss_slices: int = setting(
        1, FREE,
        "In how many slices of the vocabulary the loss of masked words is computed, and its "
        "scores again in the backward pass; 1 keeps them whole.",
        least=1, called=("fused_linear_cross_entropy", "chunked_cross_entropy"),
    )


@section
class MeshConfig:
    """How the devices are arranged and what they share (docs/parallelism.md)."""

    # Groups of devices joined by a slower network.
    slices: int = setting(1, FREE, "Slices of a multi-slice TPU job.", least=1)
    fsdp: int = setting(
        -1, FREE, "Devices of a slice that share a batch; -1 takes what is left."
    )
    tensor: int = setting(
        1, FREE, "Devices that share each matrix product; divides the heads and the inner width.",
        least=1,
    )
    shard_weights: bool = setting(
        True, FREE, "Whether `fsdp` also shares out weights, moments and update."
    )


@section
class EvaluationConfig:
    """Held-out evaluation: the same examples with the same masks every time."""

    every_steps: int = setting(
        10_000, FREE, "Steps between evaluations; 0: only at the end of each phase.",
        least=0, called=("eval_steps", "eval_every", "eval_interval"),
    )
    num_examples: int = setting(
        4096, FREE._replace(finetune=PRETRAINING),
        "Held-out pairs to use; all, if there are fewer.", least=1,
    )
    batch_size: int = setting(
        256, FREE,
        "Rows in one evaluation batch; rounded up to a multiple of the devices.",
        least=1, called=("eval_batch_size", "per_device_eval_batch_size"), fits_memory=True,
    )


@section
class CheckpointConfig:
    """When to save and what to keep. The last step is always saved."""

    every_steps: int = setting(
        1000, FREE, "Steps between checkpoints; the end of each phase is always saved.",
        least=1, called=("save_steps", "save_every", "save_interval"),
    )
    # On a slice 1000 steps pass in a minute, and a save is gigabytes.
    every_minutes: float = setting(
        0.0, FREE,
        "Minutes between checkpoints, instead of steps; 0: `every_steps` says. The recipes for "
        "slices have 10.",
        least=0,
    )
    keep_last: int = setting(
        3, FREE, "How many of the newest are kept.", least=1, called=("save_total_limit", "keep")
    )
    keep_every: int = setting(
        0, FREE, "Steps divisible by this are kept for good; 0 keeps none beyond `keep_last`.",
        least=0,
    )
    max_failed_saves: int = setting(
        3, FREE,
        "Saves in a row that may fail while training goes on; one more ends it with exit code 7, "
        "or 75 if the network is why.",
        least=0,
    )
