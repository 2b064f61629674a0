"""Reads the logs of a run back, and rewinds them to the step that it resumes from."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bert_jax.errors import DataDamaged, brief
from bert_jax.files import write_whole
from bert_jax.registry import TASK_KINDS
from bert_jax.workdir.metrics_log import DISCARDED, EVENTS, METRICS, JsonLines

# What a row has beside numbers, and which of these are never null.
_TEXTS, _NEVER_NULL = ("split",), ("step", "steps", "time")
# The events that others are asked about here, and those that are of a step. What a hook of
# somebody's own writes may be anything.
_OF_A_STEP = ("best", "branch", "save", "skip", "unexpected")
_KNOWN = ("start", "rollback", "open", "compile", "evaluate", "saving", *_OF_A_STEP)
# Larger numbers are none that a run has written, and floats cannot hold all of them.
_MOST = 2.0**63


def read_rows(workdir: Path) -> list[dict[str, Any]]:
    """Returns the rows written so far. A line cut short by a kill is left out."""
    return read_lines(workdir / METRICS)


def read_events(workdir: Path) -> list[dict[str, Any]]:
    """Returns the events written so far, over all processes that worked on the run."""
    return read_lines(workdir / EVENTS)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Returns the objects of a file of JSON lines; none where there is no file.

    The last line may have been cut short by a kill, and is left out then. Raises DataDamaged for
    any other line that is no object: a log that is rewritten from what is read must lose nothing.
    """
    # A process that went on after a kill begins a new line, so that a cut one may stand anywhere.
    rows = []
    if path.exists() and not path.is_file():
        raise DataDamaged(f"{path} is no plain file; put the log itself there")
    lines = path.read_bytes().split(b"\n") if path.exists() else []
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            row = json.loads(line)
            _require_record(row)
        except (ValueError, RecursionError) as error:
            if not _is_cut_short(line):
                raise DataDamaged(
                    f"{path}, line {number}: not as it was written ({error}); repair or remove the "
                    "line"
                ) from error
        else:
            rows.append(row)
    return rows


def _require_record(row: Any) -> None:
    """Raises ValueError for what is neither a row of numbers nor an event."""
    if not isinstance(row, dict):
        raise ValueError("it is no object")
    if "event" in row:
        is_known = row["event"] in _KNOWN
        numbers = ("time", "step", "seconds") if is_known else ("time", "step")
        texts = ("event", "reason", "said") if is_known else ("event",)
        needed = ("time", *(("step",) if row["event"] in _OF_A_STEP else ()))
        never_null = numbers if is_known else ("time",)
        if not isinstance(row.get("versions", {}), dict) and row["event"] == "start":
            raise ValueError("its versions are no table")
    else:
        numbers, texts = [name for name in row if name not in _TEXTS], _TEXTS
        never_null, needed = _NEVER_NULL, ()
        if type(row.get("step")) is not int:
            raise ValueError("its step is no whole number")
    for name in needed:
        if name not in row:
            raise ValueError(f"it has no {name}")
    for name in numbers:
        if not _is_number(row.get(name), may_be_null=name not in never_null or name not in row):
            raise ValueError(f"its {brief(name)} is no number")
    for name in texts:
        if not isinstance(row.get(name, ""), str):
            raise ValueError(f"its {brief(name)} is no text")
    # A folder has its name (TensorBoard).
    if {"..", ""} & {*row.get("split", "train").split("/")}:
        raise ValueError("its split is no name")


def _is_number(value: Any, *, may_be_null: bool) -> bool:
    if value is None or not isinstance(value, int | float):
        return value is None and may_be_null
    return not isinstance(value, int) or abs(value) < _MOST


def _is_cut_short(line: bytes) -> bool:
    """Returns whether a line may be the beginning of an object whose writing was interrupted."""
    return line.startswith(b"{") and not line.endswith(b"}")


def standing(events: Sequence[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    """Returns the events of a name that belong to the run as it is.

    What came after the step that a process began at, or that the run went back to, is abandoned.
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
    """Returns the event of each update up to a step that was left out."""
    skipped = {skip["step"]: skip for skip in standing(events, "skip")}
    return [skip for s, skip in sorted(skipped.items()) if s <= step]


def best_step(workdir: Path, there: Sequence[int]) -> int | None:
    """Returns the step of those that are `there` which a `best` event named last; None if none
    did.
    """
    named = [event["step"] for event in standing(read_events(workdir), "best")]
    return next((step for step in reversed(named) if step in there), None)


def unexpected(events: Sequence[dict[str, Any]]) -> list[tuple[int, str]]:
    """Returns the step and the text of each warning of a loss that was not as expected, each reason
    once: a process does not know what one before it has said.
    """
    first: dict[str, dict[str, Any]] = {}
    for event in standing(events, "unexpected"):
        first.setdefault(event.get("reason", ""), event)
    return [(e["step"], f"step {e['step']}: {e.get('said', '')}") for e in first.values()]


def unit_of(task: Mapping[str, Any] | None, score: str) -> str:
    """Returns " %" where a score of a run with this task is percent; the others are shares.

    Of a kind that was registered by a file which is not executed here nothing is known.
    """
    kind = str((task or {}).get("kind"))
    if kind not in TASK_KINDS or score.endswith("_threshold"):
        return ""
    return " %" if TASK_KINDS[kind].has_percent_scores else ""


def set_aside_after(workdir: Path, step: int) -> list[dict[str, Any]]:
    """Rewinds `metrics.jsonl` to `step` and returns what stays.

    Rows of later steps, which the resumed run will write again, move to
    `metrics.aside.jsonl`: nothing is lost and the curve never doubles back.
    """
    rows = read_rows(workdir)
    kept = [row for row in rows if row["step"] <= step]
    discarded = [row for row in rows if row["step"] > step]
    if discarded:
        aside = JsonLines(workdir / DISCARDED)
        lines = (json.dumps({"resumed_at": step, **row}) + "\n" for row in discarded)
        aside.write("".join(lines).encode())
        aside.close()
    write_whole(workdir / METRICS, "".join(json.dumps(row) + "\n" for row in kept))
    return kept


def closing_rows(
    rows: list[dict[str, Any]],
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Returns the last row of training, and the last row of each held-out split."""
    last = {row.get("split"): row for row in rows}
    return last.pop(None, {}), {split: row for split, row in last.items() if split is not None}
