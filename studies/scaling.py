"""The loss as a law of parameters and tokens, and a prediction made before its run.

bert-jax study scaling --workdir runs/scaling

Twelve runs, of four sizes and three numbers of tokens, have a law fitted to them
(bert_jax/studies/scaling_law.py). The largest run is predicted from them, and trained last:
`predictions/L4-H256-4M.json` is written before it begins.
"""

from bert_jax.studies.study import Study, Variant

# Millions of tokens -> updates of 16 rows of 64.
STEPS = {1: 1000, 2: 2000, 4: 4000}


def variant(layers: int, width: int, millions: int, *, is_predicted: bool = False) -> Variant:
    """Returns a run with heads of 32, and the rate and initial deviation that suit its width."""
    rate = {32: 3e-3, 64: 2e-3, 128: 1e-3}.get(width, 7e-4)
    return Variant(
        f"L{layers}-H{width}-{millions}M",
        (
            f"model.num_hidden_layers={layers}",
            f"model.hidden_size={width}",
            f"model.num_attention_heads={width // 32}",
            f"model.intermediate_size={4 * width}",
            f"model.initializer_range={round(width**-0.5, 3)}",
            f"optimizer.learning_rate={rate}",
            f"optimizer.warmup_steps={STEPS[millions] // 10}",
            f"phases.0.steps={STEPS[millions]}",
        ),
        is_predicted=is_predicted,
    )


def study() -> Study:
    sizes = ((2, 32), (2, 64), (2, 128), (4, 192))
    return Study(
        title="Loss over parameters and tokens",
        base="tiny_docs_cpu",
        overrides=(
            'phases=[{"sequence_length": 64, "steps": 4000, "global_batch_size": 16}]',
            "objective=mlm",
            "data.rows=full_sentences",
            "model.norm_placement=pre",
            "model.position_embedding_type=rotary",
            "output_bias=log_frequency",
            "evaluation.every_steps=500",
            "checkpoint.every_steps=1000",
        ),
        variants=(
            *(variant(*size, millions) for size in sizes for millions in STEPS),
            variant(4, 256, 4, is_predicted=True),
        ),
        compare="",
        has_law=True,
    )
