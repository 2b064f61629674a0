"""BERT-Large on 64 TPU v6e chips (64 devices, 16 hosts).

    launch/tpu run --type v6e-64 --config bert_large_v6e ...      # docs/launch.md
    bert-jax pretrain bert_large_v6e --corpus DIR --workdir DIR --distributed    # on each host

The recipe, the weights and the losses are those of `bert_large`: only the machine differs. Each
host makes its share of the batches in four threads.

<plan>
`bert-jax plan bert_large_v6e --topology v6e:8x8` predicts:

- length 128: 9.0 ms a step (2.2 compute + 6.8 collectives), MFU 11 %, 1.32 GiB a device;
- length 512: 16.9 ms a step (10.1 compute + 6.8 collectives), MFU 26 %, 3.29 GiB a device;
- in all 2.7 hours (2.0 if all communication overlaps), 174 chip-hours,
  $469 on demand. libtpu 0.0.51.
</plan>

The paper (Devlin et al. 2019, section 3.1) reports four days on 16 Cloud TPUs, 64 chips, and GLUE
82.1 (test) and SQuAD 1.1 F1 90.9 (dev) of what came out.
"""

from dataclasses import replace

from bert_jax import config_loader
from bert_jax.config import TrainConfig


def config() -> TrainConfig:
    return replace(config_loader.load_config("bert_large_64core"), name="bert_large_v6e")
