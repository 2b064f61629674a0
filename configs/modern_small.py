"""A smaller modernbert_base_50b, for eight v5e chips or one large GPU.

    bert-jax prepare --source CORPUS --tokenizer bpe --vocab-size 50368 --output-dir runs/corpus
    bert-jax pretrain modern_small --corpus runs/corpus --workdir runs/modern

The shape is Ettin's 68m (Weller et al. 2025, arXiv:2507.11412): 68,457,664 parameters, deep and
narrow, exported as `ModernBertForMaskedLM`. 20 billion tokens are 300 per parameter. The phases are
those of modernbert_base_50b, except for the batch, a constant 524,288 tokens, a ninth of its batch.
Ettin's learning rate is 3e-3 for nine times the tokens; scaling with the square root of the
batch (Malladi et al. 2022, arXiv:2205.10287) gives a third of it. Ettin's weight decay is kept. The
learning rate warms up over the first 2 %.

Eight chips make an update in 8 microbatches of 8,192 tokens each. On one GPU, set
optimizer.gradient_accumulation_steps=32 to fit the memory.
"""

import dataclasses

from bert_jax.config import TrainConfig
from bert_jax.config_loader import load_config

_ROWS, _LENGTH = 512, 1024
_ALL, _SHORT, _FALL = 20e9, 17e9, 2e9
_RATE, _LONG_RATE, _DECAY = 1e-3, 4e-4, 3e-4


def config() -> TrainConfig:
    base = load_config("modernbert_base_50b")
    *_, short, extended, falling = base.phases
    assert falling.schedule is not None
    steps = [round(tokens / (_ROWS * _LENGTH)) for tokens in (_SHORT, _ALL - _SHORT - _FALL, _FALL)]
    return dataclasses.replace(
        base,
        name="modern_small",
        model=dataclasses.replace(
            base.model,
            num_hidden_layers=19,
            hidden_size=512,
            intermediate_size=768,
            num_attention_heads=8,
        ),
        optimizer=dataclasses.replace(
            base.optimizer,
            learning_rate=_RATE,
            warmup_steps=round(0.02 * sum(steps)),
            weight_decay=_DECAY / _RATE,
            gradient_accumulation_steps=8,
        ),
        phases=tuple(
            dataclasses.replace(
                phase,
                steps=count,
                global_batch_size=_ROWS * _LENGTH // phase.sequence_length,
                **overrides,
            )
            for phase, count, overrides in zip(
                (short, extended, falling),
                steps,
                (
                    {},
                    {"learning_rate": _LONG_RATE, "weight_decay": _DECAY / _LONG_RATE},
                    {"schedule": dataclasses.replace(falling.schedule, decay_steps=steps[-1])},
                ),
                strict=True,
            )
        ),
    )
