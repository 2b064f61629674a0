"""BERT-Large on 64 TPU v5p chips (a v5p-128: 64 devices, 16 hosts).

    launch/tpu run --type v5p-128 --config bert_large_v5p ...      # docs/launch.md
    bert-jax pretrain bert_large_v5p --corpus DIR --workdir DIR --distributed    # on each host

The recipe, the weights and the losses are those of `bert_large`: only the machine differs. Each
host makes its share of the batches in four threads.

<plan>
`bert-jax plan bert_large_v5p --topology v5p:4x4x4` predicts:

- length 128: 9.5 ms a step (2.8 compute + 6.6 collectives), MFU 21 %, 1.34 GiB a device;
- length 512: 18.1 ms a step (11.4 compute + 6.6 collectives), MFU 48 %, 3.19 GiB a device;
- in all 2.9 hours (2.0 if all communication overlaps), 184 chip-hours,
  $773 on demand. libtpu 0.0.51.
</plan>

The paper (Devlin et al. 2019, section 3.1) reports four days on 16 Cloud TPUs, 64 chips, and GLUE
82.1 (test) and SQuAD 1.1 F1 90.9 (dev) of what came out.
"""

from dataclasses import replace

from bert_jax import config_loader
from bert_jax.config import TrainConfig


def config() -> TrainConfig:
    return replace(config_loader.load_config("bert_large_64core"), name="bert_large_v5p")
