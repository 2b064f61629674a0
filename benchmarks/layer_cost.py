"""Measures time and memory of mixers over length and width: table 1 of Vaswani et al. 2017.

    python benchmarks/layer_cost.py --workdir runs/layer_cost
    python benchmarks/layer_cost.py --workdir runs/local --kinds restricted --window 128 \
        --lengths 512 1024 2048 4096 8192 --widths 256

Self-attention costs O(n^2 d), restricted attention O(r n d), a convolution O(k n d^2) and a
recurrence O(n d^2). Each is measured as in a model, with its linear layers, forward and backward. A
second call with the same workdir reuses all measurements.

Dims: L length, D width.
"""

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from scipy import stats

sys.path.insert(0, str(Path(__file__).parents[1]))
from bert_jax import config_loader
from bert_jax.config import Mixing, ModelConfig
from bert_jax.files import write_json, write_whole
from bert_jax.model.layer_spec import layer_specs
from bert_jax.model.mask import Mask
from bert_jax.pretrained.model_card import markdown_table
from bert_jax.registry import ATTENTION, POSITIONS
from bert_jax.versions import installed

# Registers the convolution and the GRU.
config_loader.execute(Path(__file__).parents[1] / "studies" / "extend" / "layer_types.py")

LENGTHS, WIDTHS, ROUNDS = (128, 256, 512, 1024, 2048, 4096), (64, 128, 256, 512), 7
HEAD_SIZE, WINDOW = 64, 32
# The change of the model for each kind, and the complexity in table 1.
KINDS: dict[str, tuple[dict[str, Any], str]] = {
    "attention": ({}, "n² d"),
    "restricted": ({"attention_window": WINDOW}, "r n d"),
    "convolution": ({"mixer": Mixing.of_kind("convolution")()}, "k n d²"),
    "gru": ({"mixer": Mixing.of_kind("gru")()}, "n d²"),
}
_LEVEL = 0.95
# A shorter call is repeated within one measurement.
_SHORTEST = 0.01

Point = dict[str, Any]


def model_of(kind: str, *, length: int, width: int, window: int = WINDOW) -> ModelConfig:
    changes = KINDS[kind][0]
    if "attention_window" in changes:
        changes = {"attention_window": window}
    return ModelConfig(
        hidden_size=width,
        num_attention_heads=max(1, width // HEAD_SIZE),
        num_hidden_layers=1,
        max_position_embeddings=length,
        position_embedding_type="none",
        attention_probs_dropout_prob=0.0,
        **changes,
    )


def mixing(model: ModelConfig, *, length: int) -> tuple[Callable[..., jax.Array], Any]:
    """Returns a function of parameters and tokens `[1, L, D]`, one layer's mixer, and initial
    parameters.
    """
    (layer,) = layer_specs(model)
    modules = model.mixer.entry().build(model, layer, rngs=nnx.Rngs(0))
    graphs = {name: nnx.split(module) for name, module in modules.items()}
    position = POSITIONS[model.position_embedding_type](model, rngs=nnx.Rngs(0))
    place = np.arange(length, dtype=np.int32)[None]
    mask = Mask.of_rows(np.ones_like(place), place, window=layer.window)

    def mix(params: Any, x_BLD: jax.Array) -> jax.Array:
        own = {name: nnx.merge(graph, params[name]) for name, (graph, _) in graphs.items()}
        return model.mixer.entry()(
            SimpleNamespace(config=model, layer=layer, **own),
            x_BLD,
            x_BLD,
            mask=mask,
            position=position,
            attend=ATTENTION["fused"],
            key=None,
            read_BR=None,
        )

    return mix, {name: state for name, (_, state) in graphs.items()}


def loop_length(jaxpr: Any) -> int:
    """Returns the iterations of the longest loop in a program: its sequential steps."""
    longest = 1
    for equation in jaxpr.eqns:
        if equation.primitive.name == "scan":
            longest = max(longest, equation.params["length"])
        for value in equation.params.values():
            inside = getattr(value, "jaxpr", value)
            if hasattr(inside, "eqns"):
                longest = max(longest, loop_length(inside))
    return longest


def ways(kind: str, *, length: int, width: int, window: int = WINDOW) -> tuple[int, int]:
    """Returns the sequential steps of one layer, and its reach: the distance of the farthest column
    with a gradient.
    """
    mix, params = mixing(model_of(kind, length=length, width=width, window=window), length=length)
    x_BLD = jnp.asarray(np.random.default_rng(0).standard_normal((1, length, width)), jnp.float32)
    # In a short row, because gates attenuate distant gradients until they are rounded to zero.
    seen = jax.grad(lambda x: jnp.sum(mix(params, x)[0, 0]))(x_BLD)
    far = int(np.flatnonzero(np.abs(seen[0]).max(axis=-1)).max())
    return loop_length(jax.make_jaxpr(mix)(params, x_BLD).jaxpr), far


def measure(
    kind: str, width: int, lengths: Sequence[int], rounds: int, window: int = WINDOW
) -> list[Point]:
    """Returns a point for each length. A round measures all lengths, so that other load on the
    machine affects all of them; within a point, rounds are separate measurements.
    """
    programs, points = [], []
    for length in lengths:
        model = model_of(kind, length=length, width=width, window=window)
        mix, params = mixing(model, length=length)
        draw = np.random.default_rng(0)
        x_BLD = jnp.asarray(draw.standard_normal((1, length, width)), jnp.float32)

        def loss(params: Any, x_BLD: jax.Array, mix=mix) -> jax.Array:
            return jnp.sum(jnp.square(mix(params, x_BLD)))

        arrays = params, x_BLD
        program = jax.jit(jax.grad(loss, argnums=(0, 1))).lower(*arrays).compile()
        jax.block_until_ready(program(*arrays))
        programs.append((program, arrays))
        memory = program.memory_analysis()
        (layer,) = layer_specs(model)
        flops = model.mixer.entry().flops(model, layer, length=length, queries=length)
        points.append({
            "kind": kind, "width": width, "length": length, "flops": 3 * flops, "rounds": [],
            "bytes": 0 if memory is None else int(memory.temp_size_in_bytes),
        })  # fmt: skip
    for _ in range(rounds):
        for (program, arrays), point in zip(programs, points, strict=True):
            calls, began = 0, time.perf_counter()
            while (spent := time.perf_counter() - began) < _SHORTEST or not calls:
                jax.block_until_ready(program(*arrays))
                calls += 1
            point["rounds"].append(spent / calls)
    for point in points:
        point["seconds"] = statistics.median(point["rounds"])
    return points


def slope(x: Sequence[float], y: Sequence[float]) -> tuple[float, float]:
    """Returns the slope of a line in logarithms, and half the width of its 95 % interval by
    Student's t, from the residuals of the points.
    """
    found: Any = stats.linregress(np.log(x), np.log(y))
    reach = stats.t.ppf((1 + _LEVEL) / 2, len(x) - 2) * found.stderr
    return float(found.slope), float(reach)


def exponents(points: Sequence[Point], x: str, at: dict[str, int]) -> dict[str, Any]:
    """Returns the exponents of time, memory and FLOPs over `x`, through all points at a fixed other
    size; and the lowest and highest time exponent of a single round.
    """
    line = sorted(
        (p for p in points if all(p[name] == value for name, value in at.items())),
        key=lambda p: p[x],
    )
    sizes = [p[x] for p in line]
    rounds = [slope(sizes, times)[0] for times in zip(*(p["rounds"] for p in line), strict=True)]
    found = {name: slope(sizes, [p[name] for p in line]) for name in ("seconds", "bytes", "flops")}
    return {**found, "rounds": (min(rounds), max(rounds))}


def tables(points: Sequence[Point], asked: dict[str, Any]) -> list[str]:
    """Returns the tables of steps and paths, of times, and of exponents."""
    lengths, widths = asked["lengths"], asked["widths"]
    kinds = {kind: KINDS[kind] for kind in asked["kinds"]}
    longest, narrowest, widest = max(lengths), min(widths), max(widths)
    steps, lines = [], []
    for kind, (_, cost) in kinds.items():
        loop, far = ways(kind, length=min(lengths), width=min(widths), window=asked["window"])
        layers = math.ceil((longest - 1) / far) if far < min(lengths) - 1 else 1
        steps.append([kind, cost, str(loop if loop == 1 else "n"), f"{far}" if layers > 1 else "n",
                      f"{layers:,}"])  # fmt: skip
        own, drawn = [p for p in points if p["kind"] == kind], []
        for x, at in (
            ("length", {"width": narrowest}),
            ("length", {"width": widest}),
            ("width", {"length": longest}),
        ):
            if len(asked[f"{x}s"]) < 3 or [x, at] in drawn:
                continue
            drawn.append([x, at])
            found = exponents(own, x, at)
            cells = [
                f"{v:.2f} ({v - r:.2f} to {v + r:.2f})"
                for v, r in (found["seconds"], found["bytes"])
            ]
            low, high = found["rounds"]
            where = " ".join(f"{name} {value:,}" for name, value in at.items())
            lines.append([kind, x, where, cells[0], f"{low:.2f} to {high:.2f}", cells[1],
                          f"{found['flops'][0]:.2f}"])  # fmt: skip
    times = {
        (kind, length): [
            f"{1e3 * p['seconds']:.2f}, {p['bytes'] / 1e6:.1f}"
            for width in widths
            for p in points
            if (p["kind"], p["length"], p["width"]) == (kind, length, width)
        ]
        for kind in kinds
        for length in lengths
    }
    return [
        markdown_table(
            ["mixer", "table 1", "sequential steps", "tokens to each side in a layer",
             f"layers from end to end of {longest:,}"], steps),
        markdown_table(
            ["mixer", "length", *(f"width {width}: ms, MB" for width in widths)],
            [[kind, f"{length:,}", *cells] for (kind, length), cells in times.items()]),
        markdown_table(
            ["mixer", "exponent of", "at", "time, 95 % interval", "time, single rounds",
             "memory, 95 % interval", "FLOPs"], lines),
        f"Exponents are slopes in logarithms through all {len(lengths)} lengths, or all "
        f"{len(widths)} widths. Intervals are Student's t of the residuals: they show "
        "how well one power law fits this range. FLOPs are those of the layer's "
        "matmuls, including its linear layers, over the same range.",
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description="Time and memory of one layer's mixer.")
    parser.add_argument("--workdir", type=Path, required=True)
    for name, default in (("lengths", LENGTHS), ("widths", WIDTHS)):
        parser.add_argument(f"--{name}", type=int, nargs="+", default=default)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=[*KINDS])
    parser.add_argument("--window", type=int, default=WINDOW, help="size of restricted attention")
    asked = vars(parser.parse_args())
    workdir: Path = asked.pop("workdir")
    workdir.mkdir(parents=True, exist_ok=True)
    path, device = workdir / "points.json", jax.devices()[0].device_kind
    asked = {**json.loads(json.dumps(asked)), "device": device}
    held = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"asked": asked}
    if held["asked"] != asked:
        sys.exit(f"{path} has measurements of {held['asked']}, not of {asked}")
    if "points" not in held:
        held["points"] = [
            point
            for kind in asked["kinds"]
            for width in asked["widths"]
            for point in measure(kind, width, asked["lengths"], asked["rounds"], asked["window"])
        ]
        held["versions"] = installed("bert-jax", "jax", "jaxlib")
        write_json(path, held)
    parts = [
        "# The cost of a layer over length and width",
        f"`python benchmarks/layer_cost.py --workdir {workdir}`, one row, float32, forward and "
        f"backward, the median of {asked['rounds']} rounds, on {device}.",
        *tables(held["points"], asked),
    ]
    write_whole(workdir / "study.md", "\n\n".join(parts) + "\n")
    print(f"{workdir}/study.md has the tables")


if __name__ == "__main__":
    main()
