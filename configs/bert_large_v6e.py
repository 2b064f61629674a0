"""BERT-Large on 64 TPU v6e chips (64 devices, 16 hosts).

    launch/tpu run --type v6e-64 --config bert_large_v6e ...      # docs/launch.md
    bert-jax pretrain bert_large_v6e --corpus DIR --workdir DIR --distributed    # on each host

The recipe, the weights and the losses are those of `bert_large`: only the machine differs. Each
host makes its share of the batches in four threads.

<plan>
`bert-jax plan bert_large_v6e --topology v6e:8x8` predicts:

- length 128: 8.8 ms a step (2.1 compute + 6.6 collectives), MFU 12 %, 1.34 GiB a device;
- length 512: 16.2 ms a step (9.6 compute + 6.6 collectives), MFU 27 %, 3.32 GiB a device;
- in all 2.6 hours (1.9 if all communication overlaps), 169 chip-hours,
  $457 on demand. libtpu 0.0.51.
</plan>

The paper (Devlin et al. 2019, section 3.1) reports four days on 16 Cloud TPUs, 64 chips, and GLUE
82.1 (test) and SQuAD 1.1 F1 90.9 (dev) of what came out.
"""

from dataclasses import replace

from bert_jax import config_loader
from bert_jax.config import TrainConfig


def config() -> TrainConfig:
    return replace(config_loader.load_config("bert_large_64core"), name="bert_large_v6e")
