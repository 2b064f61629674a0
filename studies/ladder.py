"""Sizes of a model, each trained on equally many tokens: table 6 of the BERT paper, small.

bert-jax study ladder --workdir runs/ladder

Devlin et al. 2019 (arXiv:1810.04805, table 6) grow layers, width and heads by six steps, and find
perplexity and three tasks better with each. `study` does so from width 32 to 256, `paper` with the
paper's own sizes, which ask for an accelerator.
"""

from bert_jax_lab.studies.study import Study, StudyTask, Variant

# What the study `recipe` found for few updates.
RECIPE = (
    'phases=[{"sequence_length": 64, "steps": 2500, "global_batch_size": 16, '
    '"masked_lm_prob": 0.3}]',
    "objective=mlm",
    "data.sequence_format=full_sentences",
    "model.norm_placement=pre",
    "model.position_embedding_type=rotary",
    "output_bias=log_frequency",
    "optimizer.warmup_steps=250",
    "evaluation.every_steps=500",
    "checkpoint.every_steps=1000",
)
TASKS = tuple(
    StudyTask(rule, rule=rule, options=("--learning-rate", "3e-4"))
    for rule in ("word_order", "bigram_shift", "same_document")
)
PROBES = ("minimal_pairs", "pseudo_perplexity")


def rung(layers: int, width: int, heads: int, *more: str) -> Variant:
    """Returns a variant of that size, named as the paper names it."""
    return Variant(
        f"L{layers}-H{width}-A{heads}",
        (
            f"model.num_hidden_layers={layers}",
            f"model.hidden_size={width}",
            f"model.num_attention_heads={heads}",
            f"model.intermediate_size={4 * width}",
            *more,
        ),
    )


def small(layers: int, width: int) -> Variant:
    """Returns a rung with heads of 32, and the rate and initial deviation that suit its width."""
    rate = {32: 3e-3, 64: 2e-3, 128: 1e-3}.get(width, 7e-4)
    initial = round(width**-0.5, 3)
    more = f"optimizer.learning_rate={rate}", f"model.initializer_range={initial}"
    return rung(layers, width, width // 32, *more)


def study() -> Study:
    return Study(
        title="Six sizes, equally many tokens",
        base="tiny_docs_cpu",
        overrides=RECIPE,
        variants=tuple(
            small(*size) for size in ((2, 32), (2, 64), (2, 128), (4, 128), (4, 192), (4, 256))
        ),
        seeds=2,
        tasks=TASKS,
        probes=PROBES,
        compare="previous",
    )


def paper() -> Study:
    """The paper's sizes, on a corpus of your own, with three tasks of GLUE."""
    return Study(
        title="The sizes of table 6 of the BERT paper",
        base="bert_base",
        variants=tuple(
            rung(*size)
            for size in ((3, 768, 12), (6, 768, 3), (6, 768, 12), (12, 768, 12), (12, 1024, 16),
                         (24, 1024, 16))
        ),
        tasks=tuple(
            StudyTask(
                name,
                options=("--task", name, "--data", f"tfds:glue/{name}"),
                length=128,
                chance=None,
            )
            for name in ("mnli", "mrpc", "sst2")
        ),
        probes=PROBES,
        compare="previous",
    )  # fmt: skip
