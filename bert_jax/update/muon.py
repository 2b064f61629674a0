"""Muon: orthogonalized momentum for hidden matrices, and AdamW for all other parameters.

Jordan et al. 2024 (github.com/KellerJordan/Muon), with the scale of Liu et al. 2025 (Moonshot,
arXiv:2502.16982), under which AdamW's learning rate and decay carry over.
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from bert_jax.config import Optimizer
from bert_jax.config.fields import Rate, section, setting
from bert_jax.update.optimizers import adam_with_decay

# The quintic polynomial that moves every singular value near 1 in five steps (Jordan et al. 2024).
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_STEPS = 5
# As in the published code; singular values end between 0.7 and 1.2 also in float32.
_DTYPE = jnp.bfloat16
_EPSILON = 1e-7
# Root mean square of AdamW's updates, which Moonshot's scale reproduces.
_RMS = 0.2


@section
class Muon(Optimizer, kind="muon"):
    """Muon for the kernels of the encoder's layers, and AdamW with bias correction for the rest:
    embeddings, heads, biases and norm scales.
    """

    momentum: Rate = setting(0.95, "Share of the old momentum that is kept.")

    def transformation(self) -> optax.GradientTransformation:
        return optax.partition(
            {
                "muon": optax.chain(
                    scale_by_muon(momentum=self.momentum),
                    optax.add_decayed_weights(self.weight_decay),
                    optax.scale(-1.0),
                ),
                "adam": optax.chain(
                    adam_with_decay(self, bias_correction=True, clip_norm=0.0), optax.scale(-1.0)
                ),
            },
            _labels,
        )


def _labels(params: Any) -> Any:
    """Returns "muon" for each matrix between the embeddings and the heads, "adam" for the rest."""

    def label(path, leaf):
        names = [entry.key for entry in path]
        is_hidden = any(name.startswith("layer_") for name in names[:-1])
        return "muon" if is_hidden and names[-1] == "kernel" and leaf.ndim == 2 else "adam"

    return jax.tree_util.tree_map_with_path(label, params)


def scale_by_muon(*, momentum: float) -> optax.GradientTransformation:
    """Gives orthogonal(Nesterov momentum) x 0.2 x sqrt(the larger dim) for each matrix."""

    def update(updates, state, params=None):
        buffers = jax.tree.map(lambda b, g: momentum * b + (1 - momentum) * g, state, updates)

        def move(buffer, gradient):
            ahead = momentum * buffer + (1 - momentum) * gradient
            return orthogonal(ahead) * (_RMS * max(ahead.shape) ** 0.5)

        return jax.tree.map(move, buffers, updates), buffers

    return optax.GradientTransformation(lambda params: optax.tree.zeros_like(params), update)


def orthogonal(x: jax.Array) -> jax.Array:
    """Returns approximately U V^T for `x` = U S V^T: five Newton-Schulz steps. float32 [rows,
    columns].

    The matmuls use the smaller of x x^T and x^T x.
    """
    is_tall = x.shape[0] > x.shape[1]
    # Divided before rounding: otherwise small gradients would underflow.
    x = x / jnp.maximum(jnp.sqrt(jnp.sum(x * x)), _EPSILON)
    x = (x.T if is_tall else x).astype(_DTYPE)
    a, b, c = _COEFFICIENTS
    for _ in range(_STEPS):
        square = x @ x.T
        x = a * x + (b * square + c * square @ square) @ x
    return (x.T if is_tall else x).astype(jnp.float32)
