"""FLOPs of a step in closed form, and the peak rate for MFU."""

import time
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.config import ModelConfig, PhaseConfig
from bert_jax.objectives.objective import Objective
from bert_jax.update.chips import PEAK_BF16


def train_flops(objective: Objective, model: ModelConfig, phase: PhaseConfig) -> int:
    """Returns the FLOPs of one update on a global batch.

    The backward pass costs two forward passes. Recomputation is not counted: MFU measures useful
    work (Chowdhery et al. 2022, appendix B).
    """
    return 3 * phase.global_batch_size * objective.forward_flops(model, phase)


def peak_flops(dtype: str) -> float:
    """Returns the peak FLOP/s of all devices together, from the table of chips, or measured on one
    device that is not in the table; devices that share a host's cores count once.
    """
    device = jax.devices()[0]
    if device.device_kind in PEAK_BF16:
        return PEAK_BF16[device.device_kind] * jax.device_count()
    devices = jax.process_count() if device.platform == "cpu" else jax.device_count()
    return measured_flops(device, dtype)[0] * devices


def measured_flops(device: Any, dtype: str, *, rounds: int = 5) -> tuple[float, jax.Array]:
    """Returns the FLOP/s of the fastest of several products of two square matrices of ones (width
    1,024 on a CPU, 8,192 elsewhere), and the product.
    """
    size = 1024 if device.platform == "cpu" else 8192
    x = jax.device_put(jnp.ones((size, size), jnp.dtype(dtype)), device)
    product = jax.jit(jnp.matmul).lower(x, x).compile()
    seconds = []
    for _ in range(rounds):
        start = time.perf_counter()
        y = jax.block_until_ready(product(x, x))
        seconds.append(time.perf_counter() - start)
    return 2 * size**3 / min(seconds), y
