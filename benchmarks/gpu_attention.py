"""Compares attention backends on a GPU, one layer forward and backward: errors and time.

    python benchmarks/gpu_attention.py [--tokens 16384] [--dropout 0.1] [NAME ...]

Heads of size 64 in bfloat16. Rows are packed with sequences of random lengths, with some padding at
the end of every row. The error is the largest difference from `plain` in float32 over real tokens,
relative to the largest value, for outputs and gradients; `plain` in bfloat16 also has an error. A
program chains several calls of the layer, and the fastest of five runs counts.
"""

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.model.attention import Call
from bert_jax.model.dropout import DropoutKey
from bert_jax.model.mask import Mask
from bert_jax.registry import ATTENTION

_SIZE, _WINDOW = 64, 128
_LAYERS, _RUNS = 8, 5


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
        found = ATTENTION[name].attend(Call(q, k, v, mask, None, key, rate))
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
    jax.block_until_ready(program(*arrays))
    found = []
    for _ in range(_RUNS):
        began = time.perf_counter()
        jax.block_until_ready(program(*arrays))
        found.append(time.perf_counter() - began)
    return min(found) / _LAYERS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=["cudnn", "fused", "chunked", "plain", "local"])
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--mean", type=float, default=250, help="mean tokens per sequence")
    parser.add_argument("--dropout", type=float, default=0.0)
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
