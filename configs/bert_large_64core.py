"""BERT-Large on 64 TPU v3 cores (a v3-64: 32 chips, 8 hosts), the set-up this project is named for.

    launch/tpu run --type v3-64 --config bert_large_64core ...      # docs/launch.md
    bert-jax pretrain bert_large_64core --corpus DIR --workdir DIR --distributed    # on each host

The recipe, the weights and the losses are those of `bert_large`: only the machine differs. Each
host makes its share of the batches in four threads.

<plan>
`bert-jax plan bert_large_64core --topology v3:4x8` predicts:

- length 128: 32.9 ms a step (23.4 compute + 9.5 collectives), MFU 46 %, 1.28 GiB a device;
- length 512: 110.4 ms a step (100.9 compute + 9.5 collectives), MFU 58 %, 3.19 GiB a device;
- in all 11.3 hours (8.7 if all communication overlaps), 362 chip-hours,
  $723 on demand. libtpu 0.0.51.
</plan>

The paper (Devlin et al. 2019, section 3.1) reports four days on 16 Cloud TPUs, 64 chips, and GLUE
82.1 (test) and SQuAD 1.1 F1 90.9 (dev) of what came out. Half as many chips are planned here.
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
        # By steps, it would be one save a minute.
        checkpoint=replace(recipe.checkpoint, every_minutes=10.0),
    )
