"""What tells a model the order of its tokens, and what is lost without it.

bert-jax study positions --workdir runs/positions

Without positions a model gives a sentence and the same words in another order one score: the probe
`word_order` is then at chance.
"""

from bert_jax_lab.studies.study import Study, StudyTask, Variant

KINDS = ("learned", "sinusoidal", "relative_key", "t5", "rotary", "alibi", "none")


def study() -> Study:
    return Study(
        title="Positions",
        base="tiny_docs_cpu",
        overrides=(
            'phases=[{"sequence_length": 64, "steps": 2000, "global_batch_size": 16, '
            '"masked_lm_prob": 0.3}]',
            "objective=mlm",
            "data.sequence_format=full_sentences",
            "model.norm_placement=pre",
            "model.num_attention_heads=4",
            "output_bias=log_frequency",
            "optimizer.learning_rate=2e-3",
            "optimizer.warmup_steps=200",
            "evaluation.every_steps=250",
            "checkpoint.every_steps=1000",
        ),
        variants=tuple(Variant(kind, (f"model.position_embedding_type={kind}",)) for kind in KINDS),
        seeds=3,
        tasks=tuple(
            StudyTask(rule, rule=rule, options=("--learning-rate", "3e-4"))
            for rule in ("word_order", "sentence_order")
        ),
        probes=("minimal_pairs", "pseudo_perplexity"),
    )
