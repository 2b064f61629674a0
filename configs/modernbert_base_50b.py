"""A custom ModernBERT-Base trained on 50 billion tokens, with rows of up to 8,192 tokens.

    bert-jax prepare --source CORPUS --tokenizer bpe --vocab-size 50368 --output-dir runs/corpus
    bert-jax pretrain modernbert_base_50b --corpus runs/corpus --workdir runs/modern

The model is modernbert_base (Warner et al. 2024, arXiv:2412.13663), so that the result exports as
`ModernBertForMaskedLM`. Learning rates, mask rate, optimizer and tokens per update are the same.
The number of tokens is a fortieth of ModernBERT's, divided as follows:

- 85 % in rows of 1,024, as in ModernBERT. The batch grows over the first 3 % of them (ModernBERT:
  50 of 1,719 billion tokens), in three steps, since each shape is compiled, during the warm-up.
- 5 % in rows of 8,192 at a constant learning rate, with a rope theta of 160,000 in global layers.
- 10 % with a learning rate that falls as 1 - sqrt, a suitable share for a short run (Hägele et al.
  2024, arXiv:2405.18392, 10 to 20 %); ModernBERT has 2.5 % of forty times as many tokens.

64 chips make an update in 9 microbatches of 8,192 tokens each, for rows of either length. Computing
the loss in 8 slices takes about the same time and stores no logits. `bert-jax plan` predicts the
time and cost on a slice.
"""

import dataclasses

from bert_jax.config import ComputeConfig, PhaseConfig, TrainConfig, growing
from bert_jax.config_loader import load_config
from bert_jax.update.schedules import WarmupStableDecay

_ROWS, _LENGTH, _LONG = 4608, 1024, 8192
_TOKENS = _ROWS * _LENGTH  # of an update, in all phases
_FIRST_ROWS = _ROWS // 4
_ALL, _SHORT, _FALL = 50e9, 42.5e9, 5e9
_GROWTH = 0.03 * _SHORT
_RATE, _LONG_RATE = 8e-4, 3e-4
# ModernBERT's weight decay is this value times the learning rate's share of its peak.
_DECAY = 1e-5


def config() -> TrainConfig:
    base = load_config("modernbert_base")
    short = PhaseConfig(
        sequence_length=_LENGTH,
        steps=round(_SHORT / _TOKENS),
        global_batch_size=_ROWS,
        masked_lm_prob=0.3,
    )
    fall = round(_FALL / _TOKENS)
    extended = dataclasses.replace(
        short,
        sequence_length=_LONG,
        steps=round((_ALL - _SHORT - _FALL) / _TOKENS),
        global_batch_size=_TOKENS // _LONG,
        rope_theta=160_000.0,
        local_rope_theta=10_000.0,
        learning_rate=_LONG_RATE,
        weight_decay=_DECAY / _LONG_RATE,
        warmup_steps=0,
    )
    falling = dataclasses.replace(
        extended.without_overrides(),
        steps=fall,
        schedule=WarmupStableDecay(decay_steps=fall, min_lr_ratio=0.001),
    )
    *grows, whole = growing(short, by=_FIRST_ROWS, tokens=_GROWTH)
    return dataclasses.replace(
        base,
        name="modernbert_base_50b",
        optimizer=dataclasses.replace(
            base.optimizer,
            learning_rate=_RATE,
            warmup_steps=sum(phase.steps for phase in grows),
            weight_decay=_DECAY / _RATE,
            gradient_accumulation_steps=9,
        ),
        compute=ComputeConfig(loss_slices=8),
        phases=(*grows, whole, extended, falling),
    )
