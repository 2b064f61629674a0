"""The tables of a study, in Markdown and in a terminal, from the content of study.json."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bert_jax import progress
from bert_jax.pretrained.model_card import markdown_table
from bert_jax.registry import OBJECTIVES
from bert_jax.tasks.results import spread_text
from bert_jax_lab.reports import report_page

_NOTHING = "–"
_FOOT = (
    "Validation metrics, and scores in percent: the median over seeds, with the lowest and the "
    "highest value in parentheses, which is not a confidence interval. Time is the time of "
    "training."
)
_BEYOND = (
    "Beyond the spread: the two ranges do not overlap, as happens by chance in 1 of 3 comparisons "
    "with two seeds each, and in 1 of 10 with three."
)


@dataclass(frozen=True)
class Column:
    """A column of the table of variants: its cells, and the cell of a random guess."""

    title: str
    cell: Callable[[dict[str, Any]], str]
    guess: str = ""
    # Whether the column fits into a terminal.
    is_brief: bool = True


def columns_of(found: dict[str, Any]) -> list[Column]:
    """Returns the columns of the table of variants."""
    titles = {figure.name: figure.title for figure in OBJECTIVES["mlm+nsp"].figures}
    tasks = found["tasks"]
    is_single = len(tasks) == 1

    def metric(name: str) -> Column:
        digits = 1 if name == "perplexity" else 3
        return Column(
            titles.get(name, name.replace("_", " ")),
            lambda variant: _spread(variant["figures"][name], digits),
            is_brief=name != "perplexity",
        )

    def task(name: str, chance: float | None) -> Column:
        return Column(
            name, lambda variant: _spread(variant["tasks"][name], 1), _number(chance), is_single
        )

    columns = [
        Column("variant", lambda variant: variant["variant"], "guessing"),
        Column("seeds", lambda variant: f"{len(variant['seeds'])} of {variant['runs']}"),
        Column("parameters", lambda variant: _count(variant["parameters"]), is_brief=False),
        Column("tokens", lambda variant: _count(variant["tokens"]), is_brief=False),
        *map(metric, found["columns"]),
        *(task(each["name"], each["chance"]) for each in tasks),
    ]
    if len(tasks) > 1:
        columns.append(Column("mean of tasks", lambda variant: _spread(variant["mean_score"], 1)))
    columns.append(Column("time", lambda variant: _time(variant["training_seconds"]["median"])))
    if any(variant.get("compared") for variant in found["variants"]):
        columns.append(Column("difference", lambda variant: _comparison(variant.get("compared"))))
    return columns


def brief(found: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Returns the titles and rows of the columns that fit into a terminal."""
    columns = [column for column in columns_of(found) if column.is_brief]
    return [column.title for column in columns], _rows(found, columns)


def _rows(found: dict[str, Any], columns: Sequence[Column]) -> list[list[str]]:
    return [[column.cell(variant) for column in columns] for variant in found["variants"]]


def markdown(found: dict[str, Any], pictures: Sequence[str] = ()) -> str:
    """Returns study.md."""
    columns = columns_of(found)
    lines = _rows(found, columns)
    if any(task["chance"] is not None for task in found["tasks"]):
        lines.append([column.guess for column in columns])
    table = markdown_table([column.title for column in columns], lines)
    parts = [f"# {found['title']}", _origin(found), table, _FOOT]
    compared = (variant.get("compared") or {} for variant in found["variants"])
    if any(each.get("is_beyond_spread") is not None for each in compared):
        parts.append(_BEYOND)
    parts += other_rows(found)
    parts += found["notes"]
    parts += _answers(found["variants"])
    if failed := [failure for variant in found["variants"] for failure in variant["failed"]]:
        listed = [(f["run"], _number(f["code"]), f["reason"]) for f in failed]
        parts += ["## Runs that failed", markdown_table(("run", "exit code", "reason"), listed)]
    if warned := [(run["run"], line) for run in found["runs"] for line in run.get("warnings", ())]:
        parts += ["## Unexpected losses", markdown_table(("run", "warning"), warned)]
    if "law" in found:
        parts += ["## The law", *law_section(found["law"], found["left_out"])]
    parts += pictures
    return "\n\n".join(parts) + "\n"


def other_rows(found: dict[str, Any]) -> list[str]:
    """Returns which losses are not comparable, because the validation rows differ."""
    listed = "; ".join(
        f"{variant['variant']} and {compared['with']} ({', '.join(compared['other_rows'])})"
        for variant in found["variants"]
        if (compared := variant.get("compared")) and compared.get("other_rows")
    )
    if not listed:
        return []
    return [
        f"Validation rows differ, so that these losses do not compare: {listed}. "
        "`bert-jax evaluate` scores a run on the rows of another run, and "
        '`compare_on="tasks"` of a study compares by tasks.'
    ]


def _answers(variants: Sequence[dict[str, Any]]) -> list[str]:
    """Returns the table of the answers to the probes, over the seeds."""
    # A model only has results for probes that match its heads.
    asked = {(f["probe"], f["name"]): f for v in variants for f in v["findings"]}
    if not asked:
        return []
    lines = []
    for variant in variants:
        if variant["findings"]:
            own = {(f["probe"], f["name"]): _spread(f, 1) for f in variant["findings"]}
            lines.append([variant["variant"], *(own.get(key, _NOTHING) for key in asked)])
    if any(finding["guessing"] is not None for finding in asked.values()):
        lines.append(["guessing", *(_number(finding["guessing"]) for finding in asked.values())])
    titles = ["variant"]
    for (probe, name), finding in asked.items():
        title = name if probe == name else f"{probe}: {name}"
        unit = f", {finding['unit']}" if finding["unit"] else ""
        titles.append(title.replace("_", " ") + unit)
    return ["## Probes", markdown_table(titles, lines)]


def _origin(found: dict[str, Any]) -> str:
    facts = [f"`{found['command']}`"] if found["command"] else []
    if commit := found["commit"]:
        facts.append(f"commit {commit[:12]}{'+' * commit.endswith('+')}")
    facts.append(f"written {found['written']}")
    if corpus := found["corpus"]:
        facts.append(
            f"corpus {corpus['fingerprint'][:12]}, {corpus['tokens']['train']:,} training tokens, "
            f"unigram entropy {corpus['unigram_entropy_nats']:.3f} nats"
        )
    return "; ".join(facts) + "."


def law_section(law: dict[str, Any], left_out: dict[str, str]) -> list[str]:
    """Returns the paragraphs about a fitted law in study.json."""
    unknown = law["not_identified"]
    lines = []
    for name, value in law["values"].items():
        low, high = law["intervals"][name]
        note = "not identified" if name in unknown else ""
        lines.append((name, f"{value:.4g}", f"{low:.4g} to {high:.4g}", note))
    parts = [
        f"{law['formula']}, in nats; N is the number of parameters of the blocks, D of tokens. "
        f"The mean error of the runs is {100 * law['mean_error_of_log_loss']:.2f} %.",
        markdown_table(("parameter", "value", f"{law['level']:.0%} interval", ""), lines),
        f"Intervals are {law['interval']}, {law['resamples']} times.",
    ]
    if unknown:
        parts[-1] += (
            " Not identified: the runs do not determine the parameter, because its value, its "
            "interval or its exponent ends at a bound of the search."
        )
    if left_out:
        named = "; ".join(f"{name} ({why})" for name, why in left_out.items())
        parts.append(f"The law is not fitted to: {named}.")
    return parts


# --- cells ----------------------------------------------------------------------------------------


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
    # As measured: `progress.duration` rounds up.
    return _NOTHING if seconds is None else report_page.duration(seconds)


def _number(value: Any) -> str:
    return _NOTHING if value is None else f"{value:g}"
