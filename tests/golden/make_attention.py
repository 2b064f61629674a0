"""Writes attention.npz: queries, keys and attentions of transformers, of a model that we write.

    python -m tests.golden.make_attention

The outputs of the layers `query` and `key` are hooked; the attentions are those of its eager
implementation, in double precision. transformers 5.23 and torch 2.13 made the file.
"""

import tempfile
from pathlib import Path

import numpy as np

from bert_jax.config import HeadConfig
from bert_jax.interchange import huggingface
from tests.models import SIZES, random_params, vocabulary

FILE = Path(__file__).parent / "attention.npz"
MODEL, HEAD = SIZES["small"], HeadConfig(parts=("pooler",))
PAIR = ("w3 w1 w4 w1 w5", "w9 w2 w6")


def write(directory: Path) -> Path:
    """Writes the model to a new Hugging Face directory, and returns it."""
    words = vocabulary(directory / "words")
    huggingface.write(
        directory / "hf", random_params(MODEL, HEAD), MODEL, tokenizer=words, head=HEAD
    )
    return directory / "hf"


def their_attention(directory: Path, pair: tuple[str, str]) -> dict[str, np.ndarray]:
    """Returns `query`, `key` `[N, H, L, K]` and `weights` `[N, H, L, L]`, float64, of a directory
    that transformers reads.
    """
    import torch
    import transformers

    model = transformers.BertModel.from_pretrained(directory, attn_implementation="eager")
    model = model.double().eval()
    noted: dict[str, list[np.ndarray]] = {"query": [], "key": []}
    heads = model.config.num_attention_heads
    for layer in model.encoder.layer:
        for name, found in noted.items():

            def note(module, inputs, output, found=found):
                (x_LD,) = output.numpy()
                found.append(np.swapaxes(x_LD.reshape(len(x_LD), heads, -1), 0, 1))

            getattr(layer.attention.self, name).register_forward_hook(note)
    encoded = transformers.AutoTokenizer.from_pretrained(directory)(*pair, return_tensors="pt")
    with torch.no_grad():
        attentions = model(**encoded, output_attentions=True).attentions
    stacked = {name: np.stack(found) for name, found in noted.items()}
    return stacked | {"weights": np.stack([layer[0].numpy() for layer in attentions])}


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        found = their_attention(write(Path(name)), PAIR)
    query, key, weights = (found[name].astype(np.float32) for name in ("query", "key", "weights"))
    np.savez_compressed(FILE, query=query, key=key, weights=weights)


if __name__ == "__main__":
    main()
