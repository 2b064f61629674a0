"""Ettin's smallest encoder (Weller et al. 2025, arXiv:2507.11412; JHU-CLSP/
ettin-encoder-vs-decoder, pretraining/configs/standard/very_tiny): ModernBERT's recipe with
16,913,600 parameters.

    bert-jax prepare --source CORPUS --tokenizer bpe --vocab-size 50368 --output-dir runs/corpus
    bert-jax pretrain ettin_17m --corpus runs/corpus --workdir runs/ettin

Rows are not packed. 1,700 billion tokens in rows of 1,024, with a batch size that grows over the
first 125 billion; then 250 billion in rows of 7,999 with a rope theta of 160,000 in the global
layers and a learning rate that falls to half; then 50 billion with this theta in all layers, half
the mask rate and a falling learning rate. The other sizes, by layers, width, inner width, heads,
and peak learning rate: 32m 10, 384, 576, 6, 3e-3; 68m 19, 512, 768, 8, 3e-3; 150m as
modernbert_base; 400m 28, 1,024, 2,624, 16, 5e-4; 1b 28, 1,792, 3,840, 28, 5e-4.
"""

import dataclasses

from bert_jax.config import PhaseConfig, TrainConfig, growing
from bert_jax.config_loader import load_config
from bert_jax.update.schedules import WarmupStableDecay

_ROWS, _LENGTH, _LONG = 4608, 1024, 7999
_TOKENS = _ROWS * _LENGTH
# Four devices with microbatches of 144 rows.
_FIRST_ROWS = 4 * 144
_RATE = 3e-3
# Ettin's weight decay is this value times the learning rate's share of its peak.
_DECAY = 3e-4
_LONG_STEPS, _LAST_STEPS = (round(tokens / (_ROWS * _LONG)) for tokens in (250e9, 50e9))


def config() -> TrainConfig:
    base = load_config("modernbert_base")
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
            warmup_steps=round(4e9 / (_FIRST_ROWS * _LENGTH)),
            weight_decay=_DECAY / _RATE,
        ),
        phases=(
            *growing(
                PhaseConfig(
                    sequence_length=_LENGTH,
                    steps=round(1.7e12 / _TOKENS),
                    global_batch_size=_ROWS,
                    masked_lm_prob=0.3,
                ),
                by=_FIRST_ROWS,
                tokens=125e9,
            ),
            PhaseConfig(
                sequence_length=_LONG,
                steps=_LONG_STEPS,
                global_batch_size=_ROWS,
                masked_lm_prob=0.3,
                rope_theta=160_000.0,
                local_rope_theta=10_000.0,
                warmup_steps=0,
                schedule=WarmupStableDecay(decay_steps=_LONG_STEPS, min_lr_ratio=0.5),
            ),
            PhaseConfig(
                sequence_length=_LONG,
                steps=_LAST_STEPS,
                global_batch_size=_ROWS,
                masked_lm_prob=0.15,
                local_rope_theta=160_000.0,
                learning_rate=_RATE / 2,
                weight_decay=_DECAY / (_RATE / 2),
                schedule=WarmupStableDecay(decay_steps=_LAST_STEPS, min_lr_ratio=0.04),
            ),
        ),
    )
