"""A 4 x 256 encoder for ten epochs of ten million words on a CPU: BabyLM's strict-small track.

    python examples/babylm/corpus.py sources.toml --output-dir runs/babylm/text
    bert-jax prepare --source runs/babylm/text/train --output-dir runs/babylm/corpus \
        --validation-source runs/babylm/text/validation --vocab-size 8192
    bert-jax pretrain babylm_small_cpu --corpus runs/babylm/corpus --workdir runs/babylm/workdir

modern_small_cpu with a smaller vocabulary, larger batches and a linear decay to zero. The number of
steps fits a corpus of 15 million tokens; examples/babylm/settings.py prints the settings for
another one. Checkpoints are kept at the numbers of words that BabyLM's table asks for.
"""

import dataclasses

from bert_jax.config import CheckpointConfig, TrainConfig
from bert_jax.config_loader import load_config
from bert_jax.update.schedules import LinearDecay

_MARKS = (*range(1, 10), *range(10, 101, 10))


def config() -> TrainConfig:
    base = load_config("modern_small_cpu")
    (phase,) = base.phases
    return dataclasses.replace(
        base,
        name="babylm_small_cpu",
        # Rows have 128 tokens; BabyLM's tasks have up to 512, which rotary positions allow.
        model=dataclasses.replace(base.model, vocab_size=8192, max_position_embeddings=512),
        optimizer=dataclasses.replace(
            base.optimizer,
            learning_rate=2e-3,
            warmup_steps=750,
            weight_decay=0.1,
            schedule=LinearDecay(),
        ),
        phases=(dataclasses.replace(phase, steps=18_800, global_batch_size=64),),
        evaluation=dataclasses.replace(base.evaluation, every_steps=940),
        checkpoint=CheckpointConfig(
            every_steps=200,
            keep_last=2,
            at_words=tuple(1_000_000 * mark for mark in _MARKS),
        ),
    )
