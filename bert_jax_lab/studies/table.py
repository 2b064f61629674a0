"""The tables of a study in Markdown: medians over seeds, with the lowest and the highest."""

import csv
import io
import math
from collections.abc import Sequence
from typing import Any

from bert_jax import progress
from bert_jax.pretrained.model_card import markdown_table
from bert_jax.registry import OBJECTIVES
from bert_jax.workdir.run_list import spread_text
from bert_jax_lab.reports import report_page
from bert_jax_lab.studies.figures import LEFT_OUT, Drawn

_NOTHING = "–"
_GUESSING = "guessing"
FOOT = (
    "Held-out figures and scores in percent: the median over seeds, with the lowest and the "
    "highest in brackets, which is no interval of confidence. Time is that of training."
)


def markdown(found: dict[str, Any], drawn: Sequence[Drawn] = ()) -> str:
    """Returns study.md of what study.json has."""
    parts = [f"# {found['title']}", _origin(found), markdown_table(*rows(found))]
    parts.append(FOOT)
    compared = [v["compared"] for v in found["variants"] if v.get("compared")]
    parts += by_chance([c["runs"] for c in compared if c["is_beyond_spread"] is not None])
    parts += other_rows(found)
    parts += found["notes"]
    parts += _answers(found["variants"])
    if failed := [failure for variant in found["variants"] for failure in variant["failed"]]:
        parts += [
            "## Runs that failed",
            markdown_table(
                ("run", "exit code", "reason"),
                [(f["run"], _or_nothing(f["code"]), f["reason"]) for f in failed],
            ),
        ]
    if warned := [(run["run"], line) for run in found["runs"] for line in run.get("warnings", ())]:
        parts += [
            "## Losses that were not as expected",
            markdown_table(("run", "what it said"), warned),
        ]
    if "law" in found:
        parts += ["## The law", *law_section(found["law"])]
    for picture in drawn:
        parts += [f"## {picture.title}", f"![{picture.alt}]({picture.file})"]
    return "\n\n".join(parts) + "\n"


def chance_of_apart(own: int, others: int) -> float:
    """Returns how often two ranges of so many seeds lie apart where nothing differs: all orders of
    m + n numbers are equally likely, and two sets of them have the one group before the other.
    """
    return 2 / math.comb(own + others, own)


def by_chance(runs: Sequence[Sequence[int]]) -> list[str]:
    """Returns how many of a table's comparisons would be beyond the spread by chance alone; `runs`
    are the seeds of the two sides of each.
    """
    if not runs:
        return []
    chances = [chance_of_apart(*sides) for sides in runs]
    seeds = ", ".join(sorted({f"{own} and {others}" for own, others in runs}))
    several = "comparisons" if len(runs) > 1 else "comparison"
    return [
        f"Beyond the spread: the two ranges lie apart. If no two variants differed, about "
        f"{sum(chances):.1f} of the {len(runs)} {several} would be so by chance "
        f"({seeds} seeds)."
    ]


def other_rows(found: dict[str, Any]) -> list[str]:
    """Returns which comparisons of losses mean nothing, since the held-out rows are others."""
    compared = [(v["variant"], v.get("compared") or {}) for v in found["variants"]]
    listed = "; ".join(
        f"{name} and {each['with']} ({', '.join(each['other_rows'])})"
        for name, each in compared
        if each.get("other_rows")
    )
    if not listed:
        return []
    return [
        f"Held-out rows differ, so that these losses do not compare: {listed}. "
        "`bert-jax evaluate` scores a run on the rows of another one (`like`), and "
        '`compare_on="tasks"` of a study compares by tasks.'
    ]


def _answers(variants: Sequence[dict[str, Any]]) -> list[str]:
    """Returns the table of the models' answers to the probes, over the seeds."""
    found = [variant for variant in variants if variant["findings"]]
    if not found:
        return []
    # A model is asked only what it has the parts for.
    asked = [*{(f["probe"], f["name"]): f for v in found for f in v["findings"]}.values()]
    lines = [[v["variant"], *(_answer(v, finding) for finding in asked)] for v in found]
    if any(finding["guessing"] is not None for finding in asked):
        lines.append([_GUESSING, *(_or_nothing(finding["guessing"]) for finding in asked)])
    table = markdown_table(["variant", *map(_asked, asked)], lines)
    return ["## What the models answer", table]


def _asked(finding: dict[str, Any]) -> str:
    """Returns the title of a column of answers."""
    probe, name = (finding[key].replace("_", " ") for key in ("probe", "name"))
    title = name if probe == name else f"{probe}: {name}"
    return f"{title}, {finding['unit']}" if finding["unit"] else title


def _answer(variant: dict[str, Any], asked: dict[str, Any]) -> str:
    keys = asked["probe"], asked["name"]
    for finding in variant["findings"]:
        if (finding["probe"], finding["name"]) == keys:
            return _spread(finding, 1)
    return _NOTHING


def _origin(found: dict[str, Any]) -> str:
    corpus = found["corpus"]
    facts = [
        f"`{found['command']}`" if found["command"] else "",
        f"commit {found['commit'][:12]}{'+' * found['commit'].endswith('+')}"
        if found["commit"]
        else "",
        f"written {found['written']}",
        f"corpus {corpus['fingerprint'][:12]}, {corpus['tokens']['train']:,} training tokens, "
        f"unigram entropy {corpus['unigram_entropy_nats']:.3f} nats"
        if corpus
        else "",
    ]
    return "; ".join(fact for fact in facts if fact) + "."


def as_csv(found: dict[str, Any]) -> str:
    """Returns study.csv: a line for each run, with all digits of its figures or its score."""
    facts = ("parameters", "block_parameters", "tokens", "flops", "training_seconds")
    columns = ("run", "variant", "seed", "status", "task", "score", *facts, *found["columns"])
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(columns)
    for run in found["runs"]:
        if "probes" not in run:
            values = run | run.get("figures", {})
            lines.writerow([values.get(column, "") for column in columns])
    return text.getvalue()


def brief(found: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Returns the table of variants without the columns that a terminal has no room for."""
    tasks = [task["name"] for task in found["tasks"]]
    left_out = {"parameters", "tokens", "perplexity", *(tasks if len(tasks) > 1 else ())}
    columns, lines = rows(found)
    kept = [number for number, name in enumerate(columns) if name not in left_out]
    return [columns[i] for i in kept], [
        [line[i] for i in kept] for line in lines if line[0] != _GUESSING
    ]


def rows(found: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Returns the columns and rows of the table of variants."""
    titles = {figure.name: figure.title for figure in OBJECTIVES["mlm+nsp"].figures}
    tasks = [task["name"] for task in found["tasks"]]
    has_comparison = any(variant.get("compared") for variant in found["variants"])
    columns = [
        "variant",
        "seeds",
        "parameters",
        "tokens",
        *(titles.get(column, column.replace("_", " ")) for column in found["columns"]),
        *tasks,
        "time",
    ]
    has_mean = len(tasks) > 1
    if has_mean:
        columns.insert(-1, "mean of tasks")
    if has_comparison:
        columns.append("difference")
    lines = []
    for variant in found["variants"]:
        line = [
            variant["variant"],
            f"{len(variant['seeds'])} of {variant['runs']}",
            _count(variant["parameters"]),
            _count(variant["tokens"]),
            *(_spread(variant["figures"][name], _digits(name)) for name in found["columns"]),
            *(_spread(variant["tasks"][name], 1) for name in tasks),
            *([_spread(variant["mean_score"], 1)] if has_mean else []),
            _time(variant["training_seconds"]["median"]),
        ]
        if has_comparison:
            line.append(_comparison(variant.get("compared")))
        lines.append(line)
    if any(task["chance"] is not None for task in found["tasks"]):
        chances = [_or_nothing(task["chance"]) for task in found["tasks"]]
        line = [_GUESSING, *[""] * (3 + len(found["columns"])), *chances, ""]
        lines.append(line + [""] * (has_mean + has_comparison))
    return columns, lines


def _digits(name: str) -> int:
    return 1 if name == "perplexity" else 3


def _spread(found: dict[str, Any], digits: int) -> str:
    if not found["runs"]:
        return _NOTHING
    return spread_text(
        found, lambda value: progress.number(value, f".{digits}f"), is_single=found["runs"] == 1
    )


def _comparison(compared: dict[str, Any] | None) -> str:
    if compared is None:
        return ""
    verdict = {True: ", beyond the spread", False: ", within the spread", None: ""}
    digits = 1 if compared["on"] == "tasks" else 3
    text = f"{compared['difference']:+z.{digits}f}{verdict[compared['is_beyond_spread']]}"
    if len(by_seed := compared["by_seed"]) > 1:
        signed = ", ".join(f"{value:+z.{digits}f}" for value in by_seed)
        text += f" (seed by seed {signed})"
    return text


def _count(number: int | None) -> str:
    if number is None:
        return _NOTHING
    return f"{number / 1e6:.2f} M" if number >= 1e5 else f"{number:,}"


def _time(seconds: float | None) -> str:
    # As measured: `progress.duration` rounds what is left up.
    return _NOTHING if seconds is None else report_page.duration(seconds)


def _or_nothing(value: Any) -> str:
    return _NOTHING if value is None else f"{value:g}"


def law_section(law: dict[str, Any]) -> list[str]:
    """Returns the paragraphs on a fitted law, as study.json has it."""
    unknown = law["not_identified"]
    lines = [
        (
            name,
            f"{value:.4g}",
            "{:.4g} to {:.4g}".format(*law["intervals"][name]),
            "not identified" if name in unknown else "",
        )
        for name, value in law["values"].items()
    ]
    error = f"{100 * law['mean_error_of_log_loss']:.2f} %"
    parts = [
        f"{law['formula']}, in nats; N are the parameters of the blocks, D tokens. The runs lie "
        f"{error} from it on average.",
        markdown_table(("parameter", "value", f"{law['level']:.0%} interval", ""), lines),
        f"Intervals are {law['interval']}, {law['resamples']} times.",
    ]
    if unknown:
        parts[-1] += (
            " Not identified: these runs do not tell the parameter, since it, its interval or its "
            "exponent ends on a bound of the search."
        )
    if left_out := law.get(LEFT_OUT):
        named = "; ".join(f"{name} ({why})" for name, why in left_out.items())
        parts.append(f"The law does not describe, and is not fitted to: {named}.")
    return parts
