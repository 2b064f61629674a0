"""BERT-Large on 64 TPU v3 cores (a v3-64: 32 chips, 8 hosts), or another slice.

    launch/tpu run --type v3-64 --config bert_large_64core ...      # docs/guides/cloud-tpu.md
    bert-jax pretrain bert_large_64core --corpus DIR --workdir DIR --distributed    # on each host
    bert-jax plan bert_large_64core --topology v3:4x8

Recipe, weights and losses are the same as in `bert_large`; only the machine differs. Each host
makes its share of the batches in four threads. `bert-jax plan` predicts other slices.

The paper (Devlin et al. 2019, section 3.1) reports four days on 16 Cloud TPUs, 64 chips (called
v3-128 here), and GLUE 82.1 (test) and SQuAD 1.1 F1 90.9 (dev) for the result. It does not state
whether the chips were v2 or v3.
"""

from dataclasses import replace

from bert_jax import config_loader
from bert_jax.config import TrainConfig


def config() -> TrainConfig:
    recipe = config_loader.load_config("bert_large")
    return replace(
        recipe,
        name="bert_large_64core",
        data=replace(recipe.data, num_workers=4),
        # An interval in steps would save once per minute.
        checkpoint=replace(recipe.checkpoint, every_minutes=10.0),
    )
