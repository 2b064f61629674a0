"""The first phase of Ettin's smallest encoder (Weller et al. 2025, arXiv:2507.11412; JHU-CLSP/
ettin-encoder-vs-decoder, pretraining/): ModernBERT's recipe with 16,913,600 parameters.

    bert-jax prepare --source CORPUS --tokenizer bpe --vocab-size 50368 --output runs/corpus
    bert-jax pretrain ettin_17m --corpus runs/corpus --workdir runs/ettin

1,700 billion tokens in rows of 1,024 that are not packed, of which 30 % are predicted. The other
sizes, by layers, width, inner width, heads, and peak rate: 32m 10, 384, 576, 6, 3e-3; 68m 19, 512,
768, 8, 3e-3; 150m as modernbert_base; 400m 28, 1,024, 2,624, 16, 5e-4; 1b 28, 1,792, 3,840, 28,
5e-4. The published run goes on with rows of 7,999 and both thetas at 160,000, then decays at half
the mask rate; its batch grows over the first 125 billion tokens (docs/lineage.md).
"""

import dataclasses

from bert_jax.config import TrainConfig
from bert_jax.config_loader import load_config

_TOKENS = 4608 * 1024
_RATE = 3e-3


def config() -> TrainConfig:
    base = load_config("modernbert_base")
    (phase,) = base.phases
    return dataclasses.replace(
        base,
        name="ettin_17m",
        model=dataclasses.replace(
            base.model,
            num_hidden_layers=7,
            hidden_size=256,
            intermediate_size=384,
            num_attention_heads=4,
        ),
        data=dataclasses.replace(base.data, packing="none"),
        optimizer=dataclasses.replace(
            base.optimizer,
            learning_rate=_RATE,
            warmup_steps=round(4e9 / _TOKENS),
            # Theirs is 3e-4 times the rate's share of its peak.
            weight_decay=3e-4 / _RATE,
        ),
        phases=(
            dataclasses.replace(
                phase, steps=round(1.7e12 / _TOKENS), max_predictions=-1, max_sequences=-1
            ),
        ),
    )
