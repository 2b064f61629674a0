"""BERT-Large as published (Devlin et al. 2019): 336,226,108 parameters with both heads.

    bert-jax prepare --source CORPUS --output-dir runs/corpus
    bert-jax pretrain bert_large --corpus runs/corpus --workdir runs/large

One million updates of 256 rows: 900,000 at length 128, then 100,000 at length 512, with one
schedule. The paper's training took four days on 64 TPU chips.
"""

from bert_jax.config import ModelConfig, PhaseConfig, TrainConfig


def config() -> TrainConfig:
    return TrainConfig(
        name="bert_large",
        model=ModelConfig(
            hidden_size=1024,
            num_hidden_layers=24,
            num_attention_heads=16,
            intermediate_size=4096,
        ),
        phases=(
            PhaseConfig(
                sequence_length=128, steps=900_000, global_batch_size=256, max_predictions=20
            ),
            PhaseConfig(
                sequence_length=512, steps=100_000, global_batch_size=256, max_predictions=76
            ),
        ),
    )
