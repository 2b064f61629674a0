"""The logs of a run: rows and events, rewound on resume, on a full disk."""

import json
import resource

import pytest

from bert_jax.workdir import location, log_reader, metrics_log


def write_rows(path, steps, *, tail: str = "") -> None:
    rows = "".join(json.dumps({"step": step, "loss": 1 / step}) + "\n" for step in steps)
    path.write_text(rows + tail)


def steps_of(path) -> list[int]:
    return [json.loads(line)["step"] for line in path.read_text().splitlines()]


def test_rows_after_a_step_are_set_aside(tmp_path):
    path = tmp_path / "metrics.jsonl"
    write_rows(path, [10, 20, 30, 40])
    original = path.read_text().splitlines()
    kept = log_reader.set_aside_after(tmp_path, 20)
    assert [row["step"] for row in kept] == [10, 20]
    assert path.read_text().splitlines() == original[:2]
    text = (tmp_path / "metrics.aside.jsonl").read_text()
    aside = [json.loads(line) for line in text.splitlines()]
    assert aside == [{"resumed_at": 20, **json.loads(line)} for line in original[2:]]

    # A rewind to the last row changes nothing, and neither does one without rows.
    assert len(log_reader.set_aside_after(tmp_path, 20)) == 2
    assert log_reader.set_aside_after(tmp_path / "none", 0) == []

    # A second rewind adds to what was set aside and loses nothing.
    write_rows(path, [10, 20, 30])
    log_reader.set_aside_after(tmp_path, 10)
    assert steps_of(path) == [10]
    assert steps_of(tmp_path / "metrics.aside.jsonl") == [30, 40, 20, 30]


def test_rows_are_set_aside_after_a_line_that_was_cut(tmp_path):
    """A kill or a full disk in the middle of a rewind; the next one is whole."""
    aside = tmp_path / "metrics.aside.jsonl"
    write_rows(aside, [3], tail='{"resumed_at": 2, "st')
    write_rows(tmp_path / "metrics.jsonl", [2, 3, 4])
    log_reader.set_aside_after(tmp_path, 2)
    assert [row["step"] for row in log_reader.read_lines(aside)] == [3, 3, 4]


def test_skipped_updates_of_abandoned_steps_do_not_count(tmp_path):
    """Skipped at 5 and 6; gone back to 4; trained on to 9 with one skipped, and resumed at 8."""

    def count(*events, at: int) -> int:
        lines = [json.dumps({"event": event, "time": 1, "step": step}) for event, step in events]
        (tmp_path / location.EVENTS).write_text("\n".join(lines) + "\n")
        return len(log_reader.skips(log_reader.read_events(tmp_path), at))

    branch = [("start", 0), ("skip", 5), ("skip", 6), ("stop", 6)]
    assert count(*branch, at=6) == 2 and count(*branch, at=5) == 1
    back = [*branch, ("start", 4), ("skip", 7)]
    assert count(*back, at=4) == 0 and count(*back, at=8) == 1
    # A crash repeats a step: once is enough.
    assert count(*back, ("start", 6), ("skip", 7), at=8) == 1


def test_a_warning_is_reported_once_per_reason():
    def said(*events) -> list[int]:
        named = [{"event": event, "step": step, **more} for event, step, *rest in events
                 for more in (rest or [{}])]  # fmt: skip
        return [step for step, _ in log_reader.unexpected(named)]

    entropy, above = ({"reason": reason, "said": "..."} for reason in ("entropy", "above"))
    killed = [("start", 0), ("unexpected", 315, entropy), ("start", 250)]
    assert said(*killed) == []
    assert said(*killed, ("unexpected", 315, entropy)) == [315]
    later = [*killed, ("unexpected", 315, entropy), ("start", 500), ("unexpected", 600, entropy)]
    assert said(*later) == [315] and said(*later, ("unexpected", 610, above)) == [315, 610]
    assert said(*later, ("rollback", 300)) == []


@pytest.mark.parametrize("cut", [1, 9, 14, -2, -1])
def test_a_half_written_last_line_is_dropped(tmp_path, cut):
    """A kill between two writes leaves the beginning of a row."""
    path = tmp_path / "metrics.jsonl"
    write_rows(path, [1, 2], tail=(json.dumps({"step": 3, "loss": 0.25}))[:cut])
    assert [row["step"] for row in log_reader.read_rows(tmp_path)] == [1, 2]
    assert len(log_reader.set_aside_after(tmp_path, 2)) == 2
    journal = metrics_log.MetricsLogger(tmp_path)
    journal.row(step=3, loss=0.5)
    journal.close()
    assert steps_of(path) == [1, 2, 3]
    assert not (tmp_path / "metrics.aside.jsonl").exists()


def test_a_row_is_on_disk_before_the_next_step(tmp_path):
    """A row that was logged survives a kill: nothing waits in a buffer."""
    journal = metrics_log.MetricsLogger(tmp_path)
    journal.row(step=1, loss=0.1)
    journal.event("save", step=1, seconds=0.5)
    assert steps_of(tmp_path / "metrics.jsonl") == [1]
    event = json.loads((tmp_path / "events.jsonl").read_text())
    assert (event["event"], event["step"], event["seconds"]) == ("save", 1, 0.5)
    journal.close()


def test_rows_that_a_full_disk_rejected_are_written_later(tmp_path):
    """Here a limit on the size of files stands for the disk: the first writes are cut short."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    journal = metrics_log.MetricsLogger(tmp_path)
    journal.open_curves([])
    journal.row(step=1, loss=6.0)
    sizes = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, sizes[1]))
    try:
        for step in range(2, 20):
            journal.row(step=step, loss=6.0 - step)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, sizes)
    files = [
        tmp_path / location.METRICS,
        *(tmp_path / "tensorboard" / tmp_path.name / "train").iterdir(),
    ]
    assert [path.stat().st_size for path in files] == [200, 200]
    journal.row(step=20, loss=0.0)
    journal.close()
    assert [row["step"] for row in log_reader.read_rows(tmp_path)] == list(range(1, 21))
    events = EventAccumulator(str(tmp_path / "tensorboard" / tmp_path.name / "train"))
    events.Reload()
    assert [e.step for e in events.Scalars("loss")] == list(range(1, 21))
