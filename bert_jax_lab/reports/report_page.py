"""The page of a report: the curves of runs, where their time went, and in what they differ."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bert_jax.workdir import goodput
from bert_jax_lab.reports import page, report_charts, run_data
from bert_jax_lab.reports.page import table, text
from bert_jax_lab.reports.report_charts import shown, titled

# How an end is marked on the track of a run.
_MARKS = {"no last word": " lost", "preempted": " preempted"}

# How a right guess is marked.
_RIGHT = "\N{CHECK MARK}"


def render(
    runs: Sequence[Mapping[str, Any]], *, links: Sequence[Mapping[str, str]] | None = None
) -> str:
    """Returns the page of runs, each a value of `run_data.run_data`.

    `links` has for each run the addresses of its files, by their names; files without one are only
    named. The page's data are `{"runs": runs, "charts": ...}`.
    """
    runs = [report_charts.isolated(run) for run in runs]
    charts = report_charts.charts(runs)
    names, last = [run["name"] for run in runs], _last(runs)
    sections = [
        _section(
            "glance",
            "At a glance",
            _tiles(runs) if len(runs) == 1 else table(["", *names], _glance(runs)),
        ),
        '<div id="controls" class="controls"></div>',
        '<div class="charts">',
        *(
            page.chart(
                chart["id"],
                heading=chart["heading"],
                label=chart["label"],
                tables=report_charts.as_table(chart, runs),
            )
            for chart in charts
        ),
        "</div>",
        *_thinned(runs),
        _section("examples", "Hidden words, held out", _examples(runs)),
        _section("time", "Where the time went", _time(runs)),
        _section("processes", "Processes and restarts", _processes(runs)),
        '<div class="columns">',
        _section("differences", "Configs", "" if len(runs) == 1 else _differences(runs)),
        _section("data-seen", "Data seen", table(["", *names], _seen(runs))),
        _section("environment", "Environment", table(["", *names], _environment(runs))),
        _section("last", "Last figures", table(["", *names], last) if last else ""),
        "</div>",
        _section("config", "All of the config", _configs(runs)),
        _section("files", "Files", _files(runs, links or [{} for _ in runs])),
    ]
    return page.render(
        title=f"bert-jax: {', '.join(names)}",
        body="\n".join(filter(None, sections)),
        data={"runs": list(runs), "charts": charts},
        scripts=["vendor/uPlot.iife.min.js", "report.js"],
        styles=["vendor/uPlot.min.css", "report.css"],
    )


def duration(seconds: float) -> str:
    """Returns seconds in the two units that say most."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def _thinned(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns what to say of runs that have more rows than are drawn."""
    lines = [
        f"{run['name']}: {len(run['training']['step']):,} of {run['training_rows']:,} rows of "
        "training are drawn, in each stretch those with the lowest and the highest loss."
        for run in runs
        if len(run["training"]["step"]) < run["training_rows"]
    ]
    return [f'<p class="note">{text(line)}</p>' for line in lines]


def hidden_words(
    runs: Sequence[Mapping[str, Any]],
) -> tuple[list[str], list[list[str]], str]:
    """Returns columns and rows of held-out sentences with a hidden word, and of what each run takes
    it for, and how often each is right; no rows where no run has examples.
    """
    guesses: dict[tuple[str, str], dict[str, str]] = {}
    counts = []
    for run in runs:
        for example in run["examples"]:
            found = ", ".join(f"{token} {share:.0%}" for token, share in example["candidates"])
            guesses.setdefault((example["text"], example["word"]), {})[run["name"]] = (
                f"{_RIGHT} {found}" if example["is_right"] else found
            )
        if run["examples"]:
            right = sum(example["is_right"] for example in run["examples"])
            counts.append(f"{run['name']}: {right} of {len(run['examples'])}")
    shown_runs = [run["name"] for run in runs if run["examples"]]
    rows = [
        [sentence, word, *(by_run.get(name, "") for name in shown_runs)]
        for (sentence, word), by_run in guesses.items()
    ]
    note = f"{_RIGHT} the first guess is the hidden word ({'; '.join(counts)})"
    return ["sentence", "hidden", *shown_runs], rows, note


def _examples(runs: Sequence[Mapping[str, Any]]) -> str:
    columns, rows, note = hidden_words(runs)
    return f'{table(columns, rows)}\n<p class="note">{text(note)}</p>' if rows else ""


def _section(identity: str, heading: str, inner: str) -> str:
    """Returns a section of the page; nothing where there is nothing in it."""
    if not inner:
        return ""
    return f'<section id="{identity}"><h2>{text(heading)}</h2>\n{inner}\n</section>'


def _rows(
    runs: Sequence[Mapping[str, Any]], lines: Sequence[tuple[str, Callable[[Any], Any]]]
) -> list[list[str]]:
    """Returns a row for each line in which a run has something to say."""
    rows = [[name, *(shown(value_of(run)) for run in runs)] for name, value_of in lines]
    return [row for row in rows if any(row[1:])]


def _glance(runs: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    def held_out(run: Any, title: str) -> float | None:
        found = [
            value
            for scores in run["last"]["held_out"].values()
            for name, value in scores.items()
            if titled(run, name) == title
        ]
        return next((value for value in found if value is not None), None)

    def progress(run: Any) -> str:
        planned = run["steps_planned"]
        return f"{run['step']:,}" + (f" of {planned:,}" if planned else "")

    def end(run: Any) -> str:
        if not run["processes"]:
            return "no process has begun"
        return _end(run["processes"][-1])

    left_out = {"step", "split", "sequence_length", "time", *report_charts.repeated(runs)}
    scores = dict.fromkeys(
        titled(run, name)
        for run in runs
        for columns in run["last"]["held_out"].values()
        for name in columns
        if name not in left_out
    )
    return _rows(
        runs,
        [
            ("kind", lambda run: run["kind"]),
            ("steps", progress),
            ("end", end),
            *((f"held-out {name}", lambda run, name=name: held_out(run, name)) for name in scores),
            ("diverged", _diverged),
            ("losses", _unexpected),
            ("unigram entropy, nats", lambda run: run["unigram_entropy_nats"]),
            ("epochs seen", _epochs),
            ("wall time", lambda run: duration(run["wall_seconds"])),
            ("goodput", lambda run: f"{run['goodput']:.1%}"),
            ("tokens a second", lambda run: run["median"].get("tokens_per_second")),
            ("examples a second", lambda run: run["median"].get("examples_per_second")),
            ("MFU", lambda run: _share(run["median"].get("mfu"))),
            ("starts", lambda run: run["starts"]),
            ("skipped updates", lambda run: run["skipped_updates"]),
            ("failed saves", lambda run: run["failed_saves"]),
            ("preemptions", lambda run: run["preemptions"]),
        ],
    )


def _unexpected(run: Mapping[str, Any]) -> str | None:
    """Returns since when the losses of a run are not those that are expected."""
    if run["unexpected"]:
        step, _ = run["unexpected"][0]
        return f"not as expected since step {step:,}"
    return "as expected" if run["expected"] and run["step"] == run["steps_planned"] else None


def _diverged(run: Mapping[str, Any]) -> str | None:
    return "no better than one answer for all rows" if run["diverged"] else None


def _end(process: Mapping[str, Any]) -> str:
    """Returns how a process ended, and why."""
    if process["end"] == "no last word":
        return "no last word: killed, or still going on"
    return f"{process['end']} ({process['reason']})" if process["reason"] else process["end"]


def _tiles(runs: Sequence[Mapping[str, Any]]) -> str:
    """Returns the figures of one run, side by side."""
    tiles = (
        f"<div><dt>{text(name)}</dt><dd>{text(value)}</dd></div>" for name, value in _glance(runs)
    )
    return f'<dl class="tiles">{"".join(tiles)}</dl>'


def _share(value: float | None) -> str | None:
    return None if value is None else f"{value:.3%}" if value < 0.01 else f"{value:.1%}"


def _time(runs: Sequence[Mapping[str, Any]]) -> str:
    """Returns a bar for each run, as long as its share of the longest, and the seconds."""
    longest = max((run["wall_seconds"] for run in runs), default=0.0) or 1.0
    bars = []
    for run in runs:
        parts = [(p, run["seconds"][p]) for p in goodput.PARTS if run["seconds"][p] > 0]
        whole = sum(seconds for _, seconds in parts) or 1.0
        shares = ", ".join(f"{_spoken(part)} {seconds / whole:.1%}" for part, seconds in parts)
        inside = "".join(
            f'<span class="part {part}" style="width:{100 * seconds / whole:.3f}%" '
            f'title="{_spoken(part)}: {duration(seconds)}"></span>'
            for part, seconds in parts
        )
        name = f"{run['name']}: goodput {run['goodput']:.1%} of {duration(run['wall_seconds'])}"
        bars.append(
            f'<p class="name">{text(name)}</p><div class="bar" role="img" '
            f'aria-label="{text(f"{name}; {shares}")}" '
            f'style="width:{100 * run["wall_seconds"] / longest:.3f}%">{inside}</div>'
        )
    used = [p for p in goodput.PARTS if any(run["seconds"][p] > 0 for run in runs)]
    key = "".join(f'<li><span class="part {p}"></span>{_spoken(p)}</li>' for p in used)
    rows = [
        *([_spoken(p), *(f"{run['seconds'][p]:z,.1f}" for run in runs)] for p in goodput.PARTS),
        ["wall", *(f"{run['wall_seconds']:,.1f}" for run in runs)],
    ]
    seconds = table(["seconds", *(run["name"] for run in runs)], rows)
    return "\n".join([*bars, f'<ul class="key">{key}</ul>', page.details("Table", seconds)])


def _spoken(part: str) -> str:
    return part.replace("_", " ")


def _processes(runs: Sequence[Mapping[str, Any]]) -> str:
    """Returns a track for each run, with its processes on it, and a table of them."""
    if not any(run["processes"] for run in runs):
        return "<p>No process has begun.</p>"
    longest = max(run["wall_seconds"] for run in runs) or 1.0

    def place(begin: float, end: float) -> str:
        return f"left:{100 * begin / longest:.3f}%;width:{100 * (end - begin) / longest:.3f}%"

    tracks, rows = [], []
    for run in runs:
        inside = []
        for number, process in enumerate(run["processes"], 1):
            title = (
                f"process {number}: steps {process['from_step']:,} to {process['to_step']:,}, "
                f"{duration(process['ended'] - process['began'])}, {process['end']}"
            )
            inside.append(
                f'<span class="process{_MARKS.get(process["end"], "")}" '
                f'style="{place(process["began"], process["ended"])}" title="{text(title)}"></span>'
            )
            inside += [
                f'<span class="part {part}" style="{place(max(begin, 0.0), end)}" '
                f'title="{_spoken(part)}: {duration(end - begin)}"></span>'
                for part, begin, end in process["parts"]
            ]
            rows.append(
                [
                    f"{run['name']}, {number}",
                    duration(process["began"]),
                    duration(process["ended"] - process["began"]),
                    shown(process["from_step"]),
                    shown(process["to_step"]),
                    _end(process),
                ]
            )
        starts = f"{run['starts']} start{'s' * (run['starts'] != 1)}"
        name = f"{run['name']}: {starts} in {duration(run['wall_seconds'])}"
        tracks.append(
            f'<p class="name">{text(name)}</p><div class="track" role="img" '
            f'aria-label="{text(name)}">{"".join(inside)}</div>'
        )
    columns = ["process", "began after", "lasted", "from step", "to step", "end"]
    happened = [
        [
            f"{run['name']}: {_spoken(event['event'])}",
            "" if event["after"] is None else duration(event["after"]),
            shown(event["step"]),
            event["text"],
        ]
        for run in runs
        for event in run["events"]
    ]
    events = table(["event", "after", "step", ""], happened)
    events = page.details("Events", events) if happened else ""
    return "\n".join([*tracks, page.details("Table", table(columns, rows)), events])


def _differences(runs: Sequence[Mapping[str, Any]]) -> str:
    found = run_data.differences(runs)
    if not found:
        return "<p>The configs are equal.</p>"
    rows = [[field, *(shown(value) for value in values)] for field, values in found]
    return table(
        ["field", *(run["name"] for run in runs)], rows, caption="Fields in which they differ"
    )


def _seen(runs: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    return _rows(
        runs,
        [
            ("positions, padding included", lambda run: run["seen"]["positions"]),
            ("tokens", lambda run: run["seen"]["tokens"]),
            ("tokens of the corpus, to train on", lambda run: run["seen"].get("corpus_tokens")),
            ("rows of the task", lambda run: run["seen"].get("examples")),
            ("rows there are to train on", lambda run: run["seen"].get("task_rows")),
            ("epochs", _epochs),
        ],
    )


def _epochs(run: Mapping[str, Any]) -> str | None:
    seen = run["seen"]
    if not seen["epochs"]:
        return None
    # Without packing no record tells how much of the positions is padding.
    is_bound = seen["tokens"] is None and "task_rows" not in seen
    return f"{'at most ' if is_bound else ''}{seen['epochs']:,.2f}"


def _environment(runs: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    def values(field: str) -> Callable[[Any], Any]:
        return lambda run: ", ".join(
            dict.fromkeys(shown(p[field]) for p in run["processes"] if p[field] is not None)
        )

    versions = dict.fromkeys(name for run in runs for name in run["versions"])
    return _rows(
        runs,
        [
            ("device", values("device_kind")),
            ("devices", values("devices")),
            ("host processes", values("processes")),
            ("sources", lambda run: ", ".join(run["corpus"].get("sources") or ())),
            ("corpus", lambda run: (run["corpus"].get("fingerprint") or "")[:12]),
            ("tokenizer", lambda run: (run["corpus"].get("tokenizer_hash") or "")[:12]),
            ("began from", lambda run: run["init_from"]),
            *((name, lambda run, name=name: run["versions"].get(name)) for name in versions),
        ],
    )


def _last(runs: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    left_out = {"time", "split", *report_charts.repeated(runs)}

    def numbers(run: Any) -> dict[str, Any]:
        groups = {"training": run["last"]["training"], **run["last"]["held_out"]}
        return {
            f"{group} {titled(run, name)}": value
            for group, row in groups.items()
            for name, value in row.items()
            if name not in left_out
        }

    found = [numbers(run) for run in runs]
    names = dict.fromkeys(name for of_run in found for name in of_run)
    return [[name, *(shown(of_run.get(name)) for of_run in found)] for name in names]


def _configs(runs: Sequence[Mapping[str, Any]]) -> str:
    fields = dict.fromkeys(field for run in runs for field in run["config"])
    rows = [[field, *(shown(run["config"].get(field)) for run in runs)] for field in fields]
    return page.details("Table", table(["field", *(run["name"] for run in runs)], rows))


def _files(runs: Sequence[Mapping[str, Any]], links: Sequence[Mapping[str, str]]) -> str:
    lines = []
    for run, addresses in zip(runs, links, strict=True):
        items = "".join(
            f'<li><a href="{text(addresses[name])}">{text(name)}</a></li>'
            if name in addresses
            else f"<li>{text(name)}</li>"
            for name in run["files"]
        )
        lines.append(f'<p class="name">{text(run["name"])}</p><ul class="files">{items}</ul>')
    return "\n".join(lines)
