"""Time and memory of one layer's attention, and the exponents of length and width in them.

    python benchmarks/attention_cost.py --workdir runs/attention_cost [--scale paper]

Self-attention multiplies an n x d matrix by a d x n one and the result by an n x d one: O(n^2 d)
(Vaswani et al. 2017, table 1). The queries, keys, values and the output map add O(n d^2), which is
more where n < 2 d. Both are measured as one, forward and backward, and separated by a fit. A
second call with the same workdir measures what is missing.

Dims: B rows, L length, D width, H heads, K head size.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy import optimize, stats

sys.path.insert(0, str(Path(__file__).parents[1]))
from bert_jax.files import write_json, write_whole
from bert_jax.model.attention.heads import join_heads, split_heads
from bert_jax.model.mask import Mask
from bert_jax.model.sharding import make_mesh
from bert_jax.pretrained.model_card import markdown_table
from bert_jax.registry import ATTENTION
from bert_jax.versions import installed
from bert_jax_lab.reports import picture

# Two CPU cores in half a minute; and what asks for an accelerator.
SCALES: dict[str, dict[str, Any]] = {
    "study": {
        "lengths": [64, 128, 256, 512, 1024, 2048],
        "widths": [64, 128, 256, 512],
        "rows": 1,
        "dtype": "float32",
        "repeats": 5,
    },
    "paper": {
        "lengths": [128, 256, 512, 1024, 2048, 4096, 8192],
        "widths": [256, 512, 768, 1024],
        "rows": 8,
        "dtype": "bfloat16",
        "repeats": 20,
    },
}
KINDS, HEAD_SIZE = ("fused", "plain"), 64
NOTE = (
    "Queries, keys, values, scores, softmax and the output map of one layer, forward and backward. "
    "O(n^2 d) would be an exponent of 2 over the length and of 1 over the width; the four maps, "
    "O(n d^2), pull them towards 1 and 2 where n is small."
)
# Longest and widest points, over which exponents are fitted: the small ones show what a call costs.
_LAST = 3
_LEVEL = 0.95
_MEASURED = {"seconds": ("Time", 1e3, "ms"), "bytes": ("Memory", 1e-6, "MB")}

Point = dict[str, Any]


def measure(kind: str, *, length: int, width: int, rows: int, dtype: str, repeats: int) -> Point:
    """Returns the time of a layer's attention, forward and backward, in seconds, and the bytes of
    its intermediate arrays, which the compiler says.
    """
    attend, heads = ATTENTION[kind], width // HEAD_SIZE
    draw = np.random.default_rng(0)

    def drawn(*shape: int) -> jax.Array:
        return jnp.asarray(draw.standard_normal(shape) / shape[-1] ** 0.5, jnp.dtype(dtype))

    def attention(weights: tuple[jax.Array, ...], x_BDL: jax.Array, ids_BL: jax.Array) -> jax.Array:
        query, key, value, out = weights
        columns = [split_heads(jnp.einsum("de,bdl->bel", w, x_BDL), heads)
                   for w in (query, key, value)]  # fmt: skip
        mask = Mask.of_rows(ids_BL, jnp.zeros_like(ids_BL))
        context_BHKL = attend(*columns, mask=mask, key=None, dropout_rate=0.0)
        y_BDL = jnp.einsum("de,bdl->bel", out, join_heads(context_BHKL))
        return jnp.sum(jnp.square(y_BDL.astype(jnp.float32)))

    mesh = make_mesh(fsdp=1, tensor=1, devices=jax.devices()[:1])
    with jax.set_mesh(mesh):
        weights = tuple(drawn(width, width) for _ in range(4))
        arrays = weights, drawn(rows, width, length), jnp.ones((rows, length), jnp.int32)
        program = jax.jit(jax.grad(attention, argnums=(0, 1))).lower(*arrays).compile()
        jax.block_until_ready(program(*arrays))
        seconds = []
        for _ in range(repeats):
            began = time.perf_counter()
            jax.block_until_ready(program(*arrays))
            seconds.append(time.perf_counter() - began)
    memory = program.memory_analysis()
    return {
        "attention": kind,
        "length": length,
        "width": width,
        "seconds": statistics.median(seconds),
        "fastest_seconds": min(seconds),
        "bytes": 0 if memory is None else int(memory.temp_size_in_bytes),
    }


def measure_missing(asked: dict[str, Any], path: Path) -> list[Point]:
    """Returns all points that are asked for, measured or as `path` has them.

    Raises SystemExit where `path` has measurements of something else.
    """
    kept = {name: asked[name] for name in ("rows", "dtype", "repeats")}
    kept["device"] = jax.devices()[0].device_kind
    points: list[Point] = []
    if path.exists():
        held = json.loads(path.read_text(encoding="utf-8"))
        points = held["points"]
        if any(held["asked"].get(name) != value for name, value in kept.items()):
            sys.exit(f"{path} has measurements of {held['asked']}, not of {kept}")
    there = {(p["attention"], p["length"], p["width"]): p for p in points}
    wanted = [(k, n, d) for k in KINDS for d in asked["widths"] for n in asked["lengths"]]
    options = {name: asked[name] for name in ("rows", "dtype", "repeats")}
    for kind, length, width in wanted:
        if (kind, length, width) not in there:
            point = measure(kind, length=length, width=width, **options)
            there[kind, length, width] = point
            write_json(path, {"asked": kept, "points": [*there.values()]})
            print(f"{kind}, {length} tokens, width {width}: {1e3 * point['seconds']:.2f} ms")
    return [there[point] for point in wanted]


def fit(points: Sequence[Point]) -> dict[str, Any]:
    """Returns the exponents of length and width, and how much of the time is which term.

    An exponent is the slope of a line in logarithms over the three longest (or widest) points,
    with its standard error and its 95 % interval by Student's t. The shares are those of a n^2 d
    and b n d^2 at the longest and widest point; a and b are fitted to all times, each error
    relative to its time (scipy.optimize.nnls).
    """
    found: dict[str, Any] = {}
    for measured in _MEASURED:
        for x, fixed in (("length", "width"), ("width", "length")):
            slopes = {}
            for at in sorted({point[fixed] for point in points}):
                line = sorted((p[x], p[measured]) for p in points if p[fixed] == at)[-_LAST:]
                if len(line) == _LAST:
                    logs = np.log(np.array(line, float))
                    slope: Any = stats.linregress(logs[:, 0], logs[:, 1])
                    reach = float(stats.t.ppf((1 + _LEVEL) / 2, _LAST - 2) * slope.stderr)
                    slopes[str(at)] = {
                        "exponent": float(slope.slope),
                        "standard_error": float(slope.stderr),
                        "interval": [float(slope.slope) - reach, float(slope.slope) + reach],
                    }
            found[f"{measured} over {x}"] = slopes
    n, d, seconds = (
        np.array([float(point[name]) for point in points])
        for name in ("length", "width", "seconds")
    )
    terms = np.stack([n**2 * d, n * d**2, np.ones_like(n)], axis=1)
    weights, _ = optimize.nnls(terms / seconds[:, None], np.ones_like(seconds))
    parts = weights * terms[np.argmax(n * d)]
    found["seconds = a n^2 d + b n d^2 + c"] = {
        "a": float(weights[0]),
        "b": float(weights[1]),
        "c": float(weights[2]),
        "share_of_n2d_at_the_largest": float(parts[0] / parts.sum()),
    }
    return found


def times(points: Sequence[Point]) -> str:
    """Returns the table of times and memory."""
    widths = sorted({point["width"] for point in points})
    columns = ["attention", "length", *(f"width {width}: ms, MB" for width in widths)]
    lines: dict[tuple[str, int], dict[int, str]] = {}
    for point in points:
        cell = f"{1e3 * point['seconds']:.2f}, {point['bytes'] / 1e6:.1f}"
        lines.setdefault((point["attention"], point["length"]), {})[point["width"]] = cell
    return markdown_table(columns, [
        [kind, f"{length:,}", *(cells.get(width, "–") for width in widths)]
        for (kind, length), cells in lines.items()
    ])  # fmt: skip


def exponents(fits: dict[str, Any]) -> list[str]:
    """Returns the paragraphs on the fits of each kind of attention, their table first."""
    columns = ["attention", "exponent of", "at", "value", "standard error", "95 % interval"]
    lines = [
        [kind, name, f"{(name.split()[-1] == 'length' and 'width') or 'length'} {at}",
         f"{slope['exponent']:.2f}", f"{slope['standard_error']:.2f}",
         "{:.2f} to {:.2f}".format(*slope["interval"])]
        for kind, found in fits.items()
        for name, slopes in found.items()
        if " over " in name
        for at, slope in slopes.items()
    ]  # fmt: skip
    parts = [
        markdown_table(columns, lines),
        f"A line through the {_LAST} longest or widest points: {_LAST - 2} degree of freedom, and "
        "intervals by Student's t.",
    ]
    for kind, found in fits.items():
        share = found["seconds = a n^2 d + b n d^2 + c"]["share_of_n2d_at_the_largest"]
        parts.append(f"{kind}: at the largest point {share:.0%} of the time goes as n^2 d.")
    return parts


def draw(points: Sequence[Point], measured: str, directory: Path) -> str:
    """Draws time or memory over the length, a line for each width; returns it as Markdown."""
    word, scale, unit = _MEASURED[measured]
    title = f"{word} of one layer's attention"
    lines = sorted({(point["attention"], point["width"]) for point in points})
    widths = sorted({width for _, width in lines})

    def line(kind: str, width: int) -> list[tuple[int, float]]:
        own = [p for p in points if p["attention"] == kind and p["width"] == width]
        return sorted((p["length"], scale * p[measured]) for p in own)

    def plot(axes: Any) -> None:
        for kind, width in lines:
            axes.plot(
                *zip(*line(kind, width), strict=True),
                ("-", "--")[KINDS.index(kind)],
                marker=".",
                color=f"C{widths.index(width)}",
                label=f"{kind}, width {width}",
            )
        axes.set(title=title, xlabel="tokens", ylabel=unit, yscale="log")
        axes.set_xscale("log", base=2)
        axes.legend(fontsize="small", ncols=2)

    ends = []
    for kind, width in lines:
        (shortest, first), (longest, last) = (line(kind, width)[end] for end in (0, -1))
        ends.append(
            f"{kind} at width {width} from {first:.3g} {unit} for {shortest} tokens to {last:.3g} "
            f"{unit} for {longest}"
        )
    alt = f"{title}. {'; '.join(ends)}."
    files = [directory / f"{measured}.{kind}" for kind in ("png", "svg")]
    picture.draw(plot, *files, title=title, alt=alt)
    return f"## {title}\n\n![{alt}]({directory.name}/{measured}.png)"


def main() -> None:
    parser = argparse.ArgumentParser(description="Time and memory of one layer's attention.")
    parser.add_argument("--workdir", type=Path, required=True)
    parser.add_argument("--scale", choices=SCALES, default="study")
    for name in ("lengths", "widths"):
        parser.add_argument(f"--{name}", type=int, nargs="+", help="others than the scale's")
    arguments = parser.parse_args()
    asked = SCALES[arguments.scale] | {
        name: given for name in ("lengths", "widths") if (given := getattr(arguments, name))
    }
    workdir: Path = arguments.workdir
    (workdir / "figures").mkdir(parents=True, exist_ok=True)
    points = measure_missing(asked, workdir / "points.json")
    fits = {kind: fit([p for p in points if p["attention"] == kind]) for kind in KINDS}
    facts = {"asked": asked, "versions": installed("bert-jax", "jax", "jaxlib")}
    write_json(workdir / "study.json", {**facts, "points": points, "fits": fits})
    parts = [
        "# The cost of attention over length and width",
        f"`python benchmarks/attention_cost.py --workdir {workdir} --scale {arguments.scale}`, on "
        f"{jax.devices()[0].device_kind}.",
        times(points),
        NOTE,
        "## Exponents",
        *exponents(fits),
        *(draw(points, measured, workdir / "figures") for measured in _MEASURED),
    ]
    write_whole(workdir / "study.md", "\n\n".join(parts) + "\n")
    print(f"{workdir}/study.md has the table, exponents and figures")


if __name__ == "__main__":
    main()
