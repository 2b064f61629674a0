"""BERT-Base as published (Devlin et al. 2019): 110,106,428 parameters with both heads.

    bert-jax prepare --source CORPUS --output-dir runs/corpus
    bert-jax pretrain bert_base --corpus runs/corpus --workdir runs/base

One million updates of 256 rows: 900,000 at length 128, then 100,000 at length 512, with one
schedule. The paper's training took four days on 16 TPU chips.
"""

from bert_jax.config import ModelConfig, PhaseConfig, TrainConfig


def config() -> TrainConfig:
    return TrainConfig(
        name="bert_base",
        model=ModelConfig(),
        phases=(
            PhaseConfig(
                sequence_length=128, steps=900_000, global_batch_size=256, max_predictions=20
            ),
            PhaseConfig(
                sequence_length=512, steps=100_000, global_batch_size=256, max_predictions=76
            ),
        ),
    )
