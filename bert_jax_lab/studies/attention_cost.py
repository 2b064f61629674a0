"""Time and memory of the attention of one layer, and the exponents of length and width in them.

Self-attention multiplies an n x d matrix by a d x n one and the result by an n x d one: O(n^2 d)
(Vaswani et al. 2017, table 1). The queries, keys, values and the output map add O(n d^2), which is
more where n < 2 d. Both are measured as one, forward and backward, and separated by a fit.

Dims: B rows, L length, D width, H heads, K head size.
"""

import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import optimize, stats

from bert_jax import file_lock
from bert_jax.errors import ResumeRefused, UsageError
from bert_jax.files import write_json, write_whole
from bert_jax.pretrained.model_card import markdown_table
from bert_jax.progress import note
from bert_jax.versions import installed
from bert_jax_lab.studies import figures
from bert_jax_lab.studies.study import CostStudy

POINTS, STUDY_JSON, STUDY_MD = "points.json", "study.json", "study.md"
# Longest and widest points, over which exponents are fitted: the small ones show what a call costs.
_LAST = 3
_LEVEL = 0.95

Point = dict[str, Any]


def points_of(study: CostStudy) -> list[tuple[str, int, int]]:
    """Returns what is measured: back end, length and width."""
    return [(k, n, d) for k in study.kinds for d in study.widths for n in study.lengths]


def run(study: CostStudy, workdir: Path, *, command: str = "") -> dict[str, Any]:
    """Measures what is missing, writes study.json, study.md and figures, and returns the first.

    Raises UsageError where the workdir holds something else, ResumeRefused for another measurement.
    """
    asked = {
        "study": study.name,
        "scale": study.scale,
        "rows": study.rows,
        "head_size": study.head_size,
        "dtype": study.dtype,
        "repeats": study.repeats,
        "device": _device(),
    }
    path = workdir / POINTS
    if workdir.is_dir() and not path.exists() and any(workdir.iterdir()):
        raise UsageError(f"`workdir` {workdir} is not empty and holds no study of a layer")
    workdir.mkdir(parents=True, exist_ok=True)
    with file_lock.hold(workdir / "lock", waits=True):
        held: dict[str, Any] = {"asked": asked, "points": []}
        if path.exists():
            held = json.loads(path.read_text(encoding="utf-8"))
        if held["asked"] != asked:
            raise ResumeRefused(
                f"`workdir` {workdir} holds measurements of {held['asked']}, not of {asked}"
            )
        points: list[Point] = held["points"]
        there = {(p["attention"], p["length"], p["width"]) for p in points}
        wanted = [point for point in points_of(study) if point not in there]
        for number, (kind, length, width) in enumerate(wanted, 1):
            point = measure(study, kind, length=length, width=width)
            note(
                f"{number} of {len(wanted)}: {kind}, {length} tokens, width {width}: "
                f"{1e3 * point['seconds']:.2f} ms, {point['bytes'] / 1e6:.1f} MB"
            )
            points.append(point)
            write_json(path, {"asked": asked, "points": points})
        # Others are of what the study measured before.
        asked_for = set(points_of(study))
        points = [p for p in points if (p["attention"], p["length"], p["width"]) in asked_for]
        found = {
            "study": study.name,
            "title": study.title,
            "notes": list(study.notes),
            "command": command,
            "versions": installed("bert-jax", "jax", "jaxlib"),
            "asked": asked,
            "points": points,
            "fits": {kind: fit([p for p in points if p["attention"] == kind])
                     for kind in study.kinds},
        }  # fmt: skip
        drawn = [figures.draw_cost(points, name, workdir / "figures") for name in _MEASURED]
        write_json(workdir / STUDY_JSON, found)
        write_whole(workdir / STUDY_MD, _markdown(found, drawn))
    return found


_MEASURED = ("seconds", "bytes")


def _device() -> str:
    import jax

    return jax.devices()[0].device_kind


def measure(study: CostStudy, kind: str, *, length: int, width: int) -> Point:
    """Returns the time of a layer's attention, forward and backward, in seconds, and the bytes of
    its intermediate arrays, which the compiler says.
    """
    import jax
    import jax.numpy as jnp

    from bert_jax.model.attention import join_heads, split_heads
    from bert_jax.model.mask import Mask
    from bert_jax.model.sharding import make_mesh
    from bert_jax.registry import ATTENTION

    attend, heads = ATTENTION[kind], width // study.head_size
    rows, dtype = study.rows, jnp.dtype(study.dtype)
    draw = np.random.default_rng(0)

    def drawn(*shape: int) -> jax.Array:
        return jnp.asarray(draw.standard_normal(shape) / shape[-1] ** 0.5, dtype)

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
        for _ in range(study.repeats):
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


def rows(found: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Returns columns and rows of the table of times and memory."""
    widths = sorted({point["width"] for point in found["points"]})
    columns = ["attention", "length", *(f"width {width}: ms, MB" for width in widths)]
    lines: dict[tuple[str, int], dict[int, str]] = {}
    for point in found["points"]:
        cell = f"{1e3 * point['seconds']:.2f}, {point['bytes'] / 1e6:.1f}"
        lines.setdefault((point["attention"], point["length"]), {})[point["width"]] = cell
    return columns, [
        [kind, f"{length:,}", *(cells.get(width, "–") for width in widths)]
        for (kind, length), cells in lines.items()
    ]


def exponent_section(fits_of: dict[str, Any]) -> list[str]:
    """Returns what is said of the fits of each kind of attention."""
    parts = [
        markdown_table(*exponents(fits_of)),
        f"A line through the {_LAST} longest or widest points: {_LAST - 2} degree of freedom, and "
        "intervals by Student's t.",
    ]
    for kind, fits in fits_of.items():
        share = fits["seconds = a n^2 d + b n d^2 + c"]["share_of_n2d_at_the_largest"]
        parts.append(f"{kind}: at the largest point {share:.0%} of the time goes as n^2 d.")
    return parts


def exponents(fits_of: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Returns columns and rows of the table of exponents."""
    columns = ["attention", "exponent of", "at", "value", "standard error", "95 % interval"]
    lines = [
        [kind, name, f"{(name.split()[-1] == 'length' and 'width') or 'length'} {at}",
         f"{slope['exponent']:.2f}", f"{slope['standard_error']:.2f}",
         "{:.2f} to {:.2f}".format(*slope["interval"])]
        for kind, fits in fits_of.items()
        for name, slopes in fits.items()
        if " over " in name
        for at, slope in slopes.items()
    ]  # fmt: skip
    return columns, lines


def _markdown(found: dict[str, Any], drawn: Sequence[figures.Drawn]) -> str:
    parts = [f"# {found['title']}"]
    if found["command"]:
        parts.append(f"`{found['command']}`, on {found['asked']['device']}.")
    parts += [markdown_table(*rows(found)), *found["notes"], "## Exponents"]
    parts += exponent_section(found["fits"])
    for picture in drawn:
        parts += [f"## {picture.title}", f"![{picture.alt}]({picture.file})"]
    return "\n\n".join(parts) + "\n"
