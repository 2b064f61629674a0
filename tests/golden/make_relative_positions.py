"""Writes relative_positions.npz: what transformers 4 computes of models that we write and it reads.

    python -m tests.golden.make_relative_positions

It needs transformers 4 (4.57.6 made the file): version 5 has left these positions out.
"""

import tempfile
from pathlib import Path

import numpy as np

from bert_jax.config import HeadConfig, ModelConfig
from bert_jax.interchange import huggingface
from tests.models import batch, random_params, vocabulary

FILE = Path(__file__).parent / "relative_positions.npz"
KINDS = ("relative_key", "relative_key_query")
HEAD = HeadConfig(parts=("mlm",))


def model(kind: str) -> ModelConfig:
    return ModelConfig(
        vocab_size=60,
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=40,
        max_position_embeddings=16,
        hidden_act="gelu",
        position_embedding_type=kind,
    )


def main() -> None:
    import torch
    import transformers

    assert transformers.__version__.startswith("4."), transformers.__version__
    found = {}
    for kind in KINDS:
        config = model(kind)
        arrays = batch(config, rows=3)
        with tempfile.TemporaryDirectory() as name:
            written = Path(name) / "hf"
            words = vocabulary(Path(name) / "words")
            params = random_params(config, HEAD)
            huggingface.write(written, params, config, tokenizer=words, head=HEAD)
            theirs = transformers.BertForMaskedLM.from_pretrained(
                written, attn_implementation="eager"
            )
        ids, types, mask = (
            torch.tensor(arrays[name]).long()
            for name in ("input_ids", "token_type_ids", "sequence_ids")
        )
        with torch.no_grad():
            out = theirs.double().eval()(ids, token_type_ids=types, attention_mask=mask)
        found[kind] = out.logits.numpy().astype(np.float32)
    np.savez_compressed(FILE, **found)


if __name__ == "__main__":
    main()
