"""Every part of the time is read from its own record, and all together are the wall time."""

import json

import pytest

from bert_jax.__main__ import main
from bert_jax_lab.reports import goodput


def write(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture
def interrupted(tmp_path):
    """Two processes: one is killed after its last word, the next goes on from step 20."""

    def row(step, time, **more):
        return {"step": step, "steps": 10, "time": time, "step_seconds": 1.0, **more}

    (tmp_path / "config.json").write_text("{}")
    write(
        tmp_path / "events.jsonl",
        [
            {"event": "start", "time": 108.0, "step": 0, "seconds": 8.0},
            {"event": "compile", "time": 118.0, "phase": 0, "seconds": 10.0},
            {"event": "evaluate", "time": 141.0, "step": 20, "seconds": 2.0},
            {"event": "saving", "time": 142.0, "step": 20, "seconds": 1.0},
            {"event": "save", "time": 144.0, "step": 20, "seconds": 3.0},
            {"event": "save_failed", "time": 146.0, "in_a_row": 1, "message": "full"},
            {"event": "start", "time": 210.0, "step": 20, "seconds": 10.0},
            {"event": "resume", "time": 210.0, "step": 20, "seconds": 2.0},
            {"event": "skip", "time": 215.0, "step": 25, "loss": "nan", "grad_norm": "nan"},
            {"event": "stop", "time": 222.0, "step": 30, "seconds": 22.0},
        ],
    )
    rows = [row(10, 128.0, data_wait_seconds=0.1), row(20, 138.0), row(30, 220.0)]
    write(tmp_path / "metrics.jsonl", [*rows, {"step": 20, "split": "validation"}])
    write(tmp_path / "metrics.aside.jsonl", [row(30, 152.0) | {"resumed_at": 20}])
    return tmp_path


def test_a_process_may_start_on_a_machine_with_an_earlier_clock(tmp_path):
    starts = [{"event": "start", "time": time, "step": 7, "seconds": 1.0} for time in (50.0, 40.0)]
    write(tmp_path / "events.jsonl", starts)
    write(tmp_path / "metrics.jsonl", [])
    first, second = goodput.processes(tmp_path)
    assert first["ended"] == 1.0 and first["to_step"] == second["to_step"] == 7


def test_the_parts_add_up(interrupted):
    account = goodput.account(interrupted)
    seconds = account["seconds"]
    assert account["wall_seconds"] == pytest.approx(122.0)
    assert sum(seconds.values()) == pytest.approx(122.0)
    assert seconds["training"] == pytest.approx(29.0)
    assert seconds["data_wait"] == pytest.approx(1.0)
    assert seconds["lost_work"] == pytest.approx(10.0)
    assert (seconds["compile"], seconds["evaluation"], seconds["saving"]) == (10.0, 2.0, 1.0)
    assert seconds["starting"] == 18.0
    # From the first process's last word (152) to the second one's beginning (200).
    assert seconds["down"] == pytest.approx(48.0)
    assert account["goodput"] == pytest.approx(29 / 122)
    assert (account["starts"], account["step"], account["skipped_updates"]) == (2, 30, 1)
    assert (account["failed_saves"], account["preemptions"]) == (1, 0)


def test_a_finished_run_is_not_down(interrupted):
    """The same command given again, an hour after the run's end, only tells its figures."""
    before = goodput.account(interrupted)
    with (interrupted / "events.jsonl").open("a") as events:
        for event in (
            {"event": "start", "time": 3830.0, "step": 30, "seconds": 8.0},
            {"event": "stop", "time": 3831.0, "step": 30, "seconds": 9.0},
        ):
            events.write(json.dumps(event) + "\n")
    after = goodput.account(interrupted)
    assert after["seconds"]["down"] == before["seconds"]["down"] == pytest.approx(48.0)
    assert after["wall_seconds"] == pytest.approx(before["wall_seconds"] + 9.0)


def test_report(interrupted, tmp_path, capsys):
    assert main(["report", str(interrupted)]) == 0
    # The table's title is wrapped where the workdir's name is long.
    said = " ".join(capsys.readouterr().out.split())
    assert "2 starts, step 30" in said and "lost work" in said and "skipped updates: 1" in said
    assert main(["report", str(interrupted), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    account = goodput.account(interrupted)
    assert {name: said[name] for name in account} == account
    assert main(["report", str(tmp_path / "none")]) == 2


def test_of_a_real_run(trained):
    account = goodput.account(trained)
    assert account["step"] == 200 and account["starts"] == 1
    assert sum(account["seconds"].values()) == pytest.approx(account["wall_seconds"])
    assert account["seconds"]["training"] > 0 and account["seconds"]["lost_work"] == 0
    # What no record explains is small.
    assert abs(account["seconds"]["unaccounted"]) < 0.2 * account["wall_seconds"]


def test_processes_say_how_they_ended(interrupted):
    """Seconds are counted from the first one's beginning, at 100."""
    first, second = goodput.processes(interrupted)
    assert (first["began"], first["ended"]) == (0.0, pytest.approx(52.0))
    assert (first["from_step"], first["to_step"], first["end"]) == (0, 30, "no last word")
    assert (second["began"], second["ended"]) == (pytest.approx(100.0), pytest.approx(122.0))
    assert (second["from_step"], second["to_step"], second["end"]) == (20, 30, "finished")
    parts = {part: end - begin for part, begin, end in first["parts"]}
    assert parts == {
        "starting": 8.0, "compile": 10.0, "evaluation": 2.0, "saving": 1.0, "lost_work": 10.0
    }  # fmt: skip
    with (interrupted / "events.jsonl").open("a") as events:
        events.write('{"event": "start", "time": 300.0, "step": 30, "seconds": 5.0}\n')
        events.write('{"event": "stop", "time": 310.0, "step": 35, "reason": "diverged"}\n')
        events.write('{"event": "start", "time": 400.0, "step": 30, "seconds": 5.0}\n')
        events.write('{"event": "preempt", "time": 410.0, "step": 40}\n')
    ends = [(p["end"], p["reason"], p["to_step"]) for p in goodput.processes(interrupted)[2:]]
    assert ends == [("stopped", "diverged", 35), ("preempted", None, 40)]
