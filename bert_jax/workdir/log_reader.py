"""Reads the logs of a run, and rewinds them to the step that the run resumes from."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bert_jax.errors import DataDamaged
from bert_jax.registry import TASK_KINDS
from bert_jax.workdir import location
from bert_jax.workdir.location import ASIDE, EVENTS, METRICS
from bert_jax.workdir.metrics_log import JsonLines


def read_rows(workdir: Path) -> list[dict[str, Any]]:
    """Returns the rows written so far. Raises DataDamaged for a line that is not a row."""
    rows = read_lines(workdir / METRICS)
    for row in rows:
        if type(row.get("step")) is not int:
            raise DataDamaged(f"{workdir / METRICS}: a row has no step: {json.dumps(row)[:200]}")
    return rows


def read_events(workdir: Path) -> list[dict[str, Any]]:
    """Returns the events written so far, by all processes. Raises the errors of `read_lines`."""
    return read_lines(workdir / EVENTS)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Returns the objects of a JSON lines log, in one file or in parts; empty if it does not exist.

    A line that a kill has truncated is skipped. Raises DataDamaged for any other line that is not
    an object.
    """
    return [found for _, found in _located(path) if found is not None]


def _located(path: Path) -> list[tuple[int, dict[str, Any] | None]]:
    """Returns each line's end, in bytes from the start of the log, and its object; None for a
    truncated line.
    """
    content = b"".join(part.read_bytes() for part in location.log_files(path.parent, path.name))
    found, end = [], 0
    for number, line in enumerate(content.split(b"\n"), 1):
        end += len(line) + 1
        if not line:
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            value = None
        # A process that resumes after a kill starts a new line, so a truncated line may be
        # anywhere.
        if not isinstance(value, dict) and not (line.startswith(b"{") and not line.endswith(b"}")):
            raise DataDamaged(f"{path}, line {number}: damaged; repair or remove the line")
        found.append((min(end, len(content)), value))
    return found


def standing(events: Sequence[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    """Returns the events of a name that belong to the current run.

    Events after the step at which a process started, or to which the run was rolled back, are
    excluded.
    """
    found: list[dict[str, Any]] = []
    for event in events:
        if event.get("event") in ("start", "rollback"):
            last = event.get("step", math.inf)
            found = [each for each in found if each["step"] <= last]
        elif event.get("event") == name:
            found.append(event)
    return found


def skips(events: Sequence[dict[str, Any]], step: float = math.inf) -> list[dict[str, Any]]:
    """Returns the event of each skipped update up to a step."""
    skipped = {skip["step"]: skip for skip in standing(events, "skip")}
    return [skip for s, skip in sorted(skipped.items()) if s <= step]


def best_step(workdir: Path, there: Sequence[int]) -> int | None:
    """Returns the step among `there` that the last `best` event names; None without an event."""
    named = [event["step"] for event in standing(read_events(workdir), "best")]
    return next((step for step in reversed(named) if step in there), None)


def unexpected(events: Sequence[dict[str, Any]]) -> list[tuple[int, str]]:
    """Returns the step and the text of each warning about an unexpected loss, once per reason: a
    process does not know the warnings of earlier processes.
    """
    first: dict[str, dict[str, Any]] = {}
    for event in standing(events, "unexpected"):
        first.setdefault(event.get("reason", ""), event)
    return [(e["step"], f"step {e['step']}: {e.get('said', '')}") for e in first.values()]


def unit_of(task: Mapping[str, Any] | None, score: str) -> str:
    """Returns " %" if a score of a run with this task is a percentage; other scores are fractions.

    Kinds that an extension registers are unknown unless it is loaded.
    """
    kind = str((task or {}).get("kind"))
    if kind not in TASK_KINDS or score.endswith("_threshold"):
        return ""
    return " %" if TASK_KINDS[kind].has_percent_scores else ""


def set_aside_after(workdir: Path, step: int) -> list[dict[str, Any]]:
    """Rewinds `metrics.jsonl` to `step` and returns the remaining rows.

    The rows of later steps move to `metrics.aside.jsonl`; the resumed run writes them again.
    """
    rows, located = read_rows(workdir), _located(workdir / METRICS)
    later = [row for row in rows if row["step"] > step]
    if later:
        aside = JsonLines(workdir / ASIDE)
        lines = (json.dumps({"resumed_at": step, **row}) + "\n" for row in later)
        aside.write("".join(lines).encode())
        aside.close()
    # Steps ascend in the log: each earlier process has rewound it as well.
    kept = max((end for end, row in located if row and row["step"] <= step), default=0)
    if any(end > kept for end, _ in located):
        location.at(workdir).cut(METRICS, kept)
    return [row for row in rows if row["step"] <= step]


def closing_rows(
    rows: list[dict[str, Any]],
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Returns the last training row, and the last row of each held-out split."""
    last = {row.get("split"): row for row in rows}
    return last.pop(None, {}), {split: row for split, row in last.items() if split is not None}
