"""Pictures by matplotlib, in files with a text alternative; the picture of the curves of runs."""

import io
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from bert_jax.files import writing
from bert_jax.workdir import goodput

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


# --- the curves of runs ---------------------------------------------------------------------------


def _curves(run: Mapping[str, Any]) -> dict[str, tuple[list[int], list[float]]]:
    """Returns the steps and values of the main loss of a run: training, then validation; without
    the validation splits of single sources.
    """
    tables = {"training": run["training"]}
    tables |= {split: table for split, table in run["held_out"].items() if "/" not in split}
    found = {}
    for name, table in tables.items():
        values = table.get(run["loss"], ())
        points = [(s, v) for s, v in zip(table["step"], values, strict=False) if v is not None]
        if points:
            steps, losses = zip(*points, strict=True)
            found[name] = list(steps), list(losses)
    return found


def describe(runs: Sequence[Mapping[str, Any]]) -> str:
    """Returns a text alternative for the picture of `draw_runs`."""
    parts = []
    for run in runs:
        curves = _curves(run)
        parts.append(f"{run['name']}: no loss yet")
        if curves:
            kind, (steps, losses) = list(curves.items())[-1]
            last = f"{losses[0]:.3f}, then {losses[-1]:.3f} at step {steps[-1]:,}"
            parts[-1] = f"{run['name']}: {kind} {run['loss']} {last}"
        if run["unigram_entropy_nats"] is not None:
            parts[-1] += f" (unigram entropy {run['unigram_entropy_nats']:.3f})"
        parts[-1] += f", goodput {run['goodput']:.1%}"
    return f"Losses over steps, and the parts of the time. {'; '.join(parts)}."


def draw_runs(runs: Sequence[Mapping[str, Any]], target: Path) -> None:
    """Draws the losses of runs (`run_data.read`) over their steps, and below them their time.

    Validation losses are bold, training losses thin; the unigram entropy of a corpus is a dashed
    line, and the expected losses of a run are a band. `target` is as for `draw`.
    """
    parts = [p for p in goodput.PARTS if any(run["seconds"][p] > 0 for run in runs)]
    # matplotlib reads a dollar sign as the start of a formula.
    names = [run["name"].replace("$", r"\$") for run in runs]

    def plot(losses: Any, times: Any) -> None:
        _draw_losses(runs, names, losses)
        left = [0.0] * len(runs)
        for part in parts:
            seconds = [max(run["seconds"][part], 0.0) for run in runs]
            times.barh(names, seconds, left=left, label=part.replace("_", " "))
            left = [a + b for a, b in zip(left, seconds, strict=True)]
        times.invert_yaxis()
        times.set_xlabel("seconds")
        times.grid(visible=False)
        if parts:
            times.legend(ncols=5, fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.5))

    heights = (4.5, 0.6 + 0.45 * len(runs))
    title = f"bert-jax: {', '.join(run['name'] for run in runs)}"
    size = (9, sum(heights))
    draw(plot, target, title=title, alt=describe(runs), size=size, heights=heights)


def _draw_losses(runs: Sequence[Mapping[str, Any]], names: Sequence[str], losses: Any) -> None:
    entropies: dict[float, list[str]] = {}
    for number, (run, name) in enumerate(zip(runs, names, strict=True)):
        color = f"C{number % 10}"
        if run["expected"]:
            steps, low, high = zip(*run["expected"], strict=True)
            label = f"{name}, expected"
            losses.fill_between(steps, low, high, color=color, alpha=0.15, label=label)
        for kind, (steps, values) in _curves(run).items():
            is_training = kind == "training"
            style = {"linewidth": 1, "alpha": 0.5} if is_training else {"linewidth": 2}
            style |= {} if is_training else {"marker": "."}
            label = f"{name}, {kind} ({run['loss']})"
            losses.plot(steps, values, color=color, label=label, **style)
        # Other losses than the masked-LM loss do not compare with the entropy.
        if run["unigram_entropy_nats"] is not None and run["loss"] == "mlm_loss":
            entropies.setdefault(run["unigram_entropy_nats"], []).append(name)
    for entropy, own in entropies.items():
        label = f"unigram entropy {entropy:.3f} ({', '.join(own)})"
        losses.axhline(entropy, color="grey", linestyle="--", linewidth=1, label=label)
    losses.set_xlabel("step")
    losses.set_ylabel("loss, nats")
    if losses.get_legend_handles_labels()[0]:
        losses.legend(fontsize="small")
