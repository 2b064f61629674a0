"""Says where a run's wall time went: a goodput account from its own records.

Every part is measured by the process that spent it and written as it went (events.jsonl,
metrics.jsonl); what was interrupted is found afterwards: rows that were trained twice are lost
work, and what no record explains is `unaccounted`.
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

    `training` is time in steps that count, `data_wait` the part of them spent waiting for the
    loader; `saving` is what a save held the loop up, not what it took in the background; `down` is
    the time between one process's last word and the next one's start, unless the run was finished:
    then nothing waited for it, and it is no part of the wall time. The parts add up to the wall
    time. Goodput is training over wall time.
    """
    events = log_reader.read_events(workdir)
    rows = [row for row in log_reader.read_rows(workdir) if row.get("split") is None]
    # The time of a branch begins where it does: the rows before are of the run that it is of.
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
    if alive:  # without events nobody knows
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
    """Returns seconds in steps, and of these seconds waiting for data, over the rows' steps."""
    trained = waited = 0.0
    for row in rows:
        steps = row.get("steps", 1)
        trained += steps * (row.get("step_seconds") or 0.0)
        waited += steps * (row.get("data_wait_seconds") or 0.0)
    return trained, waited


def processes(workdir: Path) -> list[dict[str, Any]]:
    """Returns each process that worked on the run, in their order.

    `began` and `ended` are seconds since the first of them began; `from_step` and `to_step` are the
    steps that it began at and came to; `end` says how it ended: "finished", "preempted", "stopped"
    with a `reason`, or "no last word", as after a kill. Of a run that goes on it is "no last word",
    too. `devices`, `device_kind`, `processes` and `versions` are those that it logged, and `parts`
    its events that took time: `[part, from, to]`, lost work last.
    """
    events = log_reader.read_events(workdir)
    rows = [row for row in log_reader.read_rows(workdir) if row.get("split") is None]
    lost = [r for r in log_reader.read_lines(workdir / location.ASIDE) if r.get("split") is None]
    starts = [event for event in events if event.get("event") == "start"]
    lives = _lives(events, rows + lost)
    found = []
    for number, (start, (began, ended)) in enumerate(zip(starts, lives, strict=True)):
        # Its rows and events: those until the next process tells of its start.
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
    """Returns when each process began, and its last word, in seconds since 1970."""
    spoken = [e["time"] for e in events if "time" in e] + [r["time"] for r in rows if "time" in r]
    starts = [e["time"] - e.get("seconds", 0.0) for e in events if e.get("event") == "start"]
    return [
        (start, max((t for t in spoken if start <= t < following), default=start))
        for start, following in itertools.pairwise([*starts, float("inf")])
    ]


def _spans(events: list[dict[str, Any]], rows: list[dict[str, Any]]) -> tuple[float, float]:
    """Returns seconds from the first start to the last word, and those in which a process was
    alive.
    """
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
