"""BERT-Base with 1,024 positions: goes on from a BERT-Base of 512.

    bert-jax pretrain bert_base_1024 --init-from runs/base --corpus runs/corpus --workdir runs/1024

The new rows of the position table begin as copies of the old ones. Rule and recipe are those by
which Longformer goes on from RoBERTa (Beltagy et al. 2020, section 5): 65,000 updates of 2^18
tokens, a rate of 3e-5 after 500 steps, which falls as a cube.
"""

from bert_jax.config import ModelConfig, OptimizerConfig, PhaseConfig, TrainConfig


def config() -> TrainConfig:
    return TrainConfig(
        name="bert_base_1024",
        model=ModelConfig(max_position_embeddings=1024),
        optimizer=OptimizerConfig(
            schedule="polynomial",
            options={"power": 3.0},
            learning_rate=3e-5,
            warmup_steps=500,
        ),
        phases=(
            PhaseConfig(
                sequence_length=1024, steps=65_000, global_batch_size=256, max_predictions=154
            ),
        ),
    )
