"""The charts of a report: which columns stand in which, in words, and as tables."""

from collections.abc import Mapping, Sequence
from typing import Any

from bert_jax import progress
from bert_jax_lab.reports import page
from bert_jax_lab.reports.page import table

_TRAINING = "training"
# What is no curve: what stands on the axis, or says how a row was made.
_NOT_DRAWN = {
    "step", "steps", "time", "positions_seen", "training_seconds", "sequence_length", "padding",
    "sequences_per_step", "sequences_per_second", "step_seconds", "data_wait_seconds",
}  # fmt: skip
_LEARNING_RATE, _NORM = "learning_rate", "grad_norm"
_SPEEDS = ("tokens_per_second", "real_tokens_per_second", "examples_per_second")
# The most lines of a table of training, and of one of held-out scores.
_LINES, _HELD_OUT_LINES = 25, 60
_PERCENT = ", %"


def charts(runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns the charts of runs, in their order on the page.

    Each is `{"id", "heading", "unit", "log", "series", "lines", "expected", "skips", "label"}`.
    A series is `{"run", "table", "column", "label", "colour"}`: the columns of `table`, "training"
    or a held-out split, of the run of that number. A line is a `value` with a `label`. `expected`
    are the numbers of the runs whose band is drawn, and `skips` says whether steps without an
    update are marked. `label` says in words what the chart shows.
    """
    columns = dict.fromkeys(
        titled(run, name)
        for run in runs
        for columns in (run["training"], *run["held_out"].values())
        for name, values in columns.items()
        if name not in _NOT_DRAWN and any(isinstance(v, int | float) for v in values)
    )
    twice = repeated(runs)
    losses = [name for name in columns if name.endswith("loss") and name not in twice]
    speeds = [n for n in _SPEEDS if n in columns]
    drawn = {*losses, *twice, *speeds, _LEARNING_RATE, _NORM, "mfu", "perplexity"}
    found = [
        _chart(runs, "Loss", losses, unit="nats", is_main=True),
        # Beside the main one, which is that of masked words where there is one.
        *(_chart(runs, f"Loss: {name}", [name], unit="nats", is_main=False) for name in losses),
        *(_chart(runs, name, [name]) for name in columns if name not in drawn),
        _chart(runs, "Perplexity, held out", ["perplexity"], log=True),
        _chart(runs, "Learning rate", [_LEARNING_RATE]),
        _chart(runs, "Gradient norm, before clipping", [_NORM], log=True),
        _chart(runs, "Throughput", speeds, unit="a second"),
        _chart(runs, "Model FLOPs utilisation (MFU)", ["mfu"]),
    ]
    there = [chart for chart in found if chart["series"]]
    for number, chart in enumerate(there):
        chart["id"] = f"chart-{number}"
        chart["label"] = _in_words(chart, runs)
    return there


def titled(run: Mapping[str, Any], name: str) -> str:
    """Returns the title of a figure: shares and percent of one name do not stand side by side."""
    return f"{name}{_PERCENT}" if name in run["percent"] else name


def isolated(run: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a run whose name and whose guesses may stand beside other text and numbers."""
    examples = [
        {**each, "candidates": [(page.isolated(token), p) for token, p in each["candidates"]]}
        for each in run["examples"]
    ]
    return {**run, "name": page.isolated(run["name"]), "examples": examples}


def repeated(runs: Sequence[Mapping[str, Any]]) -> set[str]:
    """Returns the losses that are, in every row of every run, that run's main loss under another
    name: the sum of an objective that has one loss alone.
    """
    tables = [
        (run["loss"], t) for run in runs for t in (run["training"], *run["held_out"].values())
    ]
    names = {name for _, columns in tables for name in columns if name.endswith("loss")}
    return {
        name
        for name in names - {main for main, _ in tables}
        if all(
            columns.get(name) == columns.get(main) for main, columns in tables if name in columns
        )
    }


def _chart(
    runs: Sequence[Mapping[str, Any]],
    heading: str,
    columns: Sequence[str],
    *,
    unit: str = "",
    log: bool = False,
    is_main: bool | None = None,
) -> dict[str, Any]:
    """Returns a chart of columns; with `is_main` of those alone that are a run's main loss, or are
    not.
    """
    series = []
    for number, run in enumerate(runs):
        wanted = [c for c in columns if is_main is None or (c == run["loss"]) == is_main]
        for order, title in enumerate(wanted):
            column = title.removesuffix(_PERCENT)
            for name, values in {_TRAINING: run["training"], **run["held_out"]}.items():
                is_there = any(value is not None for value in values.get(column, ()))
                if is_there and titled(run, column) == title:
                    words = [run["name"]] if len(runs) > 1 else []
                    words += [column] if len(columns) > 1 or not words else []
                    series.append(
                        {
                            "run": number,
                            "table": name,
                            "column": column,
                            "label": f"{', '.join(words)}, {name}",
                            # Those of one run differ by their colours, too.
                            "colour": number if len(runs) > 1 else order,
                        }
                    )
    lines: dict[float, list[str]] = {}
    for run in runs:
        # Of all losses only that of masked words compares with the entropy.
        if is_main and run["loss"] == "mlm_loss" and run["unigram_entropy_nats"] is not None:
            lines.setdefault(run["unigram_entropy_nats"], []).append(run["name"])
    return {
        "heading": heading,
        "unit": unit,
        "log": log,
        "series": series,
        "lines": [
            {
                "value": value,
                "label": "unigram entropy" + (f" ({', '.join(names)})" if len(lines) > 1 else ""),
            }
            for value, names in lines.items()
        ],
        "expected": [n for n, run in enumerate(runs) if is_main and run["expected"]],
        "skips": is_main or _NORM in columns,
    }


def as_table(chart: Mapping[str, Any], runs: Sequence[Mapping[str, Any]]) -> str:
    """Returns the curves of a chart as HTML tables: one of training, one of each held-out split."""
    tables = []
    for name in dict.fromkeys(series["table"] for series in chart["series"]):
        members = [series for series in chart["series"] if series["table"] == name]
        values = [_points(runs[series["run"]], series) for series in members]
        steps = _some(
            sorted({step for found in values for step in found}),
            _LINES if name == _TRAINING else _HELD_OUT_LINES,
        )
        rows = [[f"{step:,}", *(shown(found.get(step)) for found in values)] for step in steps]
        caption = f"{chart['heading']}: {name}"
        tables.append(table(["step", *(s["label"] for s in members)], rows, caption=caption))
    if chart["lines"]:
        rows = [[line["label"], shown(line["value"])] for line in chart["lines"]]
        tables.append(table(["line", "value"], rows, caption=f"{chart['heading']}: lines"))
    for number in chart["expected"]:
        run = runs[number]
        rows = [
            [f"{step:,}", shown(low), shown(high)]
            for step, low, high in _some(run["expected"], _LINES)
        ]
        caption = f"{chart['heading']}: expected of {run['name']}"
        if run["expected_from"]:
            caption += f", by {run['expected_from']}"
        tables.append(table(["step", "lowest", "highest"], rows, caption=caption))
    if chart["skips"]:
        rows = [
            [run["name"], ", ".join(f"{step:,}" for step in run["skipped_steps"][:_HELD_OUT_LINES])]
            for run in runs
            if run["skipped_steps"]
        ]
        if rows:
            tables.append(table(["run", "steps"], rows, caption="Updates that were left out"))
    return "\n".join(tables)


def _points(run: Mapping[str, Any], series: Mapping[str, Any]) -> dict[int, float]:
    """Returns the values of a series by their steps."""
    is_training = series["table"] == _TRAINING
    columns = run[_TRAINING] if is_training else run["held_out"][series["table"]]
    pairs = zip(columns["step"], columns[series["column"]], strict=True)
    return {step: value for step, value in pairs if value is not None}


def _some(values: Sequence[Any], most: int) -> list[Any]:
    """Returns at most `most` values at equal distances, the first and the last among them."""
    if len(values) <= most:
        return list(values)
    return [values[round(i * (len(values) - 1) / (most - 1))] for i in range(most)]


def shown(value: Any) -> str:
    """Returns a value as a table shows it: numbers with five digits, nothing for None."""
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int) or abs(value) >= 1e5:
        return progress.number(value, ",.0f")
    return f"{value:z,.5g}"


def _in_words(chart: Mapping[str, Any], runs: Sequence[Mapping[str, Any]]) -> str:
    """Returns what a chart shows: first, last and lowest or highest value of each curve."""
    parts = []
    for series in chart["series"]:
        points = _points(runs[series["run"]], series)
        steps = list(points)
        parts.append(
            f"{series['label']}: {shown(points[steps[0]])} at step {steps[0]:,}"
            + (f", {shown(points[steps[-1]])} at step {steps[-1]:,}" if len(steps) > 1 else "")
        )
    parts += [f"{line['label']}: {shown(line['value'])}" for line in chart["lines"]]
    unit = f", {chart['unit']}" if chart["unit"] else ""
    return f"{chart['heading']}{unit}, over steps. {'; '.join(parts)}."
