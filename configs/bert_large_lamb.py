"""BERT-Large in 15,625 updates of 32,768 rows by LAMB (You et al. 2020, arXiv:1904.00962).

    bert-jax pretrain bert_large_lamb --corpus runs/corpus --workdir runs/large-lamb --fit-memory

As many rows as 1,000,000 updates of 512, nine tenths of the updates at length 128. The rate of 5e-3
and the warm-up of one fifth of the updates are those of the paper's table of untuned LAMB for this
batch. The paper reports SQuAD 1.1 F1 91.46 after 101 minutes on 1,024 TPUs.

What differs from the paper: the gradient is clipped at a norm of 1, as in ALBERT's LAMB
(google-research/albert optimization.py); one schedule goes over both lengths.
"""

from dataclasses import replace

from bert_jax import config_loader
from bert_jax.config import OptimizerConfig, PhaseConfig, TrainConfig


def config() -> TrainConfig:
    recipe = config_loader.load_config("bert_large")
    return replace(
        recipe,
        name="bert_large_lamb",
        optimizer=OptimizerConfig(
            kind="lamb",
            schedule="linear",
            learning_rate=5e-3,
            warmup_steps=3_125,
            bias_correction=True,
        ),
        phases=(
            PhaseConfig(
                sequence_length=128, steps=14_063, global_batch_size=32_768, max_predictions=20
            ),
            PhaseConfig(
                sequence_length=512, steps=1_562, global_batch_size=32_768, max_predictions=76
            ),
        ),
        evaluation=replace(recipe.evaluation, every_steps=500),
        checkpoint=replace(recipe.checkpoint, every_steps=100),
    )
