"""What tells a model the order of its tokens, and what is lost without it.

bert-jax study positions --workdir runs/positions

Without positions a model gives a sentence and the same words in another order one score: the probe
`word_order` is then at chance.
"""

from bert_jax.studies.study import Study, Task, Variant

KINDS = ("learned", "sinusoidal", "relative_key", "t5", "rotary", "alibi", "none")


def study() -> Study:
    return Study(
        title="Positions",
        base="tiny_docs_cpu",
        overrides=(
            'phases=[{"sequence_length": 64, "steps": 4000, "global_batch_size": 16}]',
            "model.norm_placement=pre",
            "output_bias=log_frequency",
            "evaluation.every_steps=500",
            "checkpoint.every_steps=1000",
        ),
        variants=tuple(Variant(kind, (f"model.position_embedding_type={kind}",)) for kind in KINDS),
        seeds=3,
        tasks=tuple(
            Task(rule, rule=rule, options=("--learning-rate", "3e-4"))
            for rule in ("word_order", "sentence_order")
        ),
    )
