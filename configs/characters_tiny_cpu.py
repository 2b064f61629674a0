"""A small encoder for sequences (DNA, proteins, SMILES), one token per character, on a CPU.

    bert-jax prepare --source proteins.fasta --tokenizer characters --output-dir runs/proteins
    bert-jax pretrain characters_tiny_cpu --corpus runs/proteins --workdir runs/first

Like tiny_docs_cpu, but predicts only masked tokens, 15 % of them, as in ESM-2 (Lin et al. 2023,
doi:10.1126/science.ade2574). A row holds parts of documents without sentence pairs, since a
sequence has no sentences, and short sequences are packed. The positions are rotary, as in ESM-2:
the distance between two characters counts. The output bias is initialized with log frequencies.
"""

import dataclasses

from bert_jax.config import PhaseConfig, TrainConfig
from bert_jax.config_loader import load_config


def config() -> TrainConfig:
    base = load_config("tiny_docs_cpu")
    return dataclasses.replace(
        base,
        name="characters_tiny_cpu",
        objective="mlm",
        output_bias="log_frequency",
        model=dataclasses.replace(
            base.model,
            vocab_size=64,
            num_attention_heads=4,
            max_position_embeddings=256,
            position_embedding_type="rotary_interleaved",
        ),
        data=dataclasses.replace(base.data, sequence_format="documents", packing="best_fit"),
        optimizer=dataclasses.replace(base.optimizer, learning_rate=2e-3, warmup_steps=100),
        phases=(PhaseConfig(sequence_length=256, steps=1000, global_batch_size=16),),
    )
