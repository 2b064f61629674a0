"""Writes eurobert.npz: what transformers' EuroBERT computes of a model that we write and it reads.

    python -m tests.golden.make_eurobert

transformers 5.24.0 with torch 2.13.0 made the file; version 4 does not know the family.
"""

from pathlib import Path

import numpy as np

from bert_jax.config import ModelConfig
from tests.golden.make_modernbert import record

FILE = Path(__file__).parent / "eurobert.npz"
MODEL = ModelConfig(
    vocab_size=64,
    hidden_size=64,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    intermediate_size=96,
    hidden_act="silu",
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
    max_position_embeddings=128,
    type_vocab_size=0,
    layer_norm_eps=1e-5,
    position_embedding_type="rotary",
    rope_theta=1_000.0,
    classifier_pooling="late",
    norm_placement="pre",
    embedding_norm=False,
    norm="rmsnorm",
    linear_bias=False,
    feed_forward="gated",
    masked_lm_transform=False,
    decoder_bias=False,
    tie_word_embeddings=False,
)


def main() -> None:
    parts: dict[str, np.ndarray] = {}
    record("EuroBert", MODEL, parts)
    np.savez_compressed(FILE, **parts)


if __name__ == "__main__":
    main()
