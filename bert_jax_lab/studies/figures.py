"""The figures of a study as PNG and SVG, each with a text alternative."""

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.files import write_whole, writing
from bert_jax_lab.studies.law import Law

# The x axes of curves: a field of a curve's points, its label and its unit.
_AXES = {"tokens": ("million tokens", 1e6), "seconds": ("minutes of training", 60.0)}
# The scaling law is drawn up to this factor beyond the runs.
_MARGIN = 2.0
_DPI = 130
_NO_FRONT = "There is no front: in this law, parameters or tokens hardly matter"


@dataclass(frozen=True)
class Drawn:
    """A figure: its title, the path of its PNG relative to study.md, and its text alternative."""

    title: str
    file: str
    alt: str


def draw(
    found: dict[str, Any], law: Law | None, fitted: Sequence[dict[str, Any]], directory: Path
) -> list[Drawn]:
    """Draws all figures for which there are runs into a directory.

    `found` is the content of study.json, `fitted` the runs to which the law is fitted.
    """
    directory.mkdir(parents=True, exist_ok=True)
    runs = [run for run in found["runs"] if run.get("curve")]
    drawn = [_save(directory, f"loss_over_{x}", *_curves(found, runs, x)) for x in _AXES if runs]
    if law is not None:
        column = found["columns"][0]
        label = f"validation {column.replace('_', ' ')}"
        facts = ("block_parameters", "tokens", column, "flops")
        points = np.array([[(r | r["figures"])[fact] for r in fitted] for fact in facts], float)
        drawn.append(_save(directory, "law", *_law(points, label, law)))
        drawn.append(_save(directory, "loss_over_compute", *_compute(points, label, law)))
    return drawn


Plot = Callable[[Any], None]


def _save(directory: Path, name: str, title: str, alt: str, plot: Plot) -> Drawn:
    """Draws a figure into a PNG and an SVG file, both with the title and the text alternative."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    words, picture = {"Title": title, "Description": alt}, directory / f"{name}.png"
    with pyplot.rc_context({"svg.hashsalt": title, "axes.grid": True, "grid.alpha": 0.3}):
        figure, axes = pyplot.subplots(figsize=(8, 4.8), layout="constrained")
        plot(axes)
        axes.set_title(title)
        with writing(picture):
            figure.savefig(picture, dpi=_DPI, metadata=words)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={**words, "Date": None})
        pyplot.close(figure)
    label = f'<svg role="img" aria-label="{escape(alt, quote=True)}" '
    write_whole(directory / f"{name}.svg", text.getvalue().replace("<svg ", label, 1))
    return Drawn(title, f"{directory.name}/{name}.png", alt.replace("[", "(").replace("]", ")"))


def _curves(found: dict[str, Any], runs: Sequence[dict[str, Any]], x: str) -> tuple[str, str, Plot]:
    label, unit = _AXES[x]
    column = found["columns"][0]
    names = [*dict.fromkeys(run["variant"] for run in runs)]
    corpus = found["corpus"]
    entropy = corpus["unigram_entropy_nats"] if corpus and column == "mlm_loss" else None

    def plot(axes: Any) -> None:
        for number, name in enumerate(names):
            own = [run for run in runs if run["variant"] == name]
            for run in own:
                axes.plot(
                    [point[x] / unit for point in run["curve"]],
                    [point["value"] for point in run["curve"]],
                    color=f"C{number % 10}",
                    linestyle=("-", "--", ":")[number // 10 % 3],
                    marker=".",
                    linewidth=1.2,
                    label=name if run is own[0] else None,
                )
        if entropy is not None:
            axes.axhline(entropy, color="grey", linestyle="--", linewidth=1)
            axes.annotate("unigram entropy", (0, entropy), fontsize="small", va="bottom")
        axes.set_xlabel(label)
        axes.set_ylabel(f"validation {column.replace('_', ' ')}")
        axes.legend(fontsize="small", ncols=1 + len(names) // 8)

    ends = []
    for name in names:
        last = [r["curve"][-1] for r in runs if r["variant"] == name and r["code"] == 0]
        if not last:
            ends.append(f"{name} has no run that ended well")
            continue
        value = float(np.median([point["value"] for point in last]))
        at = float(np.median([point[x] for point in last])) / unit
        ends.append(f"{name} ends at {value:.3f} after {at:.3g}")
    title = f"Validation {column.replace('_', ' ')} over {label}"
    return title, f"{title}. A line per run. {'; '.join(ends)}.", plot


def _compute(points: np.ndarray, label: str, law: Law) -> tuple[str, str, Plot]:
    n, d, loss, _ = points
    compute = 6 * n * d
    front = np.geomspace(compute.min() / _MARGIN, compute.max() * _MARGIN, 50)
    best = law.optimal(front)

    def plot(axes: Any) -> None:
        for number, size in enumerate(sorted(set(n))):
            own = n == size
            line = np.geomspace(compute[own].min() / _MARGIN, compute[own].max() * _MARGIN, 30)
            axes.plot(line, law.loss(size, line / 6 / size), color=f"C{number}", linewidth=1)
            axes.plot(compute[own], loss[own], "o", color=f"C{number}", label=f"{size:.3g}")
        if best is not None:
            axes.plot(front, law.loss(*best), color="black", linestyle="--", label="front")
        axes.set_xscale("log")
        axes.set_xlabel("6 x parameters of the blocks x tokens")
        axes.set_ylabel(label)
        axes.legend(fontsize="small", title="parameters of the blocks")

    title = "Loss over compute"
    alt = f"{title}. Points are runs, lines the law per size"
    if best is None:
        return title, f"{alt}. {_NO_FRONT}.", plot
    least = law.loss(*best)
    ends = f"{least[0]:.3f} at {front[0]:.3g} FLOPs, {least[-1]:.3f} at {front[-1]:.3g}"
    return title, f"{alt}, and the dashed line is the lowest loss per compute: {ends}.", plot


def _law(points: np.ndarray, label: str, law: Law) -> tuple[str, str, Plot]:
    n, d, loss, _ = points
    compute = 6 * n * d
    best = law.optimal(np.geomspace(compute.min(), compute.max() * _MARGIN, 50))

    def plot(axes: Any) -> None:
        sizes = np.geomspace(n.min() / _MARGIN, n.max() * _MARGIN, 60)
        tokens = np.geomspace(d.min() / _MARGIN, d.max() * _MARGIN, 60)
        grid = np.meshgrid(sizes, tokens)
        contours = axes.contour(*grid, law.loss(*grid), levels=12, cmap="viridis", linewidths=0.8)
        axes.clabel(contours, fontsize="x-small")
        # Equal compute is a straight line on logarithmic axes.
        for product in np.geomspace(compute.min(), compute.max(), 4):
            axes.plot(sizes, product / 6 / sizes, color="grey", linewidth=0.6, linestyle=":")
        dots = axes.scatter(n, d, c=loss, cmap="viridis", edgecolors="black", zorder=3)
        axes.figure.colorbar(dots, ax=axes, label=label)
        if best is not None:
            best_n, best_d = best
            inside = (best_n >= sizes[0]) & (best_n <= sizes[-1])
            axes.plot(best_n[inside], best_d[inside], color="C3", label="compute-optimal front")
            axes.legend(fontsize="small")
        axes.set(xscale="log", yscale="log", xlabel="parameters of the blocks", ylabel="tokens")
        axes.set(xlim=(sizes[0], sizes[-1]), ylim=(tokens[0], tokens[-1]))

    title = "The fitted law: loss over parameters and tokens"
    alt = (
        f"{title}. {len(n)} runs with {n.min():.3g} to {n.max():.3g} parameters and {d.min():.3g} "
        f"to {d.max():.3g} tokens, colored by their loss of {loss.min():.3f} to {loss.max():.3f}; "
        "contours of the law, dotted lines of equal compute"
    )
    if best is None:
        return title, f"{alt}. {_NO_FRONT}.", plot
    (first_n, *_, last_n), (first_d, *_, last_d) = best
    ends = (
        f"from {first_n:.3g} parameters and {first_d:.3g} tokens to {last_n:.3g} and {last_d:.3g}"
    )
    return title, f"{alt}, and the front {ends}.", plot
