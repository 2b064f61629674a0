"""A 4 x 256 BERT for real text on a CPU: trains in minutes, with an informative loss curve.

    bert-jax prepare --source simplewiki.txt.gz --output-dir runs/simplewiki
    bert-jax pretrain bert_small_cpu --corpus runs/simplewiki --workdir runs/small

The shape is BERT-Mini of "Well-Read Students Learn Better" (Turc et al. 2019). There is no dropout:
a run this short sees no text twice and needs no regularization, and dropout would only delay the
step at which the loss leaves the plateau at the unigram entropy.
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
        name="bert_small_cpu",
        model=ModelConfig(
            vocab_size=30522,
            hidden_size=256,
            num_hidden_layers=4,
            num_attention_heads=4,
            intermediate_size=1024,
            max_position_embeddings=128,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            # About 1 / sqrt(width), as in tiny_docs_cpu.
            initializer_range=0.06,
        ),
        compute=ComputeConfig(dtype="float32"),
        optimizer=OptimizerConfig(learning_rate=7e-4, warmup_steps=300, bias_correction=True),
        phases=(PhaseConfig(sequence_length=128, steps=1800, global_batch_size=16),),
        evaluation=EvaluationConfig(every_steps=200, num_examples=1024, batch_size=64),
        checkpoint=CheckpointConfig(every_steps=300, keep_last=2),
        log_every_steps=50,
    )
