"""Parameters and 200 gradients that several optimisers are given, ours and those of others."""

import numpy as np

STEPS, WEIGHT_DECAY = 200, 0.1
RATES = {"stable_adamw": 1e-3, "muon": 1e-3, "lamb": 1e-3}
_SHAPES = {
    "encoder/layer_0/query/kernel": (128, 140),
    "encoder/layer_0/output/kernel": (150, 128),
    "encoder/layer_0/output/bias": (128,),
    "encoder/layer_0/output_norm/scale": (128,),
    "encoder/embeddings/word/embedding": (130, 128),
}


def parameters() -> dict[str, np.ndarray]:
    """Returns the beginning, float32 by path; one tensor is zero, as LAMB's exception wants."""
    draw = np.random.default_rng(0)
    found = {name: draw.normal(0, 0.05, shape) for name, shape in _SHAPES.items()}
    found["encoder/layer_0/output/bias"][:] = 0
    return {name: value.astype(np.float32) for name, value in found.items()}


def gradients(step: int) -> dict[str, np.ndarray]:
    """Returns the gradients of a step: sizes from small to large, some rows without any."""
    draw = np.random.default_rng([1, step])
    size = 10.0 ** draw.uniform(-3, 0)
    found = {name: draw.normal(0.3 * size, size, shape) for name, shape in _SHAPES.items()}
    found["encoder/embeddings/word/embedding"][draw.integers(0, 130, 90)] = 0
    return {name: value.astype(np.float32) for name, value in found.items()}


def nested(flat: dict) -> dict:
    """Returns `{"a": {"b": x}}` for `{"a/b": x}`."""
    tree: dict = {}
    for name, value in flat.items():
        *folders, leaf = name.split("/")
        inner = tree
        for folder in folders:
            inner = inner.setdefault(folder, {})
        inner[leaf] = value
    return tree


def sampled(values: np.ndarray) -> np.ndarray:
    """Returns every fifth column of every seventh row: what the golden file keeps."""
    return values[::7, ::5] if values.ndim == 2 else values[::5]
