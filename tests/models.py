"""Random models of two sizes with every head, and a vocabulary for them."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bert_jax.config import HeadConfig, ModelConfig
from bert_jax.interchange.family import MODEL_FIELDS
from bert_jax.model import bert

_LABELS = ("neutral", "für", "contra")
HEADS = {
    "ForPreTraining": HeadConfig(),
    "ForMaskedLM": HeadConfig(parts=("mlm",)),
    "ForNextSentencePrediction": HeadConfig(parts=("pooler", "nsp")),
    "ForSequenceClassification": HeadConfig(
        parts=("pooler", "sequence_classifier"), labels=_LABELS
    ),
    "ForTokenClassification": HeadConfig(parts=("token_classifier",), labels=("O", "B-x", "I-x")),
    "ForQuestionAnswering": HeadConfig(parts=("span_classifier",)),
    "Model": HeadConfig(parts=("pooler",)),
}
SIZES = {
    "small": ModelConfig(
        vocab_size=64,
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=40,
        max_position_embeddings=20,
    ),
    "wider": ModelConfig(
        vocab_size=101,
        hidden_size=96,
        num_hidden_layers=5,
        num_attention_heads=6,
        intermediate_size=200,
        max_position_embeddings=33,
        hidden_act="gelu",
    ),
}
_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def random_params(model: ModelConfig, head: HeadConfig, *, seed: int = 0) -> Any:
    """Far from their initial values: every bias and scale has a part in every logit."""
    draw = np.random.default_rng(seed)
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: np.float32(
            (path[-1].key == "scale") + 0.2 * draw.standard_normal(leaf.shape)
        ),
        bert.abstract_params(model, head),
    )


@partial(jax.jit, static_argnames=("config", "head", "compute", "hidden_states"))
def apply(params: Any, batch: Any, **options: Any) -> dict[str, jax.Array]:
    """`bert.apply` as one program: outside of `jax.jit` each operation is compiled by itself."""
    return bert.apply(params, batch, **options)


def their_fields(model: ModelConfig) -> dict[str, Any]:
    """Returns the fields of a model that a config of transformers knows."""
    return {name: getattr(model, name) for name in MODEL_FIELDS}


def vocabulary(directory: Path, size: int = 60) -> Path:
    """A tokenizer directory with a `vocab.txt` of `size` words."""
    directory.mkdir(parents=True, exist_ok=True)
    rows = [*_SPECIAL, *(f"w{number}" for number in range(size - len(_SPECIAL)))]
    (directory / "vocab.txt").write_text("\n".join(rows) + "\n")
    return directory


def edit_config(directory: Path, **changes: Any) -> None:
    """Changes keys of `config.json`; None removes a key."""
    path = directory / "config.json"
    described = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({k: v for k, v in described.items() if v is not None}))


def batch(model: ModelConfig, *, rows: int = 8, length: int = 16) -> dict[str, np.ndarray]:
    """Pairs of segments, the later rows padded more and more."""
    draw = np.random.default_rng(1)
    place = np.arange(length)[None]
    used = length - np.arange(rows)[:, None]
    real = place < used
    return {
        "input_ids": (draw.integers(5, 60, (rows, length)) * real).astype(np.int32),
        "token_type_ids": ((place >= 5) & real).astype(np.int32),
        "position_ids": np.tile(place, (rows, 1)).astype(np.int32),
        "sequence_ids": real.astype(np.int32),
        "mlm_positions": np.tile(place, (rows, 1)).astype(np.int32),
        "nsp_positions": np.zeros((rows, 1), np.int32),
    }


def assert_same(a: Any, b: Any) -> None:
    """Equal trees, bit for bit."""
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for (path, x), y in zip(jax.tree.leaves_with_path(a), jax.tree.leaves(b), strict=True):
        x, y = np.asarray(x), np.asarray(y)
        assert x.dtype == y.dtype and x.shape == y.shape, jax.tree_util.keystr(path)
        assert x.tobytes() == y.tobytes(), jax.tree_util.keystr(path)
