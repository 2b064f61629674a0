"""BERT-Large on 64 TPU v3 cores: the paper's number of sequences in 125,000 packed updates.

    bert-jax pretrain bert_large_64core_packed --corpus DIR --workdir DIR --distributed

1,000,000 updates of 256 sequences equal 125,000 updates of 2,048 sequences, with which RoBERTa (Liu
et al. 2019, table 3) reaches a lower perplexity for the same cost. Sequences are packed, so that an
update has fewer rows. According to `benchmarks/packing.py`, a row holds 1.158 pairs of English
Wikipedia (a part of 2014) or 1.071 of books at length 128, and 1.979 or 1.213 at length 512. In the
proportions of BERT's corpus (2,500 and 800 million words), the means are:

- 1.137 pairs at length 128, so that 1,792 rows, 28 per core, hold 2,037;
- 1.793 pairs at length 512, so that 1,152 rows, 18 per core, hold 2,066.

The total is 112,500 x 2,037 + 12,500 x 2,066 = 255.0 million of 256.0 million. With another corpus,
set `phases.N.global_batch_size` according to the sequences per update that each phase prints.

The learning rate is RoBERTa-Large's, 4e-4, with a warm-up of 6 % of the updates and beta2 0.98
(table 9; batches of 8,192). Table 3 has 7e-4, for BERT-Base. Everything else is as in `bert_large`.
"""

from dataclasses import replace

from bert_jax import config_loader
from bert_jax.config import PhaseConfig, TrainConfig
from bert_jax.update.optimizers import AdamW
from bert_jax.update.schedules import LinearDecay


def config() -> TrainConfig:
    recipe = config_loader.load_config("bert_large_64core")
    return replace(
        recipe,
        name="bert_large_64core_packed",
        data=replace(recipe.data, packing="best_fit"),
        optimizer=AdamW(
            schedule=LinearDecay(),
            learning_rate=4e-4,
            warmup_steps=7_500,
            beta2=0.98,
        ),
        phases=(
            PhaseConfig(sequence_length=128, steps=112_500, global_batch_size=1_792),
            PhaseConfig(sequence_length=512, steps=12_500, global_batch_size=1_152),
        ),
    )
