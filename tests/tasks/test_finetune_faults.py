"""Fine-tuning bears what pre-training bears: it is the same loop."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bert_jax.__main__ import main
from bert_jax.tasks import finetune
from tests import tiny_tasks
from tests.limits import HUNG
from tests.paths import ROOT
from tests.states import arrays_of, assert_same_bits

_ROOT = ROOT
_TIMES = {"time", "steps", "step_seconds", "examples_per_second", "data_wait_seconds"}


@pytest.fixture(scope="module")
def files(shared) -> Path:
    """A folder of SST-2's files, and an encoder to fine-tune."""

    def fill(directory: Path) -> None:
        tiny_tasks.sst2(directory / "sst2")
        tiny_tasks.encoder(directory / "encoder")

    return shared("finetune-faults", fill)


def command(files: Path, workdir: Path | str, *more: str) -> list[str]:
    return [
        *("finetune", str(files / "encoder"), "--task", "sst2"),
        *("--data", str(files / "sst2"), "--workdir", str(workdir), "--epochs", "2"),
        *("--learning-rate", "5e-3", "--batch-size", "16", "--max-length", "24", "--restarts", "0"),
        *("--set", "log_every_steps=1", "--set", "checkpoint.every_steps=5", *more),
    ]


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def rows(workdir: Path) -> list[dict]:
    found = lines(workdir / "metrics.jsonl")
    return [{k: v for k, v in row.items() if k not in _TIMES} for row in found]


@pytest.fixture(scope="module")
def whole(shared, files) -> Path:
    """The workdir of a run that nothing happened to."""

    def fill(directory: Path) -> None:
        assert main(command(files, directory / "run")) == 0

    return shared("finetune-whole", fill) / "run"


def test_a_signal_during_the_scores_is_heard(files, whole, tmp_path, monkeypatch):
    """The state is saved; the scores that were cut short are made by the next process."""
    from bert_jax.runtime.stop import Preemption

    run, asked = finetune.TaskEvaluation.run, []

    def told(self, params, *, cut_short=lambda: False):
        asked.append(True)
        monkeypatch.setattr(Preemption, "requested", lambda self: True)
        return run(self, params, cut_short=cut_short)

    with monkeypatch.context() as patch:
        patch.setattr(finetune.TaskEvaluation, "run", told)
        assert main(command(files, tmp_path / "run")) == 42
    monkeypatch.undo()
    assert asked
    assert main(command(files, tmp_path / "run")) == 0
    assert rows(tmp_path / "run") == rows(whole)
    assert_same_bits(arrays_of(tmp_path / "run"), arrays_of(whole))


# --- real processes -------------------------------------------------------------------------------


def start(files: Path, workdir: Path, *, processes: int, slow: bool) -> list[subprocess.Popen]:
    """Begins a run of one or two processes, which share two devices."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": str(2 // processes),
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    started = []
    for rank in range(processes):
        words = [sys.executable, "-m", "tests.chaos.faulty", *(["task-step=0.2"] if slow else [])]
        words += ["--", *command(files, workdir)]
        if processes > 1:
            words += ["--coordinator", f"127.0.0.1:{port}", "--num-processes", str(processes)]
            words += ["--process-id", str(rank)]
        with (workdir.parent / f"{workdir.name}.log.{rank}").open("ab") as log:
            started.append(subprocess.Popen(words, cwd=_ROOT, env=environment, stdout=log,
                                            stderr=log))  # fmt: skip
    return started


def finish(workdir: Path, started: list[subprocess.Popen]) -> list[int]:
    try:
        return [process.wait(240) for process in started]
    finally:
        for process in started:
            process.kill()


@pytest.mark.chaos
@pytest.mark.parametrize("processes", [1, 2])
def test_sigterm_to_any_process_saves_and_the_same_command_goes_on(files, tmp_path, processes):
    """Both exit with 42 and go on; two processes end with the numbers of one."""
    one = tmp_path / "one"
    assert finish(one, start(files, one, processes=1, slow=False)) == [0]
    cut = tmp_path / "cut"
    started = start(files, cut, processes=processes, slow=True)
    metrics, deadline = cut / "metrics.jsonl", time.monotonic() + HUNG
    while not metrics.exists() or len(metrics.read_text().splitlines()) < 3:
        assert time.monotonic() < deadline and all(p.poll() is None for p in started)
        time.sleep(0.05)
    started[-1].send_signal(signal.SIGTERM)
    assert finish(cut, started) == [42] * processes
    assert finish(cut, start(files, cut, processes=processes, slow=False)) == [0] * processes
    events = [e["event"] for e in lines(cut / "events.jsonl")]
    assert "preempt" in events and "resume" in events
    ours, theirs = rows(cut), rows(one)
    assert [(r["step"], r.get("split")) for r in ours] == [
        (r["step"], r.get("split")) for r in theirs
    ]
    for a, b in zip(ours, theirs, strict=True):
        for name in a.keys() - {"split"}:
            if processes == 1:
                assert a[name] == b[name], (a["step"], name)
            assert a[name] == pytest.approx(b[name], rel=1e-5, abs=1e-6), (a["step"], name)
