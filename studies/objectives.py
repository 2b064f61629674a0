"""What is learned from a text: next sentences, masks of several kinds and rates, replaced tokens.

bert-jax study objectives --workdir runs/objectives

All variants have the FLOPs of the first one; a variant whose update costs more has fewer updates.
"""

from bert_jax_lab.studies.study import Study, StudyTask, Variant

ALONE = ("objective=mlm", "data.sequence_format=full_sentences")


def study() -> Study:
    return Study(
        title="Objectives at equal compute",
        base="tiny_docs_cpu",
        overrides=(
            'phases=[{"sequence_length": 64, "steps": 2500, "global_batch_size": 16, '
            '"masked_lm_prob": -1.0}]',
            "model.norm_placement=pre",
            "model.position_embedding_type=rotary",
            "model.num_attention_heads=4",
            "output_bias=log_frequency",
            "optimizer.learning_rate=2e-3",
            "optimizer.warmup_steps=250",
            "evaluation.every_steps=500",
            "checkpoint.every_steps=1000",
        ),
        variants=(
            Variant("mlm_nsp"),
            Variant("mlm_pairs", ("objective=mlm",)),
            Variant("mlm", ALONE),
            Variant("whole_words", (*ALONE, "data.masking=whole_words")),
            Variant("spans", (*ALONE, "data.masking=spans")),
            Variant("mask_30", (*ALONE, "phases.0.masked_lm_prob=0.3")),
            Variant("mask_40", (*ALONE, "phases.0.masked_lm_prob=0.4")),
            Variant(
                "replaced_tokens",
                (
                    "objective=rtd",
                    "data.sequence_format=electra_segments",
                    "data.mask_token_prob=0.85",
                    "data.random_token_prob=0.0",
                ),
            ),
        ),
        seeds=3,
        tasks=tuple(
            StudyTask(rule, rule=rule, options=("--learning-rate", "3e-4"))
            for rule in ("word_order", "bigram_shift", "same_document")
        ),
        probes=("minimal_pairs", "pseudo_perplexity"),
        equal_compute=True,
        compare_on="tasks",
        notes=(
            "Losses compare only where rows and masks are the same: `mlm`, `mask_30` and "
            "`mask_40`. That of `replaced_tokens` is its generator's. Tasks compare all.",
        ),
    )
