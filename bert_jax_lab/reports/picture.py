"""Pictures by matplotlib, in files with a text alternative; the picture of the curves of runs."""

import io
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from bert_jax.files import writing
from bert_jax.workdir import goodput
from bert_jax_lab.reports import charts

_DPI = 130


def draw(
    plot: Callable[..., None],
    *targets: Path,
    title: str,
    alt: str,
    size: tuple[float, float] = (8, 4.8),
    heights: Sequence[float] = (1,),
) -> None:
    """Calls `plot` with axes below each other, one per entry of `heights`, and writes the picture.

    `targets` are .png, .svg or .pdf files; the first two contain `title` and `alt`.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    with pyplot.rc_context({"svg.hashsalt": title, "axes.grid": True, "grid.alpha": 0.3}):
        figure, axes = pyplot.subplots(
            len(heights),
            1,
            figsize=size,
            height_ratios=heights,
            layout="constrained",
            squeeze=False,
        )
        plot(*axes[:, 0])
        for target in targets:
            with writing(target):
                _save(figure, target, title, alt)
        pyplot.close(figure)


def _save(figure: Any, target: Path, title: str, alt: str) -> None:
    words = {"Title": title, "Description": alt}
    if target.suffix != ".svg":
        metadata = {"Title": title} if target.suffix == ".pdf" else words
        figure.savefig(target, dpi=_DPI, metadata=metadata)
        return
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={**words, "Date": None})
    label = f'<svg role="img" aria-label="{escape(alt, quote=True)}" '
    target.write_text(text.getvalue().replace("<svg ", label, 1), encoding="utf-8")


def draw_runs(runs: Sequence[Mapping[str, Any]], target: Path) -> None:
    """Draws the losses of runs (`run_data.read`) over their steps, and below them their time.

    Validation losses are bold, training losses thin; the unigram entropy of a corpus is a dashed
    line, and the expected losses of a run are a band. `target` is as for `draw`.
    """
    chart = charts.main_losses(runs)
    parts = [p for p in goodput.PARTS if any(run["seconds"][p] > 0 for run in runs)]

    def plot(losses: Any, times: Any) -> None:
        _draw_losses(chart, runs, losses)
        left = [0.0] * len(runs)
        for part in parts:
            seconds = [max(run["seconds"][part], 0.0) for run in runs]
            names = [_plain(run["name"]) for run in runs]
            times.barh(names, seconds, left=left, label=part.replace("_", " "))
            left = [a + b for a, b in zip(left, seconds, strict=True)]
        times.invert_yaxis()
        times.set_xlabel("seconds")
        times.grid(visible=False)
        if parts:
            times.legend(ncols=5, fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.5))

    heights = (4.5, 0.6 + 0.45 * len(runs))
    title = f"bert-jax: {', '.join(run['name'] for run in runs)}"
    shares = "; ".join(f"{run['name']}: goodput {run['goodput']:.1%}" for run in runs)
    alt = f"{charts.in_words(chart, runs)} Below: the parts of the time; {shares}."
    draw(plot, target, title=title, alt=alt, size=(9, sum(heights)), heights=heights)


def _plain(name: str) -> str:
    # matplotlib reads a dollar sign as the start of a formula.
    return name.replace("$", r"\$")


def _draw_losses(chart: Mapping[str, Any], runs: Sequence[Mapping[str, Any]], losses: Any) -> None:
    for number in chart["expected"]:
        steps, low, high = zip(*runs[number]["expected"], strict=True)
        label = f"{_plain(runs[number]['name'])}, expected"
        losses.fill_between(steps, low, high, color=f"C{number % 10}", alpha=0.15, label=label)
    for series in chart["series"]:
        points = charts.points_of(runs[series["run"]], series)
        is_training = series["table"] == "training"
        style = {"linewidth": 1, "alpha": 0.5} if is_training else {"linewidth": 2, "marker": "."}
        style |= {"color": f"C{series['run'] % 10}", "label": _plain(series["label"])}
        losses.plot([*points], [*points.values()], **style)
    for line in chart["lines"]:
        label = f"{_plain(line['label'])} {line['value']:.3f}"
        losses.axhline(line["value"], color="grey", linestyle="--", linewidth=1, label=label)
    losses.set_xlabel("step")
    losses.set_ylabel("loss, nats")
    if losses.get_legend_handles_labels()[0]:
        losses.legend(fontsize="small")
