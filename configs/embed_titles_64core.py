"""An embedding model from titles and bodies on 64 chips, with 32,768 pairs per batch.

    bert-jax pretrain embed_titles_64core --corpus DIR --workdir DIR --init-from DIR --distributed
    bert-jax plan embed_titles_64core --topology v5e:8x8

The weakly supervised stage of E5-base (Wang et al. 2022, arXiv:2212.03533): batch, steps, learning
rate, temperature, and 128 tokens for each text. The pairs are the first sentence of a document and
the text after it, in one row. The corpus decides the quality: prepare documents that begin with a
title. A batch is encoded in 64 microbatches of 8 rows per chip; the loss is over all pairs.
"""

import dataclasses

from bert_jax.config import DataConfig, EmbeddingConfig, InfoNCE, PhaseConfig, TrainConfig
from bert_jax.config_loader import load_config


def config() -> TrainConfig:
    base = load_config("bert_base_64core")
    return dataclasses.replace(
        base,
        name="embed_titles_64core",
        objective="contrastive",
        head=TrainConfig().head,
        data=DataConfig(sequence_format="title_body", num_workers=4),
        embedding=EmbeddingConfig(loss=InfoNCE(temperature=0.01)),
        optimizer=dataclasses.replace(
            base.optimizer,
            learning_rate=2e-4,
            warmup_steps=1000,
            gradient_accumulation_steps=64,
        ),
        phases=(PhaseConfig(sequence_length=256, steps=20_000, global_batch_size=32_768),),
    )
