"""Accounts for a run's wall time (goodput), from its own records.

Every part is measured by the process that spent it and recorded as it happened (events.jsonl,
metrics.jsonl). Interruptions are derived afterwards: steps that were trained twice are lost work,
and time without a record is `unaccounted`.
"""

import itertools
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
    wall, alive = _spans(events, own + lost)
    seconds["down"] = wall - alive
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
    lives = _lives(events, rows + lost)
    found = []
    for number, (start, (began, ended)) in enumerate(zip(starts, lives, strict=True)):
        # Its rows and events: those before the start of the next process.
        after = starts[number + 1]["time"] if number + 1 < len(starts) else float("inf")
        own = [e for e in events if start["time"] <= e.get("time", 0.0) < after]
        steps = [r["step"] for r in rows + lost if start["time"] <= r.get("time", 0.0) < after]
        last = next((e for e in reversed(own) if e.get("event") in _LAST), {})
        end = _LAST.get(last.get("event", ""), "no last word")
        begun = start.get("step", 0)
        of_it = {
            "began": began - lives[0][0],
            "ended": ended - lives[0][0],
            "from_step": begun,
            "to_step": max([begun, *steps, *(e["step"] for e in own if e.get("step") is not None)]),
            "end": "stopped" if "reason" in last else end,
            "reason": last.get("reason"),
        }
        facts = {key: start.get(key) for key in ("devices", "device_kind", "processes", "versions")}
        spans = [
            [part, event["time"] - event["seconds"] - lives[0][0], event["time"] - lives[0][0]]
            for event in own
            if (part := _PART_OF.get(event.get("event", ""))) and event.get("seconds")
        ]
        thrown = [r for r in lost if "time" in r and start["time"] <= r["time"] < after]
        if thrown:
            first = thrown[0]["time"] - _step_seconds(thrown[:1])[0]
            spans.append(["lost_work", first - lives[0][0], thrown[-1]["time"] - lives[0][0]])
        found.append({**of_it, **facts, "parts": spans})
    return found


_LAST = {"stop": "finished", "preempt": "preempted"}


def _lives(events: list[dict[str, Any]], rows: list[dict[str, Any]]) -> list[tuple[float, float]]:
    """Returns the start and the last record of each process, in seconds since 1970."""
    spoken = [e["time"] for e in events if "time" in e] + [r["time"] for r in rows if "time" in r]
    starts = [e["time"] - e.get("seconds", 0.0) for e in events if e.get("event") == "start"]
    return [
        (start, max((t for t in spoken if start <= t < following), default=start))
        for start, following in itertools.pairwise([*starts, float("inf")])
    ]


def _spans(events: list[dict[str, Any]], rows: list[dict[str, Any]]) -> tuple[float, float]:
    """Returns the seconds from the first start to the last record, and those of live processes."""
    lives = _lives(events, rows)
    if not lives:
        return 0.0, 0.0
    alive = sum(ended - began for began, ended in lives)
    finished = [e["time"] for e in events if e.get("event") == "stop" and "reason" not in e]
    idle = sum(
        max(begins - ended, 0.0)
        for (began, ended), (begins, _) in itertools.pairwise(lives)
        if any(began <= time <= ended for time in finished)
    )
    return max(lives[-1][1] - lives[0][0] - idle, alive), alive
