"""The figures of a study as PNG, each with a text alternative."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.files import writing
from bert_jax_lab.studies.law import Law

# The x axes of curves: a field of a curve's points, its label and its unit.
_AXES = {"tokens": ("million tokens", 1e6), "seconds": ("minutes of training", 60.0)}
# The scaling law is drawn up to this factor beyond the runs.
_MARGIN = 2.0
_DPI = 130


def draw(
    found: dict[str, Any], law: Law | None, fitted: Sequence[dict[str, Any]], directory: Path
) -> list[str]:
    """Draws all figures for which there are runs into a directory; returns each as Markdown, with
    its text alternative, for a page next to the directory.

    `found` is the content of study.json, `fitted` the runs to which the law is fitted.
    """
    directory.mkdir(parents=True, exist_ok=True)
    runs = [run for run in found["runs"] if run.get("curve")]
    drawn = [_save(directory, f"loss_over_{x}", *_curves(found, runs, x)) for x in _AXES if runs]
    if law is not None:
        column = found["columns"][0]
        label = f"validation {column.replace('_', ' ')}"
        facts = ("block_parameters", "tokens", column)
        points = np.array([[(r | r["figures"])[fact] for r in fitted] for fact in facts], float)
        drawn.append(_save(directory, "law", *_law(points, label, law)))
    return drawn


Plot = Callable[[Any], None]


def _save(directory: Path, name: str, title: str, alt: str, plot: Plot) -> str:
    """Draws a figure into a PNG file with the title and the text alternative."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    picture = directory / f"{name}.png"
    with pyplot.rc_context({"axes.grid": True, "grid.alpha": 0.3}):
        figure, axes = pyplot.subplots(figsize=(8, 4.8), layout="constrained")
        plot(axes)
        axes.set_title(title)
        with writing(picture):
            figure.savefig(picture, dpi=_DPI, metadata={"Title": title, "Description": alt})
        pyplot.close(figure)
    alt = alt.replace("[", "(").replace("]", ")")
    return f"## {title}\n\n![{alt}]({directory.name}/{name}.png)"


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

    title = f"Validation {column.replace('_', ' ')} over {label}"
    return title, f"{title}. A line per run of {', '.join(names)}; the table has the ends.", plot


def _law(points: np.ndarray, label: str, law: Law) -> tuple[str, str, Plot]:
    n, d, loss = points
    compute = 6 * n * d

    def plot(axes: Any) -> None:
        for number, size in enumerate(sorted(set(n))):
            own = n == size
            line = np.geomspace(compute[own].min() / _MARGIN, compute[own].max() * _MARGIN, 30)
            axes.plot(line, law.loss(size, line / 6 / size), color=f"C{number}", linewidth=1)
            axes.plot(compute[own], loss[own], "o", color=f"C{number}", label=f"{size:.3g}")
        axes.set(xscale="log", xlabel="6 x parameters of the blocks x tokens", ylabel=label)
        axes.legend(fontsize="small", title="parameters of the blocks")

    title = "Loss over compute"
    return title, f"{title}. Points are {len(n)} runs, lines the law for each size.", plot
