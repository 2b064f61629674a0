"""Writes modernbert.npz: what transformers' ModernBERT computes of a model that we write and it
reads, and what it writes of it.

    python -m tests.golden.make_modernbert

Run it with transformers 4 and again with 5 (4.57.6 and 5.24.0 made the file, with torch 2.13.0):
each adds what is its own. It ends with an error where their directory, read and written here, is
not the same to them, bit for bit.
"""

import tempfile
from pathlib import Path
from typing import Any

import jax
import numpy as np
import safetensors.numpy

from bert_jax.config import HeadConfig, ModelConfig
from bert_jax.interchange import huggingface, safetensors_files
from bert_jax.model import bert
from tests.models import assert_same, vocabulary

FILE = Path(__file__).parent / "modernbert.npz"
HEAD = HeadConfig(parts=("mlm",))
_LABELS = ("neutral", "für", "contra")
TASKS = {
    "SequenceClassification": HeadConfig(
        parts=("pooler", "sequence_classifier"), labels=_LABELS, transform=True
    ),
    "TokenClassification": HeadConfig(parts=("token_classifier",), labels=_LABELS, transform=True),
    "QuestionAnswering": HeadConfig(parts=("span_classifier",), transform=True),
}
# A short window and thetas far apart, so that no reading of them is like another one.
MODEL = ModelConfig(
    vocab_size=64,
    hidden_size=64,
    num_hidden_layers=4,
    num_attention_heads=4,
    intermediate_size=96,
    hidden_act="gelu",
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
    max_position_embeddings=128,
    type_vocab_size=0,
    layer_norm_eps=1e-5,
    scale_output_init=True,
    position_embedding_type="rotary",
    rope_theta=1_000.0,
    local_rope_theta=100.0,
    norm_placement="pre",
    first_norm=False,
    norm_bias=False,
    linear_bias=False,
    feed_forward="gated",
    attention_window=16,
    global_attention_every_n_layers=3,
)
# Of documents. The last three also share a row.
LENGTHS = (64, 40, 24, 30)


def params(model: ModelConfig = MODEL, head: HeadConfig = HEAD) -> Any:
    """With weights of 0.02 most wrong readings would move no logit by 1e-3."""
    draw = np.random.default_rng(0)

    def drawn(path, leaf):
        x, name = draw.standard_normal(leaf.shape), path[-1].key
        x *= {"kernel": leaf.shape[0] ** -0.5, "embedding": 0.1, "scale": 0.3, "bias": 0.1}[name]
        return np.float32(x + (name == "scale"))

    return jax.tree_util.tree_map_with_path(drawn, bert.abstract_params(model, head))


def documents() -> list[np.ndarray]:
    draw = np.random.default_rng(1)
    return [draw.integers(5, 60, length).astype(np.int32) for length in LENGTHS]


def sample(gradient: np.ndarray) -> np.ndarray:
    """Every so many numbers of a gradient, which the file keeps: 32 to 63 of them or all."""
    return gradient.ravel()[:: max(1, gradient.size // 32)].astype(np.float32)


def record(name: str, model: ModelConfig, parts: dict[str, np.ndarray]) -> None:
    """Adds to `parts` what the family's masked-LM class computes and writes."""
    import torch
    import transformers

    version, *_ = transformers.__version__.split(".")
    tree, kind = params(model), getattr(transformers, f"{name}ForMaskedLM")
    tokens = [torch.tensor(ids)[None].long() for ids in documents()]

    def loaded(directory: Path) -> Any:
        theirs, told = kind.from_pretrained(
            directory, attn_implementation="eager", output_loading_info=True
        )
        assert not any(told[key] for key in ("missing_keys", "unexpected_keys")), told
        return theirs.eval()

    with tempfile.TemporaryDirectory() as temporary:
        folder, words = Path(temporary), vocabulary(Path(temporary) / "words")
        huggingface.write(folder / "ours", tree, model, tokenizer=words, head=HEAD)
        loaded(folder / "ours").save_pretrained(folder / "theirs")
        back = huggingface.read(folder / "theirs")
        assert (back.model, back.head) == (model, HEAD)
        assert_same(back.params, tree)
        huggingface.write(folder / "again", back.params, back.model, tokenizer=words, head=HEAD)
        first, *others = [
            safetensors.numpy.load_file(folder / each / safetensors_files.WEIGHTS)
            for each in ("theirs", "ours", "again")
        ]
        for tensors in others:
            assert_same(tensors, first)
        theirs, again = (loaded(folder / each) for each in ("theirs", "again"))
        for ids in tokens:
            with torch.no_grad():
                assert torch.equal(theirs(ids).logits, again(ids).logits)
        parts[f"{version}.config"] = np.array((folder / "theirs" / "config.json").read_text())
        parts[f"{version}.tensors"] = np.array(sorted(first))
    exact = theirs.double()
    for number, ids in enumerate(tokens):
        logits = exact(ids).logits[0]
        parts[f"{version}.logits.{number}"] = logits.detach().numpy().astype(np.float32)
        if number == 0:
            logits.sin().mean().backward()
    for tensor, parameter in exact.named_parameters():
        gradient = parameter.grad.numpy()
        parts[f"{version}.gradient.{tensor}"] = sample(gradient)
        parts[f"{version}.largest.{tensor}"] = np.abs(gradient).max().astype(np.float32)


def main() -> None:
    parts = dict(np.load(FILE)) if FILE.exists() else {}
    record("ModernBert", MODEL, parts)
    np.savez_compressed(FILE, **parts)


if __name__ == "__main__":
    main()
