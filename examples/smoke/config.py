"""The model of smoke.sh: small and quick to train, on a text that is regular enough to memorize.

The text in this folder is generated from a grammar: who makes or eats something, and where.
"""

from bert_jax.config import (
    CheckpointConfig,
    ComputeConfig,
    EvaluationConfig,
    ModelConfig,
    OptimizerConfig,
    PhaseConfig,
    TrainConfig,
)


def config() -> TrainConfig:
    return TrainConfig(
        name="smoke",
        # Equal widths, since each shape of a parameter is one more program to compile.
        model=ModelConfig(
            vocab_size=192,
            hidden_size=64,
            num_hidden_layers=1,
            num_attention_heads=4,
            intermediate_size=64,
            max_position_embeddings=64,
            # About 1 / sqrt(width); otherwise attention forms late.
            initializer_range=0.1,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        ),
        compute=ComputeConfig(dtype="float32"),
        optimizer=OptimizerConfig(learning_rate=5e-3, warmup_steps=20, bias_correction=True),
        # Short rows train attention fastest. 400 updates are twice what smoke.sh's words need.
        phases=(
            PhaseConfig(sequence_length=16, steps=400, global_batch_size=64, max_predictions=3),
        ),
        evaluation=EvaluationConfig(every_steps=0, num_examples=64, batch_size=64),
        # The process is killed after the first of these, and resumes from one.
        checkpoint=CheckpointConfig(every_steps=100, keep_last=2),
        log_every_steps=10,
    )
