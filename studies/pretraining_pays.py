"""What pre-training brings to tasks: from random, and after a quarter of an hour.

bert-jax study pretraining_pays --workdir runs/pretraining_pays

All tasks are trained by one recipe.
"""

from bert_jax_lab.studies.study import Study, StudyTask, Variant


def study() -> Study:
    return Study(
        title="What pre-training brings to tasks",
        base="tiny_docs_cpu",
        overrides=(
            'phases=[{"sequence_length": 64, "steps": 8000, "global_batch_size": 16, '
            '"masked_lm_prob": 0.3}]',
            "objective=mlm",
            "data.sequence_format=full_sentences",
            "model.num_hidden_layers=4",
            "model.num_attention_heads=4",
            "model.norm_placement=pre",
            "model.position_embedding_type=rotary",
            "output_bias=log_frequency",
            "optimizer.learning_rate=2e-3",
            "optimizer.warmup_steps=400",
            "evaluation.every_steps=1000",
            "checkpoint.every_steps=1000",
        ),
        variants=(
            # One update that moves nothing: the initial values.
            Variant(
                "random",
                (
                    "phases.0.steps=1",
                    "optimizer.warmup_steps=0",
                    "optimizer.learning_rate=1e-12",
                ),
            ),
            Variant("pretrained"),
        ),
        seeds=3,
        tasks=tuple(
            StudyTask(rule, rule=rule, options=("--learning-rate", "3e-4"))
            for rule in ("word_order", "bigram_shift", "same_document")
        ),
        compare_on="tasks",
    )
