"""The curves of one run or of several in one chart, and a page that says what they are."""

import html
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_jax.config import flatten
from bert_jax.workdir import goodput, log_reader
from bert_jax.workdir.run_directory import CONFIG

# The loss that is drawn: the first that a run has. Only the first compares with the entropy.
_LOSSES = ("mlm_loss", "loss")
_STYLE = """body{font:15px/1.5 system-ui,sans-serif;max-width:70em;margin:2em auto;padding:0 1em}
table{border-collapse:collapse;margin:1em 0}td,th{border-bottom:1px solid #ccc;padding:.2em .8em;
text-align:right}td:first-child,th:first-child{text-align:left}svg{max-width:100%;height:auto}"""


@dataclass(frozen=True)
class RunRecord:
    """All that a report says of one run."""

    name: str
    rows: list[dict[str, Any]]
    account: dict[str, Any]
    # What its config.json has.
    stored: dict[str, Any]

    @property
    def entropy(self) -> float | None:
        """The corpus's unigram entropy in nats: what a model knows that only counts tokens."""
        return (self.stored.get("corpus") or {}).get("unigram_entropy_nats")

    def curve(self, *, held_out: bool) -> tuple[str, list[int], list[float]]:
        """Returns which loss it is, the steps, and the loss there; empty where there is none."""
        rows = [row for row in self.rows if (row.get("split") is not None) == held_out]
        for name in _LOSSES:
            points = [(row["step"], row[name]) for row in rows if row.get(name) is not None]
            if points:
                steps, losses = zip(*points, strict=True)
                return name, list(steps), list(losses)
        return "", [], []


def read(directory: Path, *, name: str) -> RunRecord:
    """Returns the record of the run in a workdir."""
    return RunRecord(
        name,
        log_reader.read_rows(directory),
        goodput.account(directory),
        json.loads((directory / CONFIG).read_text(encoding="utf-8")),
    )


def draw(runs: Sequence[RunRecord], target: Path | io.StringIO) -> None:
    """Draws the losses of all runs over their steps, and below them where their time went.

    Held-out losses are bold, those of training thin; the unigram entropy of a corpus is a dashed
    line. `target` is a .png or .svg file, or takes the text of an SVG.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    heights = (4.5, 0.6 + 0.45 * len(runs))
    figure, (losses, times) = pyplot.subplots(
        2, 1, figsize=(9, sum(heights)), height_ratios=heights, layout="constrained"
    )
    lines: dict[float, list[str]] = {}
    for number, run in enumerate(runs):
        colour = f"C{number % 10}"
        for held_out in (False, True):
            name, steps, values = run.curve(held_out=held_out)
            label = f"{run.name}, {'held out' if held_out else 'training'}"
            style = {"linewidth": 2, "marker": "."} if held_out else {"linewidth": 1, "alpha": 0.5}
            if steps:
                losses.plot(steps, values, color=colour, label=f"{label} ({name})", **style)
        if run.entropy is not None and run.curve(held_out=False)[0] == _LOSSES[0]:
            lines.setdefault(run.entropy, []).append(run.name)
    for entropy, names in lines.items():
        label = f"unigram entropy {entropy:.3f} ({', '.join(names)})"
        losses.axhline(entropy, color="grey", linestyle="--", linewidth=1, label=label)
    losses.set_xlabel("step")
    losses.set_ylabel("loss, nats")
    losses.grid(alpha=0.3)
    if losses.get_legend_handles_labels()[0]:
        losses.legend(fontsize="small")
    parts = [p for p in goodput.PARTS if any(run.account["seconds"][p] > 0 for run in runs)]
    left = [0.0] * len(runs)
    for part in parts:
        seconds = [max(run.account["seconds"][part], 0.0) for run in runs]
        times.barh([run.name for run in runs], seconds, left=left, label=part.replace("_", " "))
        left = [a + b for a, b in zip(left, seconds, strict=True)]
    times.invert_yaxis()
    times.set_xlabel("seconds")
    if parts:
        times.legend(ncols=5, fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.5))
    if isinstance(target, Path):
        figure.savefig(target, dpi=150)
    else:
        figure.savefig(target, format="svg")
    pyplot.close(figure)


def page(runs: Sequence[RunRecord]) -> str:
    """Returns one HTML page that needs nothing beside itself: chart, figures, time, differences."""
    picture = io.StringIO()
    draw(runs, picture)
    svg = picture.getvalue()
    names = [run.name for run in runs]
    title = html.escape(f"bert-jax: {', '.join(names)}")
    body = [
        svg[svg.index("<svg") :],
        "<h2>Last figures</h2>",
        _table(["", *names], _figures(runs)),
        "<h2>Seconds</h2>",
        _table(["", *names], _seconds(runs)),
    ]
    if len(runs) > 1:
        differing = _differences(runs)
        body.append("<h2>Configs differ in</h2>")
        body.append(_table(["field", *names], differing) if differing else "<p>nothing</p>")
    return (
        f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>{title}</title>'
        f"<style>{_STYLE}</style>\n<h1>{title}</h1>\n" + "\n".join(body) + "\n</html>\n"
    )


def _figures(runs: Sequence[RunRecord]) -> list[list[str]]:
    closing = []
    for run in runs:
        row, scores = log_reader.closing_rows(run.rows)
        numbers = {f"training {name}": value for name, value in row.items() if name != "time"}
        for split, found in scores.items():
            numbers |= {f"{split} {name}": value for name, value in found.items()}
        numbers["unigram entropy"] = run.entropy
        closing.append(numbers)
    names = dict.fromkeys(name for numbers in closing for name in numbers)
    return [[name, *(_shown(numbers.get(name)) for numbers in closing)] for name in names]


def _seconds(runs: Sequence[RunRecord]) -> list[list[str]]:
    rows = [
        [part.replace("_", " "), *(f"{run.account['seconds'][part]:,.1f}" for run in runs)]
        for part in goodput.PARTS
    ]
    return [*rows, ["goodput", *(f"{run.account['goodput']:.1%}" for run in runs)]]


def _differences(runs: Sequence[RunRecord]) -> list[list[str]]:
    flat = [flatten(run.stored.get("config") or {}) for run in runs]
    fields = dict.fromkeys(field for config in flat for field in config)
    return [
        [field, *(_shown(config.get(field)) for config in flat)]
        for field in fields
        if any(config.get(field) != flat[0].get(field) for config in flat)
    ]


def _shown(value: Any) -> str:
    return "" if value is None else f"{value:,.5g}" if isinstance(value, float) else str(value)


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [("th", columns), *(("td", row) for row in rows)]
    return "\n".join(
        [
            "<table>",
            *(
                "<tr>" + "".join(f"<{cell}>{html.escape(text)}</{cell}>" for text in line) + "</tr>"
                for cell, line in lines
            ),
            "</table>",
        ]
    )
