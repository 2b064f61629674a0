"""The demo's recipe: a small encoder on the embedded documentation, in minutes on a CPU.

bert-jax prepare --source docs: --output-dir runs/corpus --vocab-size 8192 \
    --validation-fraction 0.05
bert-jax pretrain modern_tiny_cpu --corpus runs/corpus --workdir runs/first

tiny_docs_cpu with improvements published since BERT, each measured by `bert-jax study recipe`:
masked LM without next sentence prediction in rows of full sentences (Liu et al. 2019), 30 % masked
tokens (Wettig et al. 2022, arXiv:2202.08005), rotary positions (Su et al. 2021), and an output bias
initialized with log frequencies. It exports as RoFormer, which also has rotary positions.
"""

import dataclasses

from bert_jax.config import HookConfig, PhaseConfig, TrainConfig
from bert_jax.config_loader import load_config


def config() -> TrainConfig:
    base = load_config("tiny_docs_cpu")
    return dataclasses.replace(
        base,
        name="modern_tiny_cpu",
        objective="mlm",
        output_bias="log_frequency",
        # Compares the losses with three recorded runs of this config.
        hooks=(HookConfig.of_kind("expected_curves")(),),
        model=dataclasses.replace(
            base.model,
            num_attention_heads=4,
            position_embedding_type="rotary_interleaved",
        ),
        data=dataclasses.replace(base.data, sequence_format="full_sentences"),
        optimizer=dataclasses.replace(base.optimizer, learning_rate=2e-3, warmup_steps=100),
        phases=(
            PhaseConfig(sequence_length=64, steps=1800, global_batch_size=16, masked_lm_prob=0.3),
        ),
    )
