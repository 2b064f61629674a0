"""From BERT's recipe to today's, one change a rung, each on top of those before it.

bert-jax study recipe --workdir runs/recipe

The figure of loss over time of training says which changes pay on the machine at hand. The demo's
config, modern_tiny_cpu, is the best rung that Hugging Face has classes for, `twice_the_rate`.
"""

from bert_jax_lab.studies.study import Study, Variant

# Each rung adds its changes to those of all rungs before it.
RUNGS = (
    ("bert", ()),
    ("no_nsp", ("objective=mlm",)),
    ("full_sentences", ("data.sequence_format=full_sentences",)),
    ("output_bias", ("output_bias=log_frequency",)),
    ("rotary", ("model.position_embedding_type=rotary_interleaved",)),
    ("four_heads", ("model.num_attention_heads=4",)),
    ("mask_30", ("phases.0.masked_lm_prob=0.3",)),
    ("twice_the_rate", ("optimizer.learning_rate=2e-3",)),
    ("pre_norm", ("model.norm_placement=pre",)),
    # 2/3 of the width, rounded to 16: as many parameters.
    ("gated", ("model.feed_forward=gated", "model.intermediate_size=336", "model.hidden_act=gelu")),
    ("no_biases", ("model.linear_bias=false", "model.norm_bias=false")),
    (
        "muon",
        ("optimizer.kind=muon", "optimizer.weight_decay=0.1"),
    ),
    (
        "decay_at_the_end",
        ("optimizer.schedule=warmup_stable_decay", "optimizer.schedule.decay_steps=600"),
    ),
)


def rungs() -> tuple[Variant, ...]:
    """Returns the variants: names and all changes so far."""
    found: list[Variant] = []
    for name, changes in RUNGS:
        before = found[-1].overrides if found else ()
        found.append(Variant(name, (*before, *changes)))
    return tuple(found)


def study() -> Study:
    return Study(
        title="From BERT's recipe to today's",
        base="tiny_docs_cpu",
        overrides=(
            'phases=[{"sequence_length": 64, "steps": 2000, "global_batch_size": 16, '
            '"masked_lm_prob": -1.0}]',
            "optimizer.warmup_steps=100",
            "evaluation.every_steps=250",
            "checkpoint.every_steps=1000",
        ),
        variants=rungs(),
        seeds=3,
        columns=("mlm_loss", "perplexity", "mlm_accuracy"),
        compare="previous",
    )
