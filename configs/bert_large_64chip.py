"""BERT-Large on the 64 chips of the paper (a v3-128: 128 cores, 16 hosts).

    launch/tpu run --type v3-128 --config bert_large_64chip ...      # docs/launch.md
    bert-jax pretrain bert_large_64chip --corpus DIR --workdir DIR --distributed    # on each host

The recipe, the weights and the losses are those of `bert_large`: only the machine differs. Each
host makes its share of the batches in four threads.

<plan>
`bert-jax plan bert_large_64chip --topology v3:8x8` predicts:

- length 128: 28.2 ms a step (13.9 compute + 14.3 collectives), MFU 27 %, 1.01 GiB a device;
- length 512: 68.4 ms a step (54.1 compute + 14.3 collectives), MFU 47 %, 2.01 GiB a device;
- in all 8.9 hours (5.1 if all communication overlaps), 573 chip-hours,
  $1,146 on demand. libtpu 0.0.51.
</plan>

The paper (Devlin et al. 2019, section 3.1) reports four days on 16 Cloud TPUs, 64 chips, and GLUE
82.1 (test) and SQuAD 1.1 F1 90.9 (dev) of what came out. It does not say whether the chips were v2
or v3.
"""

from dataclasses import replace

from bert_jax import config_loader
from bert_jax.config import TrainConfig


def config() -> TrainConfig:
    return replace(config_loader.load_config("bert_large_64core"), name="bert_large_64chip")
