"""Says where a run's wall time went: a goodput account from its own records.

Every part is measured by the process that spent it and written as it went (events.jsonl,
metrics.jsonl); what was interrupted is found afterwards: rows that were trained twice are lost
work, and what no record explains is `unaccounted`.
"""

from pathlib import Path
from typing import Any

from bert_jax.workdir import log_reader, metrics_log

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
    the time between one process's last word and the next one's start. The parts add up to the wall
    time. Goodput is training over wall time.
    """
    events = log_reader.read_events(workdir)
    rows = [row for row in log_reader.read_rows(workdir) if row.get("split") is None]
    lost = [r for r in log_reader.read_lines(workdir / metrics_log.ASIDE) if r.get("split") is None]
    seconds: dict[str, float] = dict.fromkeys(PARTS, 0.0)
    trained, waited = _step_seconds(rows)
    seconds["training"], seconds["data_wait"] = trained - waited, waited
    seconds["lost_work"] = _step_seconds(lost)[0]
    for event in events:
        part = _PART_OF.get(event.get("event", ""))
        if part is not None:
            seconds[part] += event.get("seconds", 0.0)
    wall, alive = _spans(events, rows + lost)
    seconds["down"] = wall - alive
    seconds["unaccounted"] = alive - sum(seconds[p] for p in PARTS if p != "down")

    def count(name: str) -> int:
        return sum(event.get("event") == name for event in events)

    return {
        "step": max((row["step"] for row in rows), default=0),
        "starts": count("start"),
        "wall_seconds": wall,
        "goodput": seconds["training"] / wall if wall else 0.0,
        "seconds": seconds,
        "skipped_updates": len({e["step"] for e in events if e.get("event") == "skip"}),
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


def _spans(events: list[dict[str, Any]], rows: list[dict[str, Any]]) -> tuple[float, float]:
    """Returns seconds from the first start to the last word, and those in which a process was
    alive.
    """
    spoken = sorted(
        [e["time"] for e in events if "time" in e] + [r["time"] for r in rows if "time" in r]
    )
    starts = [e["time"] - e.get("seconds", 0.0) for e in events if e.get("event") == "start"]
    if not starts:
        return 0.0, 0.0
    alive = 0.0
    for start, following in zip(starts, [*starts[1:], float("inf")], strict=True):
        last = max((t for t in spoken if start <= t < following), default=start)
        alive += last - start
    return max(spoken[-1] - starts[0], alive), alive
