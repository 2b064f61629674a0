"""BERT-Large on 64 TPU v5e chips (a v5litepod-64: 64 devices, 16 hosts).

    launch/tpu run --type v5litepod-64 --config bert_large_v5e ...      # docs/launch.md
    bert-jax pretrain bert_large_v5e --corpus DIR --workdir DIR --distributed    # on each host

The recipe, the weights and the losses are those of `bert_large`: only the machine differs. Each
host makes its share of the batches in four threads.

<plan>
`bert-jax plan bert_large_v5e --topology v5e:8x8` predicts:

- length 128: 19.2 ms a step (5.9 compute + 13.3 collectives), MFU 25 %, 1.39 GiB a device;
- length 512: 38.0 ms a step (24.7 compute + 13.3 collectives), MFU 53 %, 3.24 GiB a device;
- in all 5.9 hours (4.0 if all communication overlaps), 375 chip-hours,
  $450 on demand. libtpu 0.0.51.
</plan>

The paper (Devlin et al. 2019, section 3.1) reports four days on 16 Cloud TPUs, 64 chips, and GLUE
82.1 (test) and SQuAD 1.1 F1 90.9 (dev) of what came out.
"""

from dataclasses import replace

from bert_jax import config_loader
from bert_jax.config import TrainConfig


def config() -> TrainConfig:
    return replace(config_loader.load_config("bert_large_64core"), name="bert_large_v5e")
