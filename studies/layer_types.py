"""The layer types of table 1 of "Attention Is All You Need", and the four scores of attention.

bert-jax study layer_types --workdir runs/layer_types
bert-jax study layer_types --preset scores --workdir runs/scores

Vaswani et al. 2017 compare the cost of a layer of self-attention, restricted self-attention, a
convolution and a recurrence. Here each is the mixer of a model that is trained; the scale `scores`
has one mixer, attention, with four scores. The file extend/layer_types.py defines the mixers and
scores that are not built in. All variants have the FLOPs of the first one. benchmarks/layer_cost.py
measures the cost of a layer over length and width.
"""

from bert_jax_lab.studies.study import Study, Variant

VOCABULARY = 4096
COMMON = (
    "objective=mlm",
    "data.sequence_format=full_sentences",
    f"model.vocab_size={VOCABULARY}",
    "model.norm_placement=pre",
    "model.num_attention_heads=4",
    "output_bias=log_frequency",
    "optimizer.learning_rate=2e-3",
    "optimizer.warmup_steps=100",
    "evaluation.every_steps=200",
    "checkpoint.every_steps=1000",
)


def compared(title: str, steps: int, variants: dict[str, tuple[str, ...]], note: str) -> Study:
    """Returns a study of models that differ in what `variants` change of the model."""
    phase = f'{{"sequence_length": 64, "steps": {steps}, "global_batch_size": 16, '
    return Study(
        title=title,
        base="extend/layer_types.py",
        corpus=(
            "--source",
            "docs:",
            "--vocab-size",
            str(VOCABULARY),
            "--validation-fraction",
            "0.1",
        ),
        overrides=(f'phases=[{phase}"masked_lm_prob": 0.3}}]', *COMMON),
        variants=tuple(
            Variant(name, tuple(f"model.{change}" for change in changes))
            for name, changes in variants.items()
        ),
        seeds=3,
        columns=("mlm_loss", "perplexity", "mlm_accuracy"),
        equal_compute=True,
        notes=(note,),
    )


def study() -> Study:
    rotary, none = "position_embedding_type=rotary", "position_embedding_type=none"
    return compared(
        "Four mixers at equal compute",
        1200,
        {
            "attention": (rotary,),
            "restricted": (rotary, "attention_window=16"),
            "convolution": (none, "mixer=convolution"),
            "gru": (none, "mixer=gru"),
        },
        "Attention has rotary positions; a convolution and a recurrence know the order of tokens "
        "by themselves.",
    )


def scores() -> Study:
    """The scores of attention, with positions that suit all four."""
    kinds = ("scaled_dot_product", "dot_product", "general", "additive")
    return compared(
        "Four scores of attention at equal compute",
        1500,
        {kind: ("position_embedding_type=alibi", f"mixer.score={kind}") for kind in kinds},
        "FLOPs count matrix products only: the hyperbolic tangents of `additive` are not "
        "counted, and cost time.",
    )
