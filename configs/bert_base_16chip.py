"""BERT-Base on the 16 chips of the paper (a v3-32: 32 cores, 4 hosts).

    launch/tpu run --type v3-32 --config bert_base_16chip ...      # docs/launch.md
    bert-jax pretrain bert_base_16chip --corpus DIR --workdir DIR --distributed    # on each host

The recipe, the weights and the losses are those of `bert_base`: only the machine differs. Each
host makes its share of the batches in four threads.

<plan>
`bert-jax plan bert_base_16chip --topology v3:4x4` predicts:

- length 128: 21.2 ms a step (16.6 compute + 4.6 collectives), MFU 41 %, 0.69 GiB a device;
- length 512: 71.0 ms a step (66.4 compute + 4.6 collectives), MFU 52 %, 2.13 GiB a device;
- in all 7.3 hours (6.0 if all communication overlaps), 116 chip-hours,
  $232 on demand. libtpu 0.0.51.
</plan>

The paper (Devlin et al. 2019, section 3.1) reports four days on 4 Cloud TPUs in pod configuration,
16 chips, and GLUE 79.6 (test) and SQuAD 1.1 F1 88.5 (dev) of what came out. It does not say whether
they were v2 or v3.
"""

from dataclasses import replace

from bert_jax import config_loader
from bert_jax.config import TrainConfig


def config() -> TrainConfig:
    recipe = config_loader.load_config("bert_base")
    return replace(
        recipe,
        name="bert_base_16chip",
        data=replace(recipe.data, num_workers=4),
        # By steps, it would be one save a minute.
        checkpoint=replace(recipe.checkpoint, every_minutes=10.0),
    )
