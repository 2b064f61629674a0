"""The charts of a report: the columns of each chart, and its tables."""

from collections.abc import Mapping, Sequence
from typing import Any

from bert_jax import progress
from bert_jax_lab.reports.page import table

_TRAINING = "training"
# Not drawn: values of the axes, and facts about how a row was made.
_NOT_DRAWN = {
    "step", "steps", "time", "positions_seen", "training_seconds", "sequence_length", "padding",
    "sequences_per_step", "sequences_per_second", "step_seconds", "data_wait_seconds",
    "epochs", "words", "flops",
}  # fmt: skip
_LEARNING_RATE, _NORM = "learning_rate", "grad_norm"
_SPEEDS = ("tokens_per_second", "real_tokens_per_second", "examples_per_second")
# The largest number of lines of a table.
_LINES = 25


def charts(runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns the charts of runs (`run_data.read`), in their order on the page.

    Each is `{"id", "heading", "unit", "log", "series", "lines", "expected", "skips"}`.
    A series is `{"run", "table", "column", "label", "colour"}`: the column of `table`, "training"
    or a held-out split, of the run with this number. A line is a `value` with a `label`. `expected`
    has the numbers of the runs with a band, and `skips` is whether skipped updates are marked.
    """
    columns = dict.fromkeys(
        name
        for run in runs
        for columns in (run[_TRAINING], *run["held_out"].values())
        for name, values in columns.items()
        if name not in _NOT_DRAWN and any(isinstance(v, int | float) for v in values)
    )
    losses = [name for name in columns if name.endswith("loss")]
    others = [name for name in losses if name not in repeated(runs)]
    speeds = [name for name in _SPEEDS if name in columns]
    drawn = {*losses, *speeds, _LEARNING_RATE, _NORM, "mfu", "perplexity"}
    found = [
        main_losses(runs),
        *(_chart(runs, f"Loss: {name}", [name], unit="nats", without_main=True) for name in others),
        *(_chart(runs, name, [name]) for name in columns if name not in drawn),
        _chart(runs, "Perplexity, held out", ["perplexity"], log=True),
        _chart(runs, "Learning rate", [_LEARNING_RATE]),
        _chart(runs, "Gradient norm, before clipping", [_NORM], log=True),
        _chart(runs, "Throughput", speeds, unit="per second"),
        _chart(runs, "Model FLOPs utilization (MFU)", ["mfu"]),
    ]
    shown_charts = [chart for chart in found if chart["series"]]
    for number, chart in enumerate(shown_charts):
        chart["id"] = f"chart-{number}"
    return shown_charts


def repeated(runs: Sequence[Mapping[str, Any]]) -> set[str]:
    """Returns {"loss"} if `loss` is the main loss of every run: the objectives have one loss."""
    tables = [(run["loss"], t) for run in runs for t in (run[_TRAINING], *run["held_out"].values())]
    is_same = all(t["loss"] == t.get(main) for main, t in tables if "loss" in t)
    return {"loss"} if is_same and any(main != "loss" for main, _ in tables) else set()


def main_losses(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the chart of the main loss of each run, with entropies and expected losses."""
    chart = _chart(runs, "Loss", [*dict.fromkeys(run["loss"] for run in runs)], unit="nats")
    chart["series"] = [s for s in chart["series"] if s["column"] == runs[s["run"]]["loss"]]
    entropies: dict[float, list[str]] = {}
    for run in runs:
        # Only the masked-LM loss is comparable with the entropy.
        if run["loss"] == "mlm_loss" and run["unigram_entropy_nats"] is not None:
            entropies.setdefault(run["unigram_entropy_nats"], []).append(run["name"])
    for value, names in entropies.items():
        label = "unigram entropy" + (f" ({', '.join(names)})" if len(entropies) > 1 else "")
        chart["lines"].append({"value": value, "label": label})
    chart["expected"] = [number for number, run in enumerate(runs) if run["expected"]]
    chart["skips"] = True
    return chart


def _chart(
    runs: Sequence[Mapping[str, Any]], heading: str, columns: Sequence[str], *, unit: str = "",
    log: bool = False, without_main: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Returns a chart of columns; `without_main` omits the main loss of each run."""
    series = []
    for number, run in enumerate(runs):
        for order, column in enumerate(columns):
            for name, values in {_TRAINING: run[_TRAINING], **run["held_out"]}.items():
                has_values = any(value is not None for value in values.get(column, ()))
                if not has_values or (without_main and column == run["loss"]):
                    continue
                words = [run["name"]] if len(runs) > 1 else []
                words += [column] if len(columns) > 1 or not words else []
                label = f"{', '.join(words)}, {name}"
                # The columns of a single run have different colors.
                color = number if len(runs) > 1 else order
                series.append({"run": number, "table": name, "column": column} | {
                    "label": label, "colour": color})  # fmt: skip
    return {
        "heading": heading,
        "unit": unit,
        "log": log,
        "series": series,
        "lines": [],
        "expected": [],
        "skips": _NORM in columns,
    }


def as_table(chart: Mapping[str, Any], runs: Sequence[Mapping[str, Any]]) -> str:
    """Returns the curves of a chart as HTML tables: one of training, one of each held-out split."""
    tables = []
    for name in dict.fromkeys(series["table"] for series in chart["series"]):
        members = [series for series in chart["series"] if series["table"] == name]
        values = [points_of(runs[series["run"]], series) for series in members]
        steps = sorted({step for found in values for step in found})
        if len(steps) > _LINES:
            steps = [steps[round(i * (len(steps) - 1) / (_LINES - 1))] for i in range(_LINES)]
        rows = [[f"{step:,}", *(shown(found.get(step)) for found in values)] for step in steps]
        caption = f"{chart['heading']}: {name}"
        tables.append(table(["step", *(s["label"] for s in members)], rows, caption=caption))
    return "\n".join(tables)


def points_of(run: Mapping[str, Any], series: Mapping[str, Any]) -> dict[int, float]:
    """Returns the values of a series by their steps."""
    is_training = series["table"] == _TRAINING
    columns = run[_TRAINING] if is_training else run["held_out"][series["table"]]
    pairs = zip(columns["step"], columns[series["column"]], strict=True)
    return {step: value for step, value in pairs if value is not None}


def shown(value: Any) -> str:
    """Returns a value as a table shows it: numbers with five digits, "" for None."""
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int) or abs(value) >= 1e5:
        return progress.number(value, ",.0f")
    return f"{value:z,.5g}"
