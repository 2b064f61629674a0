"""BERT-Base on 64 TPU v3 cores (a v3-64: 32 chips, 8 hosts).

    launch/tpu run --type v3-64 --config bert_base_64core ...      # docs/launch.md
    bert-jax pretrain bert_base_64core --corpus DIR --workdir DIR --distributed    # on each host

The recipe, the weights and the losses are those of `bert_base`: only the machine differs. Each
host makes its share of the batches in four threads.

<plan>
`bert-jax plan bert_base_64core --topology v3:4x8` predicts:

- length 128: 12.3 ms a step (8.4 compute + 4.0 collectives), MFU 35 %, 0.49 GiB a device;
- length 512: 37.1 ms a step (33.1 compute + 4.0 collectives), MFU 50 %, 1.23 GiB a device;
- in all 4.1 hours (3.0 if all communication overlaps), 132 chip-hours,
  $263 on demand. libtpu 0.0.51.
</plan>

The paper (Devlin et al. 2019, section 3.1) reports four days on 4 Cloud TPUs in pod configuration,
16 chips, and GLUE 79.6 (test) and SQuAD 1.1 F1 88.5 (dev) of what came out. Twice as many chips are
planned here.
"""

from dataclasses import replace

from bert_jax import config_loader
from bert_jax.config import TrainConfig


def config() -> TrainConfig:
    return replace(config_loader.load_config("bert_base_16chip"), name="bert_base_64core")
