"""The numbers of a run as plain values: a report prints them as JSON, and its page shows them."""

import dataclasses
import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bert_jax.config import flatten
from bert_jax.workdir import log_reader, run_directory
from bert_jax_lab.reports.curves import RunRecord

# Events that say why a run is as it is, and the most of them that are kept: the last ones.
_SHOWN_EVENTS = (
    "resume", "change", "rollback", "preempt", "save_failed", "unexpected", "stop",
)  # fmt: skip
_MOST_EVENTS = 200
# The most rows of training that are kept: a screen has fewer pixels.
MOST_ROWS = 2000
# Of events that took time, those below this share of the run are too narrow to be seen.
_NARROWEST = 1 / 500
_MOST_PARTS = 400
# What is computed from other fields of a row, and on which axis a curve may stand.
STEP, POSITIONS, SECONDS = "step", "positions_seen", "training_seconds"
# Where a corpus lay, and the corpora of a mixture.
_PLACES = ("directory", "absolute", run_directory.SOURCES)
_NOT_DRAWN = ("split", "resumed_at")
_NO_SCORE = (STEP, "time", *_NOT_DRAWN)
_FILES = (
    "config.json",
    "metrics.jsonl",
    "metrics.aside.jsonl",
    "events.jsonl",
    "result.json",
    "results.md",
    "checkpoints",
    "tensorboard",
    "profile",
    "set_aside",
)


def run_data(run: RunRecord, *, examples: Sequence[Any] = ()) -> dict[str, Any]:
    """Returns all that a report says of a run: JSON's own types, every number finite or None.

    `examples` are held-out sentences with a hidden word (probes/hidden_words.py). The first entries
    are those of `goodput.account`. `training` and `held_out[split]` are columns of equal length, by
    the names of the fields in metrics.jsonl, with `positions_seen` and `training_seconds`, both
    since the run's first step. Where there are more than 2,000 rows of training, of each stretch
    the two with the lowest and the highest loss stay; `training_rows` says how many there were.
    """
    config = run.stored.get("config") or {}
    training = [row for row in run.rows if row.get("split") is None]
    passed = _Passed(config, training)
    kept = thin(training, loss=run.curve(held_out=False)[0], most=MOST_ROWS)
    splits = dict.fromkeys(row["split"] for row in run.rows if row.get("split") is not None)
    last_row, scores = log_reader.closing_rows(run.rows)
    corpus, task = run.stored.get("corpus") or {}, run.stored.get("task") or {}
    scored = dict.fromkeys(name for row in scores.values() for name in row)
    result = run_directory.result_of(run.directory)
    if result.get("steps") != run.account["step"]:  # the run went back since
        result = {}
    began = run.stored.get("init_from")
    values = {
        **run.account,
        "name": run.name,
        "kind": f"fine-tuning: {task.get('name')}" if task else "pre-training",
        "steps_planned": sum(phase["steps"] for phase in config.get("phases") or ()),
        "unigram_entropy_nats": run.entropy,
        # Of a task, the scores that are percent, where others are shares.
        "percent": [n for n in scored if n not in _NO_SCORE and log_reader.unit_of(task, n)],
        # Whether a task's model is no better than one answer for all rows.
        "diverged": bool(result.get("diverged")),
        "loss": run.curve(held_out=False)[0] or run.curve(held_out=True)[0] or None,
        "last": {"training": last_row, "held_out": scores},
        "median": {
            name: statistics.median(found)
            for name in ("tokens_per_second", "real_tokens_per_second", "examples_per_second",
                         "step_seconds", "mfu")
            if (found := [row[name] for row in training if row.get(name) is not None])
        },
        "seen": _seen(run, passed, training),
        "skipped_steps": [skip["step"] for skip in log_reader.skips(run.events)],
        "unexpected": log_reader.unexpected(run.events),
        "training_rows": len(training),
        "training": passed.columns(kept),
        "held_out": {
            split: passed.columns([row for row in run.rows if row.get("split") == split])
            for split in splits
        },
        "expected": [list(point) for point in run.expected],
        "expected_from": run.expected_from or None,
        "examples": [dataclasses.asdict(example) for example in examples],
        "processes": [_visible(process, run.account) for process in run.processes],
        "events": _events(run),
        "versions": run.stored.get("versions") or {},
        # Where it lay, and what the run began from, is nobody's business who gets the page.
        "corpus": {k: v for k, v in corpus.items() if k not in _PLACES},
        "task": task.get("name"),
        "init_from": Path(began).name if began else None,
        "config": flatten(config),
        "files": [name for name in _FILES if (run.directory / name).exists()],
    }  # fmt: skip
    return _plain(values)


def differences(runs: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[Any]]]:
    """Returns the fields in which the configs of runs differ, each with its value in every run.

    `runs` are values of `run_data`. None stands for a field that a run does not have.
    """
    configs = [run["config"] for run in runs]
    fields = dict.fromkeys(itertools.chain.from_iterable(configs))
    found = [(field, [config.get(field) for config in configs]) for field in fields]
    return [(field, values) for field, values in found if any(v != values[0] for v in values)]


def thin(rows: Sequence[dict[str, Any]], *, loss: str, most: int) -> list[dict[str, Any]]:
    """Returns at most `most` rows and the last: of each stretch those with extreme losses.

    So a curve keeps its outline. `loss` is the field that decides.
    """
    if len(rows) <= most:
        return list(rows)
    kept = []
    bounds = [round(i * len(rows) / (most // 2)) for i in range(most // 2 + 1)]
    for start, stop in itertools.pairwise(bounds):
        # A loss that is missing was not finite: such a row is kept as the highest.
        values = [math.inf if v is None else v for v in (r.get(loss) for r in rows[start:stop])]
        extremes = {values.index(min(values)), values.index(max(values))}
        kept += [rows[start + i] for i in sorted(extremes)]
    return kept if kept[-1] is rows[-1] else [*kept, rows[-1]]


class _Passed:
    """The positions of all batches, and the seconds of training, that had passed at a step."""

    def __init__(self, config: Mapping[str, Any], training: Sequence[Mapping[str, Any]]):
        self._phases = [
            (phase["steps"], phase["sequence_length"] * phase["global_batch_size"])
            for phase in config.get("phases") or ()
        ]
        self._steps, self._seconds = [0], [0.0]
        for row in training:
            spent = row.get("steps", 1) * (row.get("step_seconds") or 0.0)
            self._steps.append(row["step"])
            self._seconds.append(self._seconds[-1] + spent)

    def positions(self, step: int) -> int:
        """Returns the positions of the batches up to a step, padding included."""
        passed = 0
        for steps, positions in self._phases:
            passed += min(step, steps) * positions
            step = max(0, step - steps)
        return passed

    def seconds(self, steps: Sequence[int]) -> list[float]:
        """Returns the seconds of training up to each step; between two rows in proportion."""
        import numpy as np

        return np.interp(steps, self._steps, self._seconds).tolist()

    def columns(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
        """Returns rows as columns, and what had passed at each of them."""
        names = dict.fromkeys(name for row in rows for name in row if name not in _NOT_DRAWN)
        steps: list[int] = [row[STEP] for row in rows]
        return {
            STEP: steps,
            **{name: [row.get(name) for row in rows] for name in names if name != STEP},
            POSITIONS: [self.positions(step) for step in steps],
            SECONDS: self.seconds(steps),
        }


def _seen(run: RunRecord, passed: _Passed, training: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns how much text the run has seen, as far as its records tell."""
    step = run.account["step"]
    positions = passed.positions(step)
    seen: dict[str, Any] = {"positions": positions, "tokens": None, "epochs": None}
    # Only packed rows tell how much of them is padding.
    shares = [row.get("padding") for row in training]
    if training and None not in shares:
        weights = [row.get("steps", 1) for row in training]
        padding = sum(w * s for w, s in zip(weights, shares, strict=True)) / sum(weights)
        seen["tokens"] = round(positions * (1 - padding))
    there = ((run.stored.get("corpus") or {}).get("train") or {}).get("tokens")
    rows = (run.stored.get("rows") or {}).get("train")
    if there:
        seen["corpus_tokens"] = there
        seen["epochs"] = (seen["tokens"] or positions) / there
    elif rows:
        (phase,) = (run.stored.get("config") or {}).get("phases") or [{}]
        seen["examples"] = step * phase.get("global_batch_size", 0)
        seen["task_rows"] = rows
        seen["epochs"] = seen["examples"] / rows
    return seen


def _events(run: RunRecord) -> list[dict[str, Any]]:
    """Returns what happened to a run, in its order: `{"event", "after", "step", "text"}`.

    `after` is in seconds since its first process began.
    """
    starts = [event for event in run.events if event.get("event") == "start"]
    began = starts[0]["time"] - starts[0].get("seconds", 0.0) if starts else None
    found = []
    for event in run.events:
        if event.get("event") not in _SHOWN_EVENTS:
            continue
        facts = [
            f"{name.replace('_', ' ')} {value:.3g}" if isinstance(value, float)
            else f"{name.replace('_', ' ')} {value}"
            for name, value in event.items()
            if name not in ("event", "time", "step", "seconds", "fields")
        ]  # fmt: skip
        facts += [f"{field}: {old} to {new}" for field, old, new in event.get("fields", ())]
        after = None if began is None or "time" not in event else event["time"] - began
        found.append(
            {
                "event": event["event"],
                "after": after,
                "step": event.get("step"),
                "text": "; ".join(facts),
            }
        )
    return found[-_MOST_EVENTS:]


def _visible(process: dict[str, Any], account: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a process with those of its parts that can be seen: the longest ones, in order."""
    least = account["wall_seconds"] * _NARROWEST
    parts = [part for part in process["parts"] if part[2] - part[1] >= least]
    parts = sorted(sorted(parts, key=lambda p: p[1] - p[2])[:_MOST_PARTS], key=lambda p: p[1])
    return {**process, "parts": parts}


def _plain(value: Any) -> Any:
    """Returns a value with None for each number that is not finite."""
    if isinstance(value, Mapping):
        return {str(key): _plain(child) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(child) for child in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
