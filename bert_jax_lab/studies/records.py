"""Keeps how each run of a study ended, in a file, with the figures that tables are made of."""

import contextlib
import json
import time
from pathlib import Path
from typing import Any

from bert_jax.config import TrainConfig
from bert_jax.errors import (
    DataDamaged,
    Diverged,
    Interrupted,
    NonFinite,
    NoUsableCheckpoint,
    Preempted,
    ResumeRefused,
    StorageFailed,
    Unreachable,
    UsageError,
)
from bert_jax.files import write_json
from bert_jax.workdir import goodput, log_reader, run_directory
from bert_jax_lab.studies.child import Outcome
from bert_jax_lab.studies.runs import (
    FinetuneRun,
    PretrainRun,
    ProbeRun,
    StudyRun,
    VariantRun,
    flops_of,
    tokens_of,
)

DONE, FAILED = "done", "failed"
# The same run would fail again in the same way: it is not tried again. Wrong usage may be put right
# outside of it, by a file of `extend` or by data that are there now.
_FINAL = {kind.exit_code for kind in (ResumeRefused, NoUsableCheckpoint, NonFinite, Diverged)}
# Nothing is wrong with the run: the study stops, and goes on with it when it is started again.
STOPPING = {
    kind.exit_code for kind in (DataDamaged, StorageFailed, Preempted, Interrupted, Unreachable)
}
_HELD_OUT = "validation"


def record_of(workdir: Path, run: StudyRun) -> dict[str, Any] | None:
    """Returns how a run ended.

    Returns None if the run has not ended, was recorded with other inputs, or needs a run that is
    not done.
    """
    if not all(is_done(record_of(workdir, needed)) for needed in run.needs):
        return None
    found = _read(workdir, run)
    return found if found.get("identity") == run.identity else None


def _read(workdir: Path, run: StudyRun) -> dict[str, Any]:
    try:
        found = json.loads((workdir / "records" / f"{run.name}.json").read_text(encoding="utf-8"))
    except (FileNotFoundError, RecursionError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def begins_elsewhere(run: PretrainRun) -> bool:
    """Returns whether the workdir of a run holds one that began from another run, or from none."""
    stored = _stored(run)
    return bool(stored) and Path(stored.get("init_from") or "").name != (
        "" if run.init_from is None else run.init_from.name
    )


def _stored(run: PretrainRun) -> dict[str, Any]:
    try:
        return run_directory.stored(run.directory)
    except UsageError:
        return {}


def is_done(record: dict[str, Any] | None) -> bool:
    """Returns whether a run with this record has come to its end."""
    return record is not None and record.get("status") == DONE


def is_settled(record: dict[str, Any] | None) -> bool:
    """Returns whether a run with this record is not made again: it is done, or would fail again."""
    return record is not None and (is_done(record) or record["code"] in _FINAL)


def write_record(workdir: Path, run: StudyRun, outcome: Outcome) -> dict[str, Any]:
    """Writes and returns how a run ended.

    A run that fails where another run of that name is done has no figures: the logs are the other
    run's.
    """
    before = _read(workdir, run)
    record: dict[str, Any] = {
        "run": run.name,
        "identity": run.identity,
        "status": FAILED if outcome.code else DONE,
        "code": outcome.code,
        "reason": outcome.reason if outcome.code else "",
        "time": time.time(),
    }
    if isinstance(run, VariantRun):
        record |= {"variant": run.variant, "seed": run.seed}
    if isinstance(run, FinetuneRun):
        record |= {"task": run.task.name}
    if outcome.code == ResumeRefused.exit_code:
        record["reason"] = (
            f"{run.directory} holds a run with other settings; give what you changed another name, "
            f"or choose another `workdir`: {outcome.reason}"
        )
    elif isinstance(run, PretrainRun) and not (outcome.code and is_done(before)):
        record |= _pretrained(run)
    elif isinstance(run, FinetuneRun) and not outcome.code:
        record |= _finetuned(run)
    elif isinstance(run, ProbeRun) and not outcome.code:
        record |= {"findings": json.loads(run.file.read_text(encoding="utf-8"))["findings"]}
    path = workdir / "records" / f"{run.name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, record)
    return record


def finished_siblings(run: PretrainRun) -> list[Path]:
    """Returns the workdirs of the same variant's runs with lower seeds that are done, where they
    are still there and have losses of masked words: this run's should be as theirs.
    """
    found = []
    for seed in range(run.seed):
        name = f"{run.variant}.seed{seed}"
        path = run.directory.parents[1] / "records" / f"{name}.json"
        with contextlib.suppress(FileNotFoundError, ValueError):
            record = json.loads(path.read_text(encoding="utf-8"))
            is_like = record["status"] == DONE and not record.get("warnings")
            directory = run.directory.with_name(name)
            files = [directory / file for file in (log_reader.METRICS, "config.json")]
            if (
                is_like
                and "mlm_loss" in record.get("figures", {})
                and all(file.is_file() for file in files)
            ):
                found.append(directory)
    return found


def _pretrained(run: PretrainRun) -> dict[str, Any]:
    """Returns the figures of a run that has ended, well or not."""
    if not run.directory.is_dir():
        return {}
    rows = log_reader.read_rows(run.directory)
    account = goodput.account(run.directory)
    last, scores = log_reader.closing_rows(rows)
    step = max((row["step"] for row in rows), default=0)
    return {
        "figures": {
            name: value
            for name, value in scores.get(_HELD_OUT, {}).items()
            if isinstance(value, float) and name != "time"
        },
        "step": last.get("step", 0),
        "warnings": [
            text for _, text in log_reader.unexpected(log_reader.read_events(run.directory))
        ],
        "starts": account["starts"],
        "seconds": account["wall_seconds"] - account["seconds"]["down"],
        "training_seconds": account["seconds"]["training"] + account["seconds"]["data_wait"],
        # As far as it came: it may have failed, or a hook have ended it.
        "tokens": tokens_of(run.config, step),
        "flops": flops_of(run.config, step),
        **parameters_of(run.config),
    }


def parameters_of(config: TrainConfig) -> dict[str, int]:
    """Returns how many parameters a model has, and how many of them its blocks have."""
    from bert_jax.model import bert

    params = bert.abstract_params(config.model, config.head)
    encoder = params["encoder"]
    blocks = {name: part for name, part in encoder.items() if name != "embeddings"}
    return {
        "parameters": bert.parameter_count(params),
        "block_parameters": bert.parameter_count(blocks),
    }


def _finetuned(run: FinetuneRun) -> dict[str, Any]:
    summary = json.loads((run.directory / "results.json").read_text(encoding="utf-8"))
    best = summary["best"]["scores"]
    account = goodput.account(run.directory)
    return {
        "metric": summary["metric"],
        "score": best[summary["metric"]]["median"],
        "scores": {name: found["median"] for name, found in best.items()},
        "seconds": account["wall_seconds"] - account["seconds"]["down"],
    }


def curve_of(directory: Path, name: str) -> list[dict[str, float]]:
    """Returns the held-out values of a figure: `step`, `value`, and the `seconds` of training
    until then.
    """
    found, seconds = [], 0.0
    for row in log_reader.read_rows(directory):
        if row.get("split") is None:
            seconds += (row.get("step_seconds") or 0.0) * row.get("steps", 1)
        elif row["split"] == _HELD_OUT and row.get(name) is not None:
            found.append({"step": row["step"], "value": row[name], "seconds": seconds})
    return found
