"""The records of a run as plain values: a report prints them as JSON, and its page shows them."""

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax import config_loader
from bert_jax.config.conversion import flat_values
from bert_jax.workdir import log_reader, run_directory
from bert_jax_lab.reference_curves import hook
from bert_jax_lab.reports import goodput

# The first of these losses that a run has is its main loss.
_LOSSES = ("mlm_loss", "loss")
# Events that explain the curves of a run, and the largest number of them: the last ones.
_SHOWN_EVENTS = (
    "resume", "change", "rollback", "preempt", "save_failed", "unexpected", "stop",
)  # fmt: skip
_MOST_EVENTS = 200
# The largest number of training rows: a screen has fewer pixels.
MOST_ROWS = 2000
# Parts of a process with a smaller share of the wall time are too narrow to see.
_NARROWEST = 1 / 500
# Computed from other fields of a row; a curve may be drawn over each of the three.
STEP, POSITIONS, SECONDS = "step", "positions_seen", "training_seconds"
# The paths of a corpus, and the corpora of a mixture.
_PLACES = ("directory", "absolute", run_directory.SOURCES)
_NOT_DRAWN = ("split", "resumed_at")
_RATES = (
    "tokens_per_second", "real_tokens_per_second", "examples_per_second", "step_seconds", "mfu",
)  # fmt: skip


def read(directory: Path, *, name: str) -> dict[str, Any]:
    """Returns all data of a report about the run in a workdir: JSON types, every number finite or
    None.

    The first entries come from `goodput.account`. `training` and `held_out[split]` are columns of
    equal length, by the names of the fields in metrics.jsonl, with `positions_seen` and
    `training_seconds` since the first step of the run. If there are more than 2,000 training rows,
    each stretch keeps the two rows with the lowest and the highest loss; `training_rows` is the
    original number of rows. `examples`, held-out sentences with a masked word, are empty.
    """
    rows, events = log_reader.read_rows(directory), log_reader.read_events(directory)
    stored, account = run_directory.stored(directory), goodput.account(directory)
    config = stored.get("config") or {}
    corpus, task = stored.get("corpus") or {}, stored.get("task") or {}
    training = [row for row in rows if row.get("split") is None]
    splits = dict.fromkeys(row["split"] for row in rows if row.get("split") is not None)
    last_row, scores = log_reader.closing_rows(rows)
    result = run_directory.result_of(directory)
    loss = next((n for n in _LOSSES if any(row.get(n) is not None for row in rows)), None)
    expected_from, expected = _expected(directory, stored)
    columns = RunColumns(config, training)
    values = {
        **account,
        "name": name,
        "kind": f"fine-tuning: {task.get('name')}" if task else "pre-training",
        "steps_planned": sum(phase["steps"] for phase in config.get("phases") or ()),
        "unigram_entropy_nats": run_directory.entropy_of(stored, rows),
        # Whether a model of a task predicts the same class for all rows, at the current step.
        "diverged": bool(result.get("diverged")) and result.get("steps") == account["step"],
        "loss": loss,
        "last": {"training": last_row, "held_out": scores},
        "median": {
            rate: statistics.median(found)
            for rate in _RATES
            if (found := [row[rate] for row in training if row.get(rate) is not None])
        },
        "seen": _seen(stored, account["step"], last_row),
        "skipped_steps": [skip["step"] for skip in log_reader.skips(events)],
        "unexpected": log_reader.unexpected(events),
        "training_rows": len(training),
        "training": columns(thin(training, loss=loss or "loss", most=MOST_ROWS)),
        "held_out": {
            split: columns([row for row in rows if row.get("split") == split]) for split in splits
        },
        "expected": expected,
        "expected_from": expected_from or None,
        "examples": [],
        "processes": [_visible(each, account) for each in goodput.processes(directory)],
        "events": _events(events),
        "versions": stored.get("versions") or {},
        # Readers of the page do not need the paths of the machine.
        "corpus": {k: v for k, v in corpus.items() if k not in _PLACES},
        "task": task.get("name"),
        "init_from": Path(stored["init_from"]).name if stored.get("init_from") else None,
        "config": dict(flat_values(config)),
    }
    return _plain(values)


def _expected(
    directory: Path, stored: dict[str, Any]
) -> tuple[str, list[tuple[int, float, float]]]:
    """Returns the runs with which a run of pre-training is compared, and the expected losses."""
    entropy = (stored.get("corpus") or {}).get("unigram_entropy_nats")
    if entropy is None or stored.get("task") or run_directory.is_continued(directory):
        return "", []
    config = config_loader.load_config_json(directory / run_directory.CONFIG)
    return hook.expected(config, entropy)


def differences(runs: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[Any]]]:
    """Returns the fields in which the configs of runs differ, each with its value in every run;
    None if a run does not have the field.
    """
    configs = [run["config"] for run in runs]
    fields = dict.fromkeys(itertools.chain.from_iterable(configs))
    found = [(field, [config.get(field) for config in configs]) for field in fields]
    return [(field, values) for field, values in found if any(v != values[0] for v in values)]


def thin(rows: Sequence[dict[str, Any]], *, loss: str, most: int) -> list[dict[str, Any]]:
    """Returns at most `most` rows and the last row: of each stretch the rows with extreme values of
    the field `loss`, so that a curve keeps its outline.
    """
    if len(rows) <= most:
        return list(rows)
    kept = []
    bounds = [round(i * len(rows) / (most // 2)) for i in range(most // 2 + 1)]
    for start, stop in itertools.pairwise(bounds):
        # A missing loss was not finite: its row is kept as the highest.
        values = [math.inf if v is None else v for v in (r.get(loss) for r in rows[start:stop])]
        extremes = {values.index(min(values)), values.index(max(values))}
        kept += [rows[start + i] for i in sorted(extremes)]
    return kept if kept[-1] is rows[-1] else [*kept, rows[-1]]


class RunColumns:
    """Rows as columns, with the positions and the seconds of training up to each step."""

    def __init__(self, config: Mapping[str, Any], training: Sequence[Mapping[str, Any]]):
        phases = config.get("phases") or ()
        steps = [phase["steps"] for phase in phases]
        sizes = [phase["sequence_length"] * phase["global_batch_size"] for phase in phases]
        self._ends = np.cumsum([0, *steps])
        self._positions = np.cumsum([0, *(n * size for n, size in zip(steps, sizes, strict=True))])
        spent = [row.get("steps", 1) * (row.get("step_seconds") or 0.0) for row in training]
        self._logged = [0, *(row["step"] for row in training)]
        self._seconds = np.cumsum([0.0, *spent])

    def positions(self, steps: Sequence[int]) -> list[int]:
        """Returns the positions of the batches up to each step, with padding."""
        return np.rint(np.interp(steps, self._ends, self._positions)).astype(int).tolist()

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
        names = dict.fromkeys(name for row in rows for name in row if name not in _NOT_DRAWN)
        steps: list[int] = [row[STEP] for row in rows]
        return {
            STEP: steps,
            **{name: [row.get(name) for row in rows] for name in names if name != STEP},
            POSITIONS: self.positions(steps),
            SECONDS: np.interp(steps, self._logged, self._seconds).tolist(),
        }


def _seen(stored: Mapping[str, Any], step: int, last_row: Mapping[str, Any]) -> dict[str, Any]:
    """Returns how much text the run has seen: examples of a task, or the logged words."""
    rows = (stored.get("rows") or {}).get("train")
    if not rows:
        return {name: last_row.get(name) for name in ("words", "epochs")}
    (phase,) = (stored.get("config") or {}).get("phases") or [{}]
    examples = step * phase.get("global_batch_size", 0)
    return {"examples": examples, "task_rows": rows, "epochs": examples / rows}


def _events(events: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns the events of a run in order: `{"event", "after", "step", "text"}`.

    `after` is in seconds since the first process began.
    """
    start = next((event for event in events if event.get("event") == "start"), None)
    began = None if start is None else start["time"] - start.get("seconds", 0.0)
    found = []
    for event in events:
        if event.get("event") not in _SHOWN_EVENTS:
            continue
        facts = [
            f"{name.replace('_', ' ')} {format(value, '.3g') if type(value) is float else value}"
            for name, value in event.items()
            if name not in ("event", "time", "step", "seconds", "fields")
        ]
        facts += [f"{field}: {old} to {new}" for field, old, new in event.get("fields", ())]
        after = None if began is None or "time" not in event else event["time"] - began
        found.append({"event": event["event"], "after": after, "step": event.get("step")})
        found[-1]["text"] = "; ".join(facts)
    return found[-_MOST_EVENTS:]


def _visible(process: dict[str, Any], account: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a process without the parts that are too narrow to see."""
    least = account["wall_seconds"] * _NARROWEST
    return {**process, "parts": [part for part in process["parts"] if part[2] - part[1] >= least]}


def _plain(value: Any) -> Any:
    """Returns a value with None for each number that is not finite."""
    if isinstance(value, Mapping):
        return {str(key): _plain(child) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(child) for child in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
