"""ELECTRA-Small as published (Clark et al. 2020; google-research/electra): 13,549,057 parameters,
plus 647,162 in its generator.

    bert-jax prepare --source CORPUS --output-dir runs/corpus
    bert-jax pretrain electra_small --corpus runs/corpus --workdir runs/electra

One million updates of 128 rows of 128 tokens; the paper's training took four days on one GPU.
"""

from bert_jax.config import DataConfig, ModelConfig, OptimizerConfig, PhaseConfig, TrainConfig
from bert_jax.update.schedules import ElectraLinear


def config() -> TrainConfig:
    return TrainConfig(
        name="electra_small",
        objective="rtd",
        model=ModelConfig(
            embedding_size=128,
            hidden_size=256,
            num_attention_heads=4,
            intermediate_size=1024,
            hidden_act="gelu",
            generator_size=0.25,
        ),
        # No random replacements: 85 % of the predicted tokens become [MASK], 15 % stay unchanged.
        data=DataConfig(
            sequence_format="electra_segments", mask_token_prob=0.85, random_token_prob=0.0
        ),
        optimizer=OptimizerConfig(learning_rate=5e-4, schedule=ElectraLinear()),
        phases=(
            PhaseConfig(
                sequence_length=128, steps=1_000_000, global_batch_size=128, max_predictions=19
            ),
        ),
    )
