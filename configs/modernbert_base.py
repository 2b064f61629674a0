"""ModernBERT-Base (Warner et al. 2024, arXiv:2412.13663; AnswerDotAI/ModernBERT, branch
`pretraining_documentation`, yamls/modernbert): 149,655,232 parameters as `ModernBertForMaskedLM`.

    bert-jax prepare --source CORPUS --tokenizer bpe --vocab-size 50368 --output-dir runs/corpus
    bert-jax pretrain modernbert_base --corpus runs/corpus --workdir runs/modernbert

Packed rows with 30 % predicted tokens; held-out rows are scored at 15 %. 1,719 billion tokens in
rows of 1,024, at a constant learning rate after the warm-up, with a batch that grows over the first
50 billion; then 250 billion in rows of 8,192 with a rope theta of 160,000 in the global layers, at
a lower learning rate; then 50 billion at a falling learning rate. Optimizer moments continue, and
each of the three parts starts a schedule.
"""

from bert_jax.config import (
    DataConfig,
    ModelConfig,
    PhaseConfig,
    TrainConfig,
    growing,
)
from bert_jax.update.schedules import Constant, WarmupStableDecay
from bert_jax.update.stable_adamw import StableAdamW

_ROWS, _LENGTH, _LONG = 4608, 1024, 8192
_TOKENS = _ROWS * _LENGTH  # per step, in all phases
_FIRST_ROWS = 768
_RATE, _LONG_RATE = 8e-4, 3e-4
# ModernBERT's weight decay is this value times the learning rate's share of its peak.
_DECAY = 1e-5
_DECAY_STEPS = round(50e9 / _TOKENS)


def config() -> TrainConfig:
    return TrainConfig(
        name="modernbert_base",
        objective="mlm",
        model=ModelConfig(
            vocab_size=50368,
            num_hidden_layers=22,
            intermediate_size=1152,
            hidden_act="gelu",
            hidden_dropout_sites=("attention",),
            attention_probs_dropout_prob=0.0,
            max_position_embeddings=8192,
            type_vocab_size=0,
            scale_output_init=True,
            layer_norm_eps=1e-5,
            position_embedding_type="rotary",
            norm_placement="pre",
            first_norm=False,
            norm_bias=False,
            linear_bias=False,
            feed_forward="gated",
            attention_window=128,
            global_attention_every_n_layers=3,
        ),
        data=DataConfig(sequence_format="documents", packing="best_fit"),
        optimizer=StableAdamW(
            joined_rms=True,
            schedule=Constant(),
            learning_rate=_RATE,
            warmup_steps=round(3e9 / (_FIRST_ROWS * _LENGTH)),
            beta2=0.98,
            weight_decay=_DECAY / _RATE,
            clip_norm=0.0,
        ),
        phases=(
            *growing(
                PhaseConfig(
                    sequence_length=_LENGTH,
                    steps=round(1719e9 / _TOKENS),
                    global_batch_size=_ROWS,
                    masked_lm_prob=0.3,
                ),
                by=_FIRST_ROWS,
                tokens=50e9,
            ),
            PhaseConfig(
                sequence_length=_LONG,
                steps=round(250e9 / _TOKENS),
                global_batch_size=_TOKENS // _LONG,
                masked_lm_prob=0.3,
                rope_theta=160_000.0,
                local_rope_theta=10_000.0,
                learning_rate=_LONG_RATE,
                weight_decay=_DECAY / _LONG_RATE,
                warmup_steps=0,
            ),
            PhaseConfig(
                sequence_length=_LONG,
                steps=_DECAY_STEPS,
                global_batch_size=_TOKENS // _LONG,
                masked_lm_prob=0.3,
                schedule=WarmupStableDecay(decay_steps=_DECAY_STEPS, min_lr_ratio=0.001),
            ),
        ),
    )
