"""Compares attention backends on a GPU, one layer forward and backward: errors and time.

    python benchmarks/gpu_attention.py [--tokens 16384] [--dropout 0.1] [--blocks] [NAME ...]

Heads of size 64 in bfloat16. Rows are packed with sequences of random lengths, with some padding at
the end of every row. The error is the largest difference from `plain` in float32 over real tokens,
relative to the largest value, for outputs and gradients; `plain` in bfloat16 also has an error. A
program chains several calls of the layer, and the fastest of five runs counts. `--blocks` only
measures the kernels of `triton`, with other block sizes.
"""

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.model.attention import triton
from bert_jax.model.attention.triton import KernelBlocks
from bert_jax.model.dropout import DropoutKey
from bert_jax.model.mask import Mask
from bert_jax.registry import ATTENTION

_SIZE, _WINDOW = 64, 128
_LAYERS, _RUNS = 8, 5
# Queries, keys, warps and stages of each kernel; one of them is changed at a time.
_BLOCKS = {
    "_FORWARD": [(64, 32, 4, 3), (64, 64, 4, 3), (128, 64, 4, 3), (128, 64, 8, 3)],
    "_BACKWARD_KEYS": [(32, 64, 4, 3), (32, 64, 4, 2), (64, 64, 4, 2), (32, 64, 4, 1)],
    "_BACKWARD_QUERIES": [(64, 32, 4, 3), (64, 64, 4, 3), (128, 32, 4, 2), (64, 64, 4, 1)],
}


def mask_of(
    rows: int, length: int, window: int | None, mean: float, draw: np.random.Generator
) -> Mask:
    ids, places = np.zeros((2, rows, length), np.int32)
    for row in range(rows):
        at, number = 0, 1
        while at < length - 20:
            end = min(at + 20 + int(draw.exponential(mean)), length - int(draw.integers(1, 20)))
            ids[row, at:end], places[row, at:end] = number, np.arange(end - at)
            at, number = end, number + 1
    return Mask.of_rows(jnp.asarray(ids), jnp.asarray(places), window=window)


def layer(name: str, mask: Mask, rate: float):
    """Returns a function of queries, keys, values and the gradient of the output: the outputs at
    real tokens, and the three gradients."""
    real = (mask.query_ids_BL > 0)[:, None, None]
    rows = jnp.arange(real.shape[0])
    key = DropoutKey.create(seed=0, step=jnp.uint32(0), rows_B=rows) if rate else None

    def outputs(q, k, v):
        found = ATTENTION[name].attend(q, k, v, mask=mask, bias_BHLS=None, key=key, rate=rate)
        return jnp.where(real, found, 0)

    def both(q, k, v, g):
        out, pull = jax.vjp(outputs, q, k, v)
        return out, *pull(g.astype(out.dtype))

    return both


def seconds(name: str, mask: Mask, arrays, rate: float) -> float:
    """Returns the time of one layer."""
    both = layer(name, mask, rate)

    def many(q, k, v, g):
        for _ in range(_LAYERS):
            out, dq, dk, dv = both(q, k, v, g)
            q, k, v, g = out + 0.1 * dq, k + 0.1 * dk, v + 0.1 * dv, g
        return q, k, v

    program = jax.jit(many)
    return fastest(lambda: program(*arrays), times=1) / _LAYERS


def fastest(call: Callable[[], Any], *, times: int) -> float:
    """Returns the time of a call: the fastest of several runs with `times` calls each."""
    jax.block_until_ready(call())
    found = []
    for _ in range(_RUNS):
        began = time.perf_counter()
        jax.block_until_ready([call() for _ in range(times)][-1])
        found.append((time.perf_counter() - began) / times)
    return min(found)


def try_blocks(mask: Mask, arrays, rate: float) -> None:
    """Prints the time of the forward pass for each choice of its blocks, and of the backward pass
    for each choice of its two kernels' blocks."""
    by_token = [jnp.transpose(x, (0, 3, 1, 2)) for x in arrays]
    length = by_token[0].shape[1]
    key = DropoutKey.create(seed=0, step=jnp.uint32(0), rows_B=jnp.arange(len(by_token[0])))
    _, kept = jax.jit(lambda *x: triton._forward(*x, mask, key, rate))(*by_token[:3])

    def forward(*arrays):
        return triton._forward(*arrays, mask, key, rate)[0]

    def backward(kept, g):
        return triton._backward(rate, kept, g)[:3]

    for kernel, choices in _BLOCKS.items():
        own = getattr(triton, kernel)
        is_forward = kernel == "_FORWARD"
        given = by_token[:3] if is_forward else (kept, by_token[3])
        for blocks in choices:
            setattr(triton, kernel, KernelBlocks(*blocks))
            # A new function for each choice, because jax would reuse the previous program.
            program = jax.jit(partial(forward if is_forward else backward)).lower(*given).compile()
            ms = 1000 * fastest(lambda: program(*given), times=20)  # noqa: B023
            print(f"| {length:,} | `{kernel}` | {blocks} | {ms:.3f} |", flush=True)
        setattr(triton, kernel, own)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=["cudnn", "fused", "chunked", "plain", "local"])
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--mean", type=float, default=250, help="mean tokens per sequence")
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--blocks", action="store_true")
    parser.add_argument("--lengths", type=int, nargs="+", default=[128, 512, 1024, 8192])
    options = parser.parse_args()
    print(f"{jax.devices()[0].device_kind}, jax {jax.__version__}, {options.tokens} tokens")
    print("| length | window | backend | ms | output error | gradient error |")
    print("|---|---|---|---|---|---|", flush=True)
    for length in options.lengths:
        rows = max(options.tokens // length, 1)
        draw = np.random.default_rng(0)
        exact = [
            jnp.asarray(draw.normal(size=(rows, options.heads, _SIZE, length)), jnp.float32)
            for _ in range(4)
        ]
        rounded = [x.astype(jnp.bfloat16) for x in exact]
        if options.blocks:
            try_blocks(mask_of(rows, length, None, options.mean, draw), rounded, options.dropout)
            continue
        for window in (None, _WINDOW):
            mask = mask_of(rows, length, window, options.mean, draw)
            small = [x[:1] for x in exact]
            one = jax.tree.map(lambda x: x[:1], mask)
            with jax.default_matmul_precision("float32"):
                wanted = jax.jit(layer("plain", one, options.dropout))(
                    *(x[:1].astype(jnp.float32) for x in rounded)
                )
            for name in options.names:
                if (name == "local") != (window is not None):
                    continue
                try:
                    found = jax.jit(layer(name, one, options.dropout))(
                        *(x.astype(jnp.bfloat16) for x in small)
                    )
                    apart = [
                        float(jnp.abs(f.astype(jnp.float32) - w).max() / jnp.abs(w).max())
                        for f, w in zip(found, wanted, strict=True)
                    ]
                    ms = f"{1000 * seconds(name, mask, rounded, options.dropout):.3f}"
                except Exception as error:  # unsupported kernels are also listed
                    ms, apart = f"{type(error).__name__}: {str(error)[:300]}", [float("nan")] * 4
                row = (f"{length:,} x {rows}", window or "all", f"`{name}`", ms, f"{apart[0]:.1e}")
                print(f"| {' | '.join(map(str, row))} | {max(apart[1:]):.1e} |", flush=True)


if __name__ == "__main__":
    main()
