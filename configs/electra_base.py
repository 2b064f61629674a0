"""ELECTRA-Base as published (Clark et al. 2020; google-research/electra): BERT-Base as the
discriminator, with a generator of a third of its width.

    bert-jax prepare --source CORPUS --output-dir runs/corpus
    bert-jax pretrain electra_base --corpus runs/corpus --workdir runs/electra

766,000 updates of 256 rows of 512 tokens; the paper's training took four days on 16 TPU chips.
"""

from bert_jax.config import DataConfig, ModelConfig, OptimizerConfig, PhaseConfig, TrainConfig
from bert_jax.update.schedules import ElectraLinear


def config() -> TrainConfig:
    return TrainConfig(
        name="electra_base",
        objective="rtd",
        model=ModelConfig(hidden_act="gelu", generator_size=1 / 3),
        # No random replacements: 85 % of the predicted tokens become [MASK], 15 % stay unchanged.
        data=DataConfig(
            sequence_format="electra_segments", mask_token_prob=0.85, random_token_prob=0.0
        ),
        optimizer=OptimizerConfig(learning_rate=2e-4, schedule=ElectraLinear()),
        phases=(
            PhaseConfig(
                sequence_length=512, steps=766_000, global_batch_size=256, max_predictions=79
            ),
        ),
    )
