"""The page of a report: the curves of runs, the parts of their time, and how the runs differ."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bert_jax_lab.reports import charts, goodput, page, run_data
from bert_jax_lab.reports.charts import shown
from bert_jax_lab.reports.page import table, text

# A run, as `run_data.read` returns it.
Run = Mapping[str, Any]
# The mark of an end on the track of a run.
_MARKS = {"no last word": " lost", "preempted": " preempted"}
# The mark of a correct prediction.
_RIGHT = "\N{CHECK MARK}"


def render(runs: Sequence[Run]) -> str:
    """Returns the page of runs. The data of the page are `{"runs": runs, "charts": ...}`."""
    drawn = charts.charts(runs)
    names = [run["name"] for run in runs]
    glance = _rows(runs, _glance(runs))
    glance_table = table(["", *names], glance)
    config = run_data.differences(runs)
    sections = [
        _section("glance", "At a glance", _tiles(glance) if len(runs) == 1 else glance_table),
        '<div id="controls" class="controls"></div>',
        '<div class="charts">',
        *(
            page.chart(
                chart["id"],
                heading=chart["heading"],
                tables=charts.as_table(chart, runs),
            )
            for chart in drawn
        ),
        "</div>",
        *(_thinned(run) for run in runs),
        _hidden_words(runs),
        _section("time", "Parts of the time", _time(runs)),
        _section("processes", "Processes and restarts", _processes(runs)),
        '<div class="columns">',
        _section(
            "differences", "Fields in which the configs differ",
            _table(["field", *names], [[f, *map(shown, values)] for f, values in config]),
        ),
        _section("facts", "Data and environment", _table(["", *names], _rows(runs, _facts(runs)))),
        "</div>",
        _section("config", "All fields of the config", _configs(runs)),
    ]  # fmt: skip
    return page.render(
        title=f"bert-jax: {', '.join(names)}",
        body="\n".join(filter(None, sections)),
        data={"runs": list(runs), "charts": drawn},
        scripts=["vendor/uPlot.iife.min.js", "report.js"],
        styles=["vendor/uPlot.min.css", "report.css"],
    )


def duration(seconds: float) -> str:
    """Returns seconds in the two largest units."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def _hidden_words(runs: Sequence[Run]) -> str:
    """Returns the held-out sentences with a masked word and the predictions of each run."""
    examples = [(run["name"], example) for run in runs for example in run["examples"]]
    rows = []
    for name, example in sorted(examples, key=lambda each: each[1]["text"]):
        found = ", ".join(f"{token} {share:.0%}" for token, share in example["candidates"])
        mark = f"{_RIGHT} " if example["is_right"] else ""
        rows.append([example["text"], example["word"], name, mark + found])
    right = sum(example["is_right"] for _, example in examples)
    heading = f"Masked words, held out: {right} of {len(rows)} are the first prediction ({_RIGHT})"
    columns = ("sentence", "hidden", "run", "predictions")
    return _section("examples", heading, _table(columns, rows))


def _section(identity: str, heading: str, inner: str) -> str:
    """Returns a section of the page; "" for a section without content."""
    if not inner:
        return ""
    return f'<section id="{identity}"><h2>{text(heading)}</h2>\n{inner}\n</section>'


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return table(columns, rows) if rows else ""


def _thinned(run: Run) -> str:
    """Returns a note about a run with more rows than are drawn."""
    kept = len(run["training"]["step"])
    if kept == run["training_rows"]:
        return ""
    line = (
        f"{run['name']}: {kept:,} of {run['training_rows']:,} training rows are drawn, in each "
        "stretch the rows with the lowest and the highest loss."
    )
    return f'<p class="note">{text(line)}</p>'


Line = tuple[str, Callable[[Any], Any]]


def _rows(runs: Sequence[Run], lines: Sequence[Line]) -> list[list[str]]:
    """Returns a row for each line with a value in any run."""
    rows = [[name, *(shown(value_of(run)) for run in runs)] for name, value_of in lines]
    return [row for row in rows if any(row[1:])]


def _glance(runs: Sequence[Run]) -> list[Line]:
    def held_out(run: Run, name: str) -> float | None:
        found = (scores.get(name) for scores in run["last"]["held_out"].values())
        return next((value for value in found if value is not None), None)

    left_out = {"step", "split", "sequence_length", "time", *charts.repeated(runs)}
    scores = dict.fromkeys(
        name
        for run in runs
        for columns in run["last"]["held_out"].values()
        for name in columns
        if name not in left_out
    )
    return [
        ("kind", lambda run: run["kind"]),
        ("steps", lambda run: f"{run['step']:,} of {run['steps_planned']:,}"),
        ("end", lambda run: _end(run["processes"][-1]) if run["processes"] else "not started"),
        *((f"held-out {name}", lambda run, name=name: held_out(run, name)) for name in scores),
        ("diverged", lambda run: "one answer for all rows" if run["diverged"] else None),
        ("losses", _unexpected),
        ("unigram entropy, nats", lambda run: run["unigram_entropy_nats"]),
        ("epochs seen", lambda run: run["seen"]["epochs"]),
        ("wall time", lambda run: duration(run["wall_seconds"])),
        ("goodput", lambda run: f"{run['goodput']:.1%}"),
        ("tokens per second", lambda run: run["median"].get("tokens_per_second")),
        ("examples per second", lambda run: run["median"].get("examples_per_second")),
        ("MFU", lambda run: run["median"].get("mfu")),
        ("starts", lambda run: run["starts"]),
        ("skipped updates", lambda run: run["skipped_updates"]),
        ("failed saves", lambda run: run["failed_saves"]),
        ("preemptions", lambda run: run["preemptions"]),
    ]


def _unexpected(run: Run) -> str | None:
    """Returns the first step at which the losses of a run were not as expected."""
    if run["unexpected"]:
        step, _ = run["unexpected"][0]
        return f"not as expected since step {step:,}"
    return "as expected" if run["expected"] and run["step"] == run["steps_planned"] else None


def _end(process: Run) -> str:
    """Returns how a process ended, and why."""
    if process["end"] == "no last word":
        return "no last word: killed, or still running"
    return f"{process['end']} ({process['reason']})" if process["reason"] else process["end"]


def _facts(runs: Sequence[Run]) -> list[Line]:
    def of_processes(field: str) -> Callable[[Run], str]:
        return lambda run: ", ".join(
            dict.fromkeys(shown(p[field]) for p in run["processes"] if p[field] is not None)
        )

    versions = dict.fromkeys(name for run in runs for name in run["versions"])
    return [
        ("words seen", lambda run: run["seen"].get("words")),
        ("training tokens of the corpus", lambda run: run["corpus"].get("train", {}).get("tokens")),
        ("rows of the task", lambda run: run["seen"].get("examples")),
        ("training rows of the task", lambda run: run["seen"].get("task_rows")),
        ("sources", lambda run: ", ".join(run["corpus"].get("sources") or ())),
        ("corpus", lambda run: (run["corpus"].get("fingerprint") or "")[:12]),
        ("tokenizer", lambda run: (run["corpus"].get("tokenizer_hash") or "")[:12]),
        ("initialized from", lambda run: run["init_from"]),
        ("device", of_processes("device_kind")),
        ("devices", of_processes("devices")),
        ("host processes", of_processes("processes")),
        *((name, lambda run, name=name: run["versions"].get(name)) for name in versions),
    ]


def _tiles(rows: Sequence[Sequence[str]]) -> str:
    """Returns the figures of one run, side by side."""
    tiles = (f"<div><dt>{text(name)}</dt><dd>{text(value)}</dd></div>" for name, value in rows)
    return f'<dl class="tiles">{"".join(tiles)}</dl>'


def _time(runs: Sequence[Run]) -> str:
    """Returns the seconds of each part of the time, with the share of the wall time."""

    def cell(run: Run, seconds: float) -> str:
        whole = run["wall_seconds"]
        return f"{seconds:z,.1f} s ({seconds / whole:z.1%})" if whole else f"{seconds:z,.1f} s"

    rows = [
        *([_words(p), *(cell(run, run["seconds"][p]) for run in runs)] for p in goodput.PARTS),
        ["wall", *(f"{run['wall_seconds']:,.1f} s" for run in runs)],
    ]
    return table(["", *(run["name"] for run in runs)], rows)


def _words(name: str) -> str:
    return name.replace("_", " ")


def _processes(runs: Sequence[Run]) -> str:
    """Returns a track for each run, with its processes, a table of the processes, and events."""
    longest = max(run["wall_seconds"] for run in runs) or 1.0

    def span(kind: str, begin: float, end: float, title: str) -> str:
        place = f"left:{100 * begin / longest:.3f}%;width:{100 * (end - begin) / longest:.3f}%"
        return f'<span class="{kind}" style="{place}" title="{text(title)}"></span>'

    tracks, rows = [], []
    for run in runs:
        inside = []
        for number, process in enumerate(run["processes"], 1):
            began, lasted = process["began"], duration(process["ended"] - process["began"])
            steps = f"{process['from_step']:,} to {process['to_step']:,}"
            kind = f"process{_MARKS.get(process['end'], '')}"
            title = f"process {number}: steps {steps}, {lasted}, {process['end']}"
            inside.append(span(kind, began, process["ended"], title))
            for part, begin, end in process["parts"]:
                title = f"{_words(part)}: {duration(end - begin)}"
                inside.append(span(f"part {part}", max(begin, 0.0), end, title))
            name = f"{run['name']}, {number}"
            rows.append([name, duration(began), lasted, steps, _end(process)])
        starts = f"{run['starts']} start{'s' * (run['starts'] != 1)}"
        name = text(f"{run['name']}: {starts} in {duration(run['wall_seconds'])}")
        tracks.append(
            f'<p class="name">{name}</p><div class="track" role="img" aria-label="{name}">'
            f"{''.join(inside)}</div>"
        )
    columns = ["process", "began after", "lasted", "steps", "end"]
    events = [
        [
            f"{run['name']}: {_words(event['event'])}",
            "" if event["after"] is None else duration(event["after"]),
            shown(event["step"]),
            event["text"],
        ]
        for run in runs
        for event in run["events"]
    ]
    used = [p for p in goodput.PARTS if any(run["seconds"][p] > 0 for run in runs)]
    key = "".join(f'<li><span class="part {p}"></span>{_words(p)}</li>' for p in used)
    found = [*tracks, f'<ul class="key">{key}</ul>', page.details("Table", table(columns, rows))]
    if events:
        found.append(page.details("Events", table(["event", "after", "step", ""], events)))
    return "\n".join(found)


def _configs(runs: Sequence[Run]) -> str:
    fields = dict.fromkeys(field for run in runs for field in run["config"])
    rows = [[field, *(shown(run["config"].get(field)) for run in runs)] for field in fields]
    return page.details("Table", table(["field", *(run["name"] for run in runs)], rows))
