"""Results of fine-tuning as JSON and as a Markdown table, beside what BERT's authors published."""

import statistics
from collections.abc import Sequence
from typing import Any

from bert_jax.errors import NonFinite
from bert_jax.pretrained.model_card import markdown_table
from bert_jax.registry import TASK_KINDS
from bert_jax.tasks.glue import PUBLISHED
from bert_jax.tasks.task import TaskSpec
from bert_jax.workdir.run_list import spread, spread_text

_SETTINGS = ("batch_size", "learning_rate", "epochs")


def summarise(
    spec: TaskSpec, results: Sequence[dict[str, Any]], *, is_official: bool = True
) -> dict[str, Any]:
    """Returns everything `results.json` says: the runs by setting, the best setting and the
    directory of its best run, the published row, which is comparable where the rows are the
    official ones only (`is_official`).

    A setting's score is the median over its seeds; the spread is the lowest, the highest and the
    sample deviation. Of a seed that diverged and was restarted its last attempt counts, and the
    attempts before it are counted as divergent; one whose last attempt has no score either is
    counted and left out of the median. Scores are percent or correlation x 100. Raises NonFinite if
    no run has a score.
    """
    groups: dict[tuple, list[dict[str, Any]]] = {}
    for result in results:
        groups.setdefault(tuple(result[name] for name in _SETTINGS), []).append(result)
    settings = []
    for setting, runs in groups.items():
        scores = [_flat(spec, run["scores"]) for run in runs if run["scores"]]
        speeds = [r["examples_per_second"] for r in runs if r["scores"]]
        settings.append(
            dict(zip(_SETTINGS, setting, strict=True))
            | {
                "seeds": [run["seed"] for run in runs],
                "divergent": sum(run["attempts"] - 1 + run["diverged"] for run in runs),
                "without_scores": len(runs) - len(scores),
                "examples_per_second": statistics.median(speeds) if speeds else None,
                "scores": {
                    name: _spread([score[name] for score in scores if name in score])
                    for name in (scores[0] if scores else ())
                },
                "directories": [run["directory"] for run in runs],
            }
        )
    scored = [setting for setting in settings if setting["scores"]]
    if not scored:
        raise NonFinite(
            f"all {len(results)} runs of {spec.name} diverged without a score; "
            "lower `learning_rate`"
        )
    # The task's first metric decides, on the first split where there are several.
    first = spec.metrics[0]
    main = next(n for n in scored[0]["scores"] if n == first or n.endswith(f" {first}"))
    best = max(scored, key=lambda setting: setting["scores"][main]["median"])
    runs = [run for run in groups[tuple(best[name] for name in _SETTINGS)] if run["scores"]]
    best_run = max(runs, key=lambda run: _flat(spec, run["scores"])[main])
    published = {
        model: rows[spec.name]
        for model, rows in PUBLISHED.items()
        if is_official and spec.name in rows
    }
    return {
        "task": spec.name,
        "metric": main,
        "best": best,
        "directory": best_run["directory"],
        "settings": settings,
        "published": published,
    }


def _flat(spec: TaskSpec, scores: dict[str, dict[str, float]]) -> dict[str, float]:
    """Returns metric -> percent; with the split's name before it where there are several."""
    scale = 1.0 if TASK_KINDS[spec.kind].has_percent_scores else 100.0
    return {
        metric if len(scores) == 1 else f"{split} {metric}": scale * value
        for split, found in scores.items()
        for metric, value in found.items()
    }


def _spread(values: list[float]) -> dict[str, float]:
    return spread(values) | {"deviation": statistics.stdev(values) if len(values) > 1 else 0.0}


def table(summary: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Returns columns and rows: every setting, the best one first, then the published models."""
    names = list(summary["best"]["scores"])
    columns = ["run", "batch", "learning rate", "epochs", "seeds", *names, "divergent"]
    others = [setting for setting in summary["settings"] if setting is not summary["best"]]
    rows = [
        [
            "ours, best" if number == 0 and others else "ours",
            str(setting["batch_size"]),
            f"{setting['learning_rate']:g}",
            f"{setting['epochs']:g}",
            str(len(setting["seeds"])),
            *(_cell(setting, name) for name in names),
            str(setting["divergent"]),
        ]
        for number, setting in enumerate([summary["best"], *others])
    ]
    for model, scores in summary["published"].items():
        shown = [f"{scores[name]:.1f}" if name in scores else "" for name in names]
        rows.append([f"published, {model}", "", "", "", "", *shown, ""])
    return columns, rows


def _cell(setting: dict[str, Any], name: str) -> str:
    if name not in setting["scores"]:
        return "none"
    is_single = len(setting["seeds"]) - setting["without_scores"] == 1
    return spread_text(setting["scores"][name], lambda score: f"{score:.1f}", is_single=is_single)


def markdown(summary: dict[str, Any]) -> str:
    """Returns the table, and what its figures are."""
    note = f"{NOTE} {PUBLISHED_NOTE}" if summary["published"] else NOTE
    return f"# {summary['task']}\n\n{markdown_table(*table(summary))}\n\n{note}\n"


NOTE = "Development set; the median over seeds, lowest to highest in brackets."
PUBLISHED_NOTE = "Published: Devlin et al. 2019, GLUE's test server and SQuAD's development sets."
