"""A small BERT on the embedded documentation corpus: trains in minutes on a CPU.

bert-jax prepare --source docs: --output-dir runs/corpus --vocab-size 8192 \
    --validation-fraction 0.05
bert-jax pretrain tiny_docs_cpu --corpus runs/corpus --workdir runs/first
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
        name="tiny_docs_cpu",
        model=ModelConfig(
            vocab_size=8192,
            hidden_size=128,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=512,
            max_position_embeddings=128,
            # About 1 / sqrt(width): 0.02 suits the published widths, but leaves the attention of a
            # narrow model uniform for most of a short run.
            initializer_range=0.08,
            # A few epochs of two million tokens: too few to overfit.
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        ),
        compute=ComputeConfig(dtype="float32"),
        # A learning rate for a small model, with bias correction, because the warm-up is too short
        # to replace it. Many small updates, which learn faster at this size than few large ones.
        optimizer=OptimizerConfig(learning_rate=1e-3, warmup_steps=300, bias_correction=True),
        # Short rows first, as in BERT. Attention also forms earlier: after 1,800 updates on rows of
        # 32 tokens, but after 4,500 on rows of 64.
        phases=(
            PhaseConfig(sequence_length=32, steps=2500, global_batch_size=32),
            PhaseConfig(sequence_length=64, steps=2000, global_batch_size=16),
        ),
        evaluation=EvaluationConfig(every_steps=500, num_examples=1024, batch_size=128),
        checkpoint=CheckpointConfig(every_steps=500, keep_last=2),
        log_every_steps=100,
    )
