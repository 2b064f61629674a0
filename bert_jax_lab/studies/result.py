"""Collects the results of a study's runs in study.json, study.md and figures."""

import datetime
import statistics
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bert_jax import file_lock, strict_json
from bert_jax.config import TrainConfig, flatten, to_dict
from bert_jax.config.resume import differences
from bert_jax.files import write_json, write_whole
from bert_jax.progress import note
from bert_jax.registry import OBJECTIVES
from bert_jax.tasks.results import spread
from bert_jax.training.evaluate import batch_shape
from bert_jax.versions import installed
from bert_jax.workdir import log_reader
from bert_jax_lab.reports.run_data import POSITIONS, SECONDS, STEP, RunColumns
from bert_jax_lab.studies import figures, law, table
from bert_jax_lab.studies.plan import StudyPlan, StudyRun
from bert_jax_lab.studies.run import VALIDATION, record_of
from bert_jax_lab.studies.study import Study

STUDY_MD = "study.md"
# How a run ended; MISSING: it has not ended; BLOCKED: it needs a run that failed.
DONE, FAILED, MISSING, BLOCKED = "done", "failed", "missing", "blocked"
# Fields of `data` that do not change the rows of the validation split, which are never packed.
_SAME_ROWS = {"data.num_workers", "data.prefetch", "data.verify", "data.packing"}


def write(plan: StudyPlan) -> dict[str, Any]:
    """Writes study.json, study.md and the figures; returns the content of study.json."""
    with file_lock.hold(plan.workdir / "locks" / "summary", waits=True):
        found = collect(plan)
        points = _fitted_runs(found)
        fitted = _law_of(found, points) if plan.study.has_law else None
        drawn = figures.draw(found, fitted, points, plan.workdir / "figures")
        write_json(plan.workdir / "study.json", found)
        write_whole(plan.workdir / STUDY_MD, table.markdown(found, drawn))
    return found


def collect(plan: StudyPlan) -> dict[str, Any]:
    """Returns the content of study.json without the law.

    `runs` has a value per run, `variants` a value per variant, over its seeds.
    """
    study = plan.study
    runs = [_entry(plan, run) for run in plan.runs if run.variant]
    rows_of = {run.variant: _decides_rows(run.config) for run in plan.runs if run.config}

    def differing(name: str, other: str) -> list[str]:
        """Returns the fields by which the validation rows of two variants differ."""
        return [field for field, _, _ in differences(rows_of[other], rows_of[name])]

    variants, left_out = [], {}
    first = study.variants[0].name
    for number, variant in enumerate(study.variants):
        if study.has_law and (fields := differing(variant.name, first)):
            left_out[variant.name] = f"other validation rows than {first}: {', '.join(fields)}"
        variants.append(_variant(study, variant.name, runs))
        if study.compare and number:
            other = first if study.compare == "first" else study.variants[number - 1].name
            compared = _compared(study, runs, variant.name, other)
            if compared and study.compare_on == "figures":
                compared["other_rows"] = differing(variant.name, other)
            variants[-1]["compared"] = compared
    return {
        "study": study.name,
        "scale": study.scale,
        "title": study.title,
        "notes": list(study.notes),
        "command": plan.command,
        "written": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "versions": installed("bert-jax", "jax", "jaxlib", "flax", "optax", "numpy", "scipy"),
        "corpus": _corpus(plan.corpus),
        "columns": list(study.columns),
        "tasks": [{"name": task.name, "chance": task.chance} for task in study.tasks],
        "variants": variants,
        "runs": runs,
        "left_out": left_out,
    }


def _entry(plan: StudyPlan, run: StudyRun) -> dict[str, Any]:
    """Returns the entry of a run in study.json: its record, or why there is none."""
    entry: dict[str, Any] = {"run": run.name, "variant": run.variant, "seed": run.seed}
    entry["directory"] = str(run.folder.relative_to(plan.workdir))
    if run.task is not None:
        entry["task"] = run.task.name
    elif run.probes:
        entry["probes"] = [*run.probes]
    if record := record_of(run):
        entry |= {"status": FAILED if record["code"] else DONE} | record
    elif failed := [needed.name for needed in run.needs if _has_failed(needed)]:
        entry |= {"status": BLOCKED, "reason": f"{failed[0]} failed"}
    else:
        entry["status"] = MISSING
    if run.config is not None and "figures" in entry:
        entry["curve"] = _curve(run.folder, run.config, plan.study.columns[0])
    return entry


def _is_pretraining(run: dict[str, Any]) -> bool:
    """Returns whether an entry of `runs` is a pre-training run."""
    return "task" not in run and "probes" not in run


def _has_failed(run: StudyRun) -> bool:
    record = record_of(run)
    return bool(record["code"]) if record else any(map(_has_failed, run.needs))


def _curve(folder: Path, config: TrainConfig, name: str) -> list[dict[str, float]]:
    """Returns the values of a validation metric: `step`, `value`, `tokens`, and `seconds` of
    training up to the step.
    """
    rows = log_reader.read_rows(folder)
    columns = RunColumns(to_dict(config), [row for row in rows if row.get("split") is None])
    scored = [r for r in rows if r.get("split") == VALIDATION and r.get(name) is not None]
    found = columns(scored)
    names = {STEP: STEP, "value": name, "seconds": SECONDS, "tokens": POSITIONS}
    return [{key: found[of][i] for key, of in names.items()} for i in range(len(scored))]


def _variant(study: Study, name: str, runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    own = [run for run in runs if run["variant"] == name]
    done = [run for run in own if run["status"] == DONE]
    pretrained = [run for run in done if _is_pretraining(run)]
    scores = {
        task.name: [run["score"] for run in done if run.get("task") == task.name]
        for task in study.tasks
    }
    return {
        "variant": name,
        "runs": sum(map(_is_pretraining, own)),
        "seeds": [run["seed"] for run in pretrained],
        "figures": {
            column: _spread([r["figures"][column] for r in pretrained if column in r["figures"]])
            for column in study.columns
        },
        "tasks": {task: _spread(values) for task, values in scores.items()},
        "mean_score": _spread([*_mean_scores(study, own).values()]),
        "findings": _findings([run for run in own if "findings" in run]),
        "failed": [
            {"run": run["run"], "code": run.get("code"), "reason": run["reason"]}
            for run in own
            if run["status"] in (FAILED, BLOCKED)
        ],
        "training_seconds": _spread([run["training_seconds"] for run in pretrained]),
        **{
            fact: pretrained[0][fact] if pretrained else None
            for fact in ("parameters", "block_parameters", "tokens")
        },
    }


def _spread(values: Sequence[float]) -> dict[str, Any]:
    """Returns the median, the lowest, the highest and the number of some values."""
    return spread(values) | {"runs": len(values)}


def _findings(probed: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns each answer to a probe, with its spread over the seeds."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for run in probed:
        for finding in run["findings"]:
            found.setdefault((finding["probe"], finding["name"]), []).append(finding)
    return [
        {name: value for name, value in same[0].items() if name != "value"}
        | _spread([finding["value"] for finding in same])
        for same in found.values()
    ]


def _mean_scores(study: Study, own: Sequence[dict[str, Any]]) -> dict[int, float]:
    """Returns the mean score over all tasks per seed, for the seeds with a score of every task."""
    by_seed: dict[int, list[float]] = {}
    for run in own:
        if "score" in run:
            by_seed.setdefault(run["seed"], []).append(run["score"])
    return {
        seed: statistics.fmean(scores)
        for seed, scores in by_seed.items()
        if len(scores) == len(study.tasks)
    }


def _compared(
    study: Study, runs: Sequence[dict[str, Any]], name: str, other: str
) -> dict[str, Any] | None:
    """Returns the difference to another variant, and whether the two ranges of seeds do not
    overlap: None if one has a single seed. Equal seeds have the same order of rows, so that the
    differences per seed are included.
    """

    def values(variant: str) -> dict[int, float]:
        own = [run for run in runs if run["variant"] == variant]
        if study.compare_on == "tasks":
            return _mean_scores(study, own)
        column = study.columns[0]
        return {
            run["seed"]: run["figures"][column]
            for run in own
            if run["status"] == DONE and _is_pretraining(run) and column in run["figures"]
        }

    mine, theirs = values(name), values(other)
    if not mine or not theirs:
        return None
    own, others = [*mine.values()], [*theirs.values()]
    is_apart = max(own) < min(others) or max(others) < min(own)
    return {
        "with": other,
        "on": study.compare_on,
        "difference": statistics.median(own) - statistics.median(others),
        "is_beyond_spread": is_apart if min(len(own), len(others)) > 1 else None,
        "by_seed": [mine[seed] - theirs[seed] for seed in sorted(mine.keys() & theirs)],
    }


def _decides_rows(config: TrainConfig) -> dict[str, Any]:
    """Returns the settings on which the validation rows of a run depend."""
    found = {
        name: value
        for name, value in flatten(config).items()
        if name.startswith("data.") and name not in _SAME_ROWS
    }
    if not OBJECTIVES.is_builtin(config.objective):  # the built-in ones mask rows identically
        found["objective"] = config.objective
    rows = batch_shape(config, config.phases[-1], devices=1)
    # More slots than a row can use have no effect.
    slots = min(rows.max_predictions, rows.predictions_of(config.data.masked_lm_prob))
    found |= {"sequence_length": rows.sequence_length, "max_predictions": slots}
    return found | {"evaluation.num_examples": config.evaluation.num_examples}


def _corpus(directory: Path) -> dict[str, Any] | None:
    manifest = strict_json.load(directory / "corpus.json", default=None)
    if manifest is None:
        return None
    return {
        "fingerprint": manifest["fingerprint"],
        "unigram_entropy_nats": manifest["unigram_entropy_nats"],
        "tokens": {name: manifest["counts"][name]["tokens"] for name in ("train", "validation")},
    }


def _commit() -> str | None:
    """Returns the commit of the checkout with this package, with "+" if files have changed."""
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return None

    command = ["git", "-C", str(root), "describe", "--always", "--exclude=*", "--abbrev=40"]
    try:
        done = subprocess.run([*command, "--dirty=+"], check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def _fitted_runs(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the runs of study.json to which a law is fitted."""
    return [
        run
        for run in found["runs"]
        if run["status"] == DONE
        and _is_pretraining(run)
        and run["variant"] not in found["left_out"]
        and found["columns"][0] in run["figures"]
    ]


def _law_of(found: dict[str, Any], points: Sequence[dict[str, Any]]) -> law.Law | None:
    """Fits a law and adds it to study.json; returns None, with a note, for too few runs."""
    try:
        fitted = law.fit(
            [run["block_parameters"] for run in points],
            [run["tokens"] for run in points],
            [run["figures"][found["columns"][0]] for run in points],
        )
    except ValueError as error:
        note(f"no law is fitted to {len(points)} runs: {error}")
        return None
    found["law"] = fitted.as_json()
    return fitted
