"""An embedding model from raw text: minutes on two CPU cores, after modern_tiny_cpu.

bert-jax pretrain modern_tiny_cpu --corpus runs/corpus --workdir runs/first
bert-jax pretrain embed_crops_cpu --corpus runs/corpus --workdir runs/crops --init-from runs/first

The pairs are Contriever's: two random crops of a passage (Izacard et al. 2022, arXiv:2112.09118),
without the momentum encoder, because all negatives are in the batch. An evaluation looks for each
of 512 held-out crops among 512 documents.
"""

import dataclasses

from bert_jax.config import DataConfig, EvaluationConfig, PhaseConfig, TrainConfig
from bert_jax.config_loader import load_config


def config() -> TrainConfig:
    base = load_config("modern_tiny_cpu")
    return dataclasses.replace(
        base,
        name="embed_crops_cpu",
        objective="contrastive",
        output_bias="zeros",
        hooks=(),
        head=TrainConfig().head,
        data=DataConfig(sequence_format="crops"),
        optimizer=dataclasses.replace(base.optimizer, learning_rate=3e-4, warmup_steps=60),
        phases=(PhaseConfig(sequence_length=128, steps=600, global_batch_size=64),),
        evaluation=EvaluationConfig(every_steps=100, num_examples=512, batch_size=512),
        checkpoint=dataclasses.replace(base.checkpoint, every_steps=200),
        log_every_steps=20,
    )
