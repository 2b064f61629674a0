"""BERT-Large on 64 TPU v4 chips (a v4-128: 64 devices, 16 hosts).

    launch/tpu run --type v4-128 --config bert_large_v4 ...      # docs/launch.md
    bert-jax pretrain bert_large_v4 --corpus DIR --workdir DIR --distributed    # on each host

The recipe, the weights and the losses are those of `bert_large`: only the machine differs. Each
host makes its share of the batches in four threads.

<plan>
`bert-jax plan bert_large_v4 --topology v4:4x4x4` predicts:

- length 128: 21.3 ms a step (6.5 compute + 14.8 collectives), MFU 16 %, 1.35 GiB a device;
- length 512: 41.7 ms a step (26.9 compute + 14.8 collectives), MFU 35 %, 3.32 GiB a device;
- in all 6.5 hours (4.4 if all communication overlaps), 415 chip-hours,
  $1,335 on demand. libtpu 0.0.51.
</plan>

The paper (Devlin et al. 2019, section 3.1) reports four days on 16 Cloud TPUs, 64 chips, and GLUE
82.1 (test) and SQuAD 1.1 F1 90.9 (dev) of what came out.
"""

from dataclasses import replace

from bert_jax import config_loader
from bert_jax.config import TrainConfig


def config() -> TrainConfig:
    return replace(config_loader.load_config("bert_large_64core"), name="bert_large_v4")
