"""Accounts for a run's wall time (goodput), from its own records.

Every part is measured by the process that spent it and recorded as it happened (events.jsonl,
metrics.jsonl). Interruptions are derived afterwards: steps that were trained twice are lost work,
and time without a record is `unaccounted`.
"""

import itertools
import math
from pathlib import Path
from typing import Any

from bert_jax.workdir import location, log_reader

PARTS = (
    "training",
    "data_wait",
    "compile",
    "evaluation",
    "saving",
    "starting",
    "lost_work",
    "unaccounted",
    "down",
)


def account(workdir: Path) -> dict[str, Any]:
    """Returns `{"wall_seconds", "goodput", "seconds": {part: ...}, "step", "starts", ...}`.

    `training` is time in steps that count, without `data_wait`, the time in steps spent waiting for
    the data loader; `saving` is the time that saves blocked the loop, without background writes;
    `down` is the time between the last record of one process and the start of the next, except
    after a finished run, which does not count as wall time. The parts sum to the wall time. Goodput
    is training over wall time.
    """
    events = log_reader.read_events(workdir)
    rows = [row for row in log_reader.read_rows(workdir) if row.get("split") is None]
    # The time of a branch starts at the branch: earlier rows belong to the original run.
    begun = max((e["step"] for e in events if e.get("event") == "branch"), default=0)
    own = [row for row in rows if row["step"] > begun]
    lost = [r for r in log_reader.read_lines(workdir / location.ASIDE) if r.get("split") is None]
    seconds: dict[str, float] = dict.fromkeys(PARTS, 0.0)
    trained, waited = _step_seconds(own)
    seconds["training"], seconds["data_wait"] = trained - waited, waited
    seconds["lost_work"] = _step_seconds(lost)[0]
    for event in events:
        part = _PART_OF.get(event.get("event", ""))
        if part is not None:
            seconds[part] += event.get("seconds", 0.0)
    lives = processes(workdir)
    alive = sum(each["ended"] - each["began"] for each in lives)
    seconds["down"] = sum(
        max(following["began"] - each["ended"], 0.0)
        for each, following in itertools.pairwise(lives)
        if each["end"] != "finished"
    )
    wall = alive + seconds["down"]
    if alive:  # unknown without events
        seconds["unaccounted"] = alive - sum(seconds[p] for p in PARTS if p != "down")

    def count(name: str) -> int:
        return sum(event.get("event") == name for event in events)

    return {
        "step": max((row["step"] for row in rows), default=0),
        "starts": count("start"),
        "wall_seconds": wall,
        "goodput": seconds["training"] / wall if wall else 0.0,
        "seconds": seconds,
        "skipped_updates": len(log_reader.skips(events)),
        "failed_saves": count("save_failed"),
        "preemptions": count("preempt"),
    }


_PART_OF = {
    "start": "starting",
    "open": "starting",
    "compile": "compile",
    "evaluate": "evaluation",
    "saving": "saving",
}


def _step_seconds(rows: list[dict[str, Any]]) -> tuple[float, float]:
    """Returns the seconds in steps, and the part of them spent waiting for data, over the rows'
    steps.
    """
    trained = waited = 0.0
    for row in rows:
        steps = row.get("steps", 1)
        trained += steps * (row.get("step_seconds") or 0.0)
        waited += steps * (row.get("data_wait_seconds") or 0.0)
    return trained, waited


def processes(workdir: Path) -> list[dict[str, Any]]:
    """Returns each process that worked on the run, in order.

    `began` and `ended` are seconds since the start of the first process; `from_step` and `to_step`
    are the first and last step; `end` is "finished", "preempted", "stopped" with a `reason`, or "no
    last word" after a kill or while the run continues. `devices`, `device_kind`, `processes` and
    `versions` are as logged, and `parts` are its timed events: `[part, from, to]`, lost work last.
    """
    events = log_reader.read_events(workdir)
    rows = [row for row in log_reader.read_rows(workdir) if row.get("split") is None]
    lost = [r for r in log_reader.read_lines(workdir / location.ASIDE) if r.get("split") is None]
    starts = [event for event in events if event.get("event") == "start"]
    zero = starts[0]["time"] - starts[0].get("seconds", 0.0) if starts else 0.0
    found = []
    for start, following in itertools.zip_longest(starts, starts[1:]):
        # Its rows and events: those before the start of the next process.
        times = start["time"], following["time"] if following else math.inf
        own, trained, thrown = (
            [line for line in lines if times[0] <= line.get("time", 0.0) < times[1]]
            for lines in (events, rows, lost)
        )
        steps = [line["step"] for line in own + trained + thrown if line.get("step") is not None]
        last = next((e for e in reversed(own) if e.get("event") in _LAST), {})
        end = "stopped" if "reason" in last else _LAST.get(last.get("event", ""), "no last word")
        spans = [
            [part, event["time"] - event["seconds"] - zero, event["time"] - zero]
            for event in own
            if (part := _PART_OF.get(event.get("event", ""))) and event.get("seconds")
        ]
        if thrown:
            first = thrown[0]["time"] - _step_seconds(thrown[:1])[0]
            spans.append(["lost_work", first - zero, thrown[-1]["time"] - zero])
        facts = {key: start.get(key) for key in ("devices", "device_kind", "processes", "versions")}
        found.append(
            {
                "began": times[0] - start.get("seconds", 0.0) - zero,
                # None, not even its start, if the clock of the next process is behind.
                "ended": max((line["time"] for line in own + trained + thrown), default=times[0])
                - zero,
                "from_step": start.get("step", 0),
                "to_step": max(steps, default=start.get("step", 0)),
                "end": end,
                "reason": last.get("reason"),
                **facts,
                "parts": spans,
            }
        )
    return found


_LAST = {"stop": "finished", "preempt": "preempted"}
