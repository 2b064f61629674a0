"""Writes ultrabert.npz: what transformers' UltraBERT computes of a model that we write and it
reads.

    python -m tests.golden.make_ultrabert

transformers 5.24.0 with torch 2.13.0 made the file; versions before 5.20 do not know the family.
"""

import dataclasses
from pathlib import Path

import numpy as np

from tests.golden import make_eurobert
from tests.golden.make_modernbert import record

FILE = Path(__file__).parent / "ultrabert.npz"
# A short window and thetas far apart, so that no reading of them is like another one.
MODEL = dataclasses.replace(
    make_eurobert.MODEL,
    classifier_pooling="cls",
    layer_norm_eps=1e-6,
    rope_theta=1_000.0,
    local_rope_theta=100.0,
    attention_window=16,
    global_attention_every_n_layers=3,
    first_global_layer=2,
    masked_lm_transform=True,
    masked_lm_inner_size=48,
    masked_lm_act="gelu_new",
)


def main() -> None:
    parts: dict[str, np.ndarray] = {}
    record("Ultrabert", MODEL, parts)
    np.savez_compressed(FILE, **parts)


if __name__ == "__main__":
    main()
