"""The section of a config that says how parameters are updated."""

from bert_jax.config.fields import FREE, RECIPE, Rule, WithOptions, section, setting
from bert_jax.registry import OPTIMIZERS, SCHEDULES

# The fields that all schedules read.
SCHEDULE = ("schedule", "learning_rate", "warmup_steps")

# fmt: off
# The facts of a field stand side by side.


@section
class OptimizerConfig(WithOptions):
    """AdamW as BERT did it (google-research/bert optimization.py), unless `kind` says otherwise."""

    kind: str = setting(
        "bert_adamw", Rule("refused", "equal"),
        "The optimiser, see [below](#optimisers). Another kind reads those of the fields below "
        "that it has.",
        choices=OPTIMIZERS, called=("optimizer", "optimiser", "optim"),
    )
    schedule: str = setting(
        "bert_linear", Rule("flag", "equal"),
        "What the rate does over the run, see [below](#schedules).",
        choices=SCHEDULES,
        called=("scheduler", "lr_scheduler", "lr_scheduler_type", "lr_schedule"),
    )
    learning_rate: float = setting(
        1e-4, RECIPE._replace(finetune="use `learning_rate`"),
        "Where the warm-up line would end, and the decay line starts.",
        above=0, called=("lr", "rate", "max_lr", "peak_lr"),
    )
    warmup_steps: int = setting(
        10_000, RECIPE, "Steps of linear rise from 0; fewer than the run has.",
        called=("warmup", "num_warmup_steps", "warmup_ratio", "warmup_proportion"),
    )
    beta1: float = setting(
        0.9, RECIPE, "Decay of the first moment.",
        least=0, below=1, read_by=("kind",), called=("adam_beta1",),
    )
    beta2: float = setting(
        0.999, RECIPE, "Decay of the second moment.",
        least=0, below=1, read_by=("kind",), called=("adam_beta2",),
    )
    epsilon: float = setting(
        1e-6, RECIPE, "Added to the root of the second moment.",
        above=0, read_by=("kind",), called=("eps", "adam_epsilon"),
    )
    weight_decay: float = setting(
        0.01, RECIPE, "Decoupled decay of kernels and embeddings.",
        least=0, read_by=("kind",), called=("wd", "decay"),
    )
    bias_correction: bool = setting(
        False, RECIPE, "`true` gives Adam as its paper has it, `false` as BERT has it.",
        read_by=("kind",),
    )
    clip_norm: float = setting(
        1.0, RECIPE, "Largest global norm of the gradient; 0 switches clipping off.",
        least=0, read_by=("kind",),
        called=("clip", "grad_clip", "max_grad_norm", "gradient_clip"),
    )
    frozen_layers: int = setting(
        0, RECIPE._replace(finetune="use `freeze_layers`"),
        "With 1 or more: the embeddings and that many layers, from the first, stay as they are; "
        "the figure of MFU counts their part all the same.",
        least=0,
    )
    gradient_accumulation_steps: int = setting(
        1, Rule("flag", "free"),
        "Microbatches that a batch is cut into, to fit in memory; the update is the same.",
        least=1, fits_memory=True,
        called=("accumulation", "grad_accum", "accumulate", "microbatches"),
    )
    spike_factor: float = setting(
        0.0, Rule("flag", "free"),
        "An update whose gradient norm is so many times the usual is left out "
        "([numbers that go wrong](reliability.md#numbers-that-go-wrong)); 0: none is.",
        least=0,
    )
    max_skipped_updates: int = setting(
        100, FREE,
        "Updates of a run that may be left out; one more ends it with exit code 6.", least=0,
    )
    z_loss: float = setting(
        0.0, RECIPE,
        "Weight of the squared log normaliser of the masked-LM logits in the gradient; 1e-4 is "
        "usual ([z-loss](lineage.md#the-loss-of-masked-words)).",
        least=0,
    )
