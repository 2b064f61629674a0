"""Results of fine-tuning as JSON and as a Markdown table."""

import statistics
from collections.abc import Callable, Sequence
from typing import Any

from bert_jax.errors import Diverged
from bert_jax.pretrained.model_card import markdown_table
from bert_jax.registry import TASK_KINDS
from bert_jax.tasks.task import TaskSpec

_SETTINGS = ("batch_size", "learning_rate", "epochs")


def summarise(spec: TaskSpec, results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Returns the content of `results.json`: the settings, the scores over the seeds, and the
    directory of the best run, and whether all runs diverged.

    A score is the median over the seeds; the spread is the minimum, the maximum and the sample
    standard deviation. Only the last attempt of a seed counts; earlier attempts are counted as
    divergent. A seed without a score is counted but excluded from the median. Scores are in
    percent, or correlation x 100. Raises Diverged if no run has a score.
    """
    scored = [run for run in results if run["scores"]]
    if not scored:
        raise Diverged(
            f"all {len(results)} runs of {spec.name} diverged: {results[-1]['reason']}; fine-tune "
            "again with a lower `learning_rate`"
        )
    scores = [_flat(spec, run["scores"]) for run in scored]
    of_name = {name: [score[name] for score in scores if name in score] for name in scores[0]}
    best = {
        **{name: results[0][name] for name in _SETTINGS},
        "seeds": [run["seed"] for run in results],
        "divergent": sum(run["attempts"] - 1 + run["diverged"] for run in results),
        "without_scores": len(results) - len(scored),
        "examples_per_second": statistics.median(run["examples_per_second"] for run in scored),
        "scores": {
            name: spread(values) | {"deviation": statistics.stdev(values) if values[1:] else 0.0}
            for name, values in of_name.items()
        },
        "directories": [run["directory"] for run in results],
    }
    # The first metric of the task decides; of several splits, the first one.
    first = spec.metrics[0]
    main = next(name for name in best["scores"] if name == first or name.endswith(f" {first}"))
    best_run = max(scored, key=lambda run: _flat(spec, run["scores"])[main])
    return {
        "task": spec.name,
        "metric": main,
        "best": best,
        "directory": best_run["directory"],
        "diverged": all(run["diverged"] for run in results),
    }


def _flat(spec: TaskSpec, scores: dict[str, dict[str, float]]) -> dict[str, float]:
    """Returns metric -> percent; with several splits, names start with the split."""
    scale = 1.0 if TASK_KINDS[spec.kind].has_percent_scores else 100.0
    return {
        metric if len(scores) == 1 else f"{split} {metric}": scale * value
        for split, found in scores.items()
        for metric, value in found.items()
    }


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Returns the median, minimum and maximum of some values; None for no values."""
    if not values:
        return {"median": None, "lowest": None, "highest": None}
    return {"median": statistics.median(values), "lowest": min(values), "highest": max(values)}


def spread_text(found: dict[str, Any], number: Callable[[float], str], *, is_single: bool) -> str:
    """Returns the median and, for several values, the minimum and maximum in parentheses."""
    median = number(found["median"])
    if is_single:
        return median
    return f"{median} ({number(found['lowest'])} to {number(found['highest'])})"


def table(summary: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Returns the columns and the row of a summary table."""
    best = summary["best"]
    is_single = len(best["seeds"]) - best["without_scores"] == 1
    columns = ["batch", "learning rate", "epochs", "seeds", *best["scores"], "divergent"]
    row = [
        str(best["batch_size"]),
        f"{best['learning_rate']:g}",
        f"{best['epochs']:g}",
        str(len(best["seeds"])),
        *(spread_text(x, "{:.1f}".format, is_single=is_single) for x in best["scores"].values()),
        str(best["divergent"]),
    ]
    return columns, [row]


def markdown(summary: dict[str, Any]) -> str:
    """Returns the table with an explanation of its numbers."""
    return f"# {summary['task']}\n\n{markdown_table(*table(summary))}\n\n{NOTE}\n"


NOTE = "Development set: median over seeds (minimum to maximum)."
