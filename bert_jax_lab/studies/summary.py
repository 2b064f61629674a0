"""Puts together what all runs of a study say: study.json, study.md, figures, the fitted law."""

import datetime
import statistics
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bert_jax import file_lock, strict_json
from bert_jax.config import flatten
from bert_jax.config.fields import is_free
from bert_jax.files import write_json, write_whole
from bert_jax.progress import note
from bert_jax.registry import OBJECTIVES
from bert_jax.training.evaluate import batch_shape
from bert_jax.versions import installed
from bert_jax.workdir import run_list
from bert_jax_lab.studies import figures, scaling_law, table
from bert_jax_lab.studies.figures import LEFT_OUT
from bert_jax_lab.studies.records import (
    DONE,
    FAILED,
    curve_of,
    record_of,
)
from bert_jax_lab.studies.runs import (
    FinetuneRun,
    PretrainRun,
    ProbeRun,
    StudyPlan,
    StudyRun,
    VariantRun,
    tokens_of,
)
from bert_jax_lab.studies.scaling_law import Law

STUDY_JSON, STUDY_MD, STUDY_CSV, FIGURES = "study.json", "study.md", "study.csv", "figures"
# A run that has not ended, and one that needs a run that has failed.
MISSING, BLOCKED = "missing", "blocked"


def write_json_only(plan: StudyPlan) -> None:
    """Writes study.json, but for the law: what is done after each run costs no time."""
    with file_lock.hold(plan.workdir / "locks" / "summary", waits=True):
        write_json(plan.workdir / STUDY_JSON, summarise(plan))


def write(plan: StudyPlan) -> dict[str, Any]:
    """Writes study.json, study.md and the figures of what there is; returns what study.json has."""
    with file_lock.hold(plan.workdir / "locks" / "summary", waits=True):
        found = summarise(plan)
        law = _law_of(plan, found)
        if law is not None:
            found["law"] = law.as_json() | {LEFT_OUT: _without_law(plan)}
        drawn = figures.draw(found, law, plan.workdir / FIGURES)
        write_json(plan.workdir / STUDY_JSON, found)
        write_whole(plan.workdir / STUDY_MD, table.markdown(found, drawn))
        write_whole(plan.workdir / STUDY_CSV, table.as_csv(found))
    return found


def summarise(plan: StudyPlan) -> dict[str, Any]:
    """Returns the study with its runs and what the variants have over their seeds."""
    study = plan.study
    runs = [_entry(plan, run) for run in plan.whole if isinstance(run, VariantRun)]
    variants = [_variant(plan, variant.name, runs) for variant in study.variants]
    if study.compare:
        for number, variant in enumerate(variants[1:], 1):
            other = variants[0 if study.compare == "first" else number - 1]
            variant["compared"] = _compared(variant, other, on=study.compare_on)
            if variant["compared"]:
                if study.compare_on == "figures":
                    variant["compared"]["other_rows"] = _other_rows(plan, variant, other)
                pair = [_by_seed(plan, runs, v, on=study.compare_on) for v in (variant, other)]
                variant["compared"]["by_seed"] = [
                    pair[0][seed] - pair[1][seed] for seed in sorted(pair[0].keys() & pair[1])
                ]
    # Variants of an earlier call are kept beside those of this one.
    made = {run.variant for run in plan.runs if isinstance(run, PretrainRun)}
    made |= {run["variant"] for run in runs if run["status"] in (DONE, FAILED)}
    variants = [variant for variant in variants if variant["variant"] in made]
    runs = [run for run in runs if run["variant"] in made]
    return {
        "study": study.name,
        "scale": study.scale,
        "title": study.title,
        "notes": list(study.notes),
        "command": plan.command,
        "written": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "versions": installed("bert-jax", "jax", "jaxlib", "flax", "optax", "numpy", "scipy"),
        "asked": plan.asked,
        "corpus": _corpus(plan.corpus),
        "columns": list(study.columns),
        "tasks": [{"name": task.name, "chance": task.chance} for task in study.tasks],
        "variants": variants,
        "runs": runs,
    }


def _entry(plan: StudyPlan, run: VariantRun) -> dict[str, Any]:
    record = record_of(plan.workdir, run)
    if record is None:
        lost = [needed.name for needed in run.needs if _has_failed(plan, needed)]
        status = {"status": BLOCKED, "reason": f"{lost[0]} failed"} if lost else {"status": MISSING}
        record = {"run": run.name, "variant": run.variant, "seed": run.seed, **status}
        if isinstance(run, FinetuneRun):
            record["task"] = run.task.name
    record = {k: v for k, v in record.items() if k != "identity"}
    if isinstance(run, ProbeRun):
        record["probes"] = [*run.probes]
    if isinstance(run, PretrainRun) and "figures" in record:
        points = curve_of(run.directory, plan.study.columns[0])
        record["curve"] = [
            point | {"tokens": tokens_of(run.config, int(point["step"]))} for point in points
        ]
        record["directory"] = str(run.directory.relative_to(plan.workdir))
    return record


def _has_failed(plan: StudyPlan, run: StudyRun) -> bool:
    record = record_of(plan.workdir, run)
    if record is not None:
        return record["status"] == FAILED
    return any(_has_failed(plan, needed) for needed in run.needs)


def _variant(plan: StudyPlan, name: str, runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    own = [run for run in runs if run["variant"] == name]
    pretrained = [run for run in own if _is_pretraining(run)]
    done = [run for run in pretrained if run["status"] == DONE]
    found: dict[str, Any] = {
        "variant": name,
        "runs": len(pretrained),
        "seeds": [run["seed"] for run in done],
        "figures": {
            column: spread([r["figures"][column] for r in done if column in r["figures"]])
            for column in plan.study.columns
        },
        "tasks": {
            task.name: spread([r["score"] for r in own if r.get("task") == task.name
                               and r["status"] == DONE])
            for task in plan.study.tasks
        },
        "findings": _findings([r for r in own if "findings" in r]),
        "failed": [
            {"run": run["run"], "code": run.get("code"), "reason": run["reason"]}
            for run in own
            if run["status"] in (FAILED, BLOCKED)
        ],
    }  # fmt: skip
    means = [_mean_score(plan, own, run["seed"]) for run in done]
    found["mean_score"] = spread([mean for mean in means if mean is not None])
    for fact in ("parameters", "block_parameters", "tokens", "flops"):
        found[fact] = done[0][fact] if done else None
    found["training_seconds"] = spread([run["training_seconds"] for run in done])
    return found


def _is_pretraining(run: dict[str, Any]) -> bool:
    return "task" not in run and "probes" not in run


def _findings(probed: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the spread over the seeds of each answer to a probe."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for run in probed:
        for finding in run["findings"]:
            found.setdefault((finding["probe"], finding["name"]), []).append(finding)
    return [
        {name: value for name, value in same[0].items() if name != "value"}
        | spread([finding["value"] for finding in same])
        for same in found.values()
    ]


def _mean_score(plan: StudyPlan, own: Sequence[dict[str, Any]], seed: int) -> float | None:
    """Returns the mean over all tasks of one seed; None where one of them has no score."""
    scores = [run["score"] for run in own if run["seed"] == seed and "score" in run]
    is_whole = scores and len(scores) == len(plan.study.tasks)
    return statistics.fmean(scores) if is_whole else None


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Returns the median, the lowest, the highest and the number of some values."""
    return run_list.spread(values) | {"runs": len(values)}


def _compared(variant: dict[str, Any], other: dict[str, Any], *, on: str) -> dict[str, Any] | None:
    """Returns the difference to another variant, and whether the two ranges of seeds lie apart;
    None for the latter where one has a single seed.
    """
    own, its = (
        each["mean_score"] if on == "tasks" else next(iter(each["figures"].values()))
        for each in (variant, other)
    )
    if not own["runs"] or not its["runs"]:
        return None
    is_apart = own["highest"] < its["lowest"] or its["highest"] < own["lowest"]
    return {
        "with": other["variant"],
        "on": on,
        "difference": own["median"] - its["median"],
        "is_beyond_spread": is_apart if min(own["runs"], its["runs"]) > 1 else None,
        "runs": [own["runs"], its["runs"]],
    }


def _other_rows(plan: StudyPlan, variant: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Returns what differs between the held-out rows of two variants: fields, or the corpus."""
    runs = {run.variant: run for run in plan.whole if isinstance(run, PretrainRun)}
    own, its = (_decides_rows(runs[each["variant"]]) for each in (variant, other))
    return [name for name in {**own, **its} if own.get(name) != its.get(name)]


def _decides_rows(run: PretrainRun) -> dict[str, Any]:
    config = run.config
    found: dict[str, Any] = {"corpus": run.corpus}
    for name, value in flatten(config).items():
        # Held-out rows are never packed.
        if name.startswith("data.") and not is_free(name, config) and name != "data.packing":
            found[name] = value
    if not OBJECTIVES.is_builtin(config.objective):  # those mask rows alike
        found["objective"] = config.objective
    rows = batch_shape(config, config.phases[-1], devices=1)
    # Room that no row needs changes nothing.
    most = min(rows.max_predictions, rows.predictions_of(config.data.masked_lm_prob))
    found |= {"sequence_length": rows.sequence_length, "max_predictions": most}
    return found | {"evaluation.num_examples": config.evaluation.num_examples}


def _by_seed(
    plan: StudyPlan, runs: Sequence[dict[str, Any]], variant: dict[str, Any], *, on: str
) -> dict[int, float]:
    """Returns what is compared of a variant, seed by seed: the same seed has the same order of
    rows.
    """
    own = [run for run in runs if run["variant"] == variant["variant"]]
    if on == "tasks":
        means = {seed: _mean_score(plan, own, seed) for seed in variant["seeds"]}
        return {seed: mean for seed, mean in means.items() if mean is not None}
    column = plan.study.columns[0]
    return {
        run["seed"]: run["figures"][column]
        for run in own
        if run["status"] == DONE and _is_pretraining(run) and column in run["figures"]
    }


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
    """Returns the commit of the checkout that this package lies in; "+" for changed files."""
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return None

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(root), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    try:
        is_changed = bool(git("diff-index", "HEAD"))
        return git("rev-parse", "HEAD") + ("+" if is_changed else "")
    except (OSError, subprocess.CalledProcessError):
        return None


# --- the law --------------------------------------------------------------------------------------


def _points(plan: StudyPlan, runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the runs that a law is fitted to: those that it describes."""
    others = _without_law(plan).keys()
    column = plan.study.columns[0]
    return [
        run
        for run in runs
        if run["status"] == DONE and _is_pretraining(run) and run["variant"] not in others
        and column in run["figures"]
    ]  # fmt: skip


def _without_law(plan: StudyPlan) -> dict[str, str]:
    """Returns the variants that a law cannot describe, and why: what another run has seen is not
    among the tokens of a run, and losses on other rows do not compare.
    """
    first, found = plan.study.variants[0], {}
    for variant in plan.study.variants:
        fields = _other_rows(plan, {"variant": variant.name}, {"variant": first.name})
        if variant.init_from:
            found[variant.name] = f"begins from {variant.init_from}"
        elif fields:
            found[variant.name] = f"other held-out rows than {first.name}: {', '.join(fields)}"
    return found


def _law_of(plan: StudyPlan, found: dict[str, Any]) -> Law | None:
    if not plan.study.has_law:
        return None
    points, column = _points(plan, found["runs"]), plan.study.columns[0]
    try:
        return scaling_law.fit(
            [run["block_parameters"] for run in points],
            [run["tokens"] for run in points],
            [run["figures"][column] for run in points],
        )
    except ValueError as error:
        note(f"no law is fitted to {len(points)} runs: {error}")
        return None
