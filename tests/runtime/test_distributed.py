"""Real processes on localhost, over gloo: the same run as one process, and the same end."""

import dataclasses
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bert_jax.__main__ import main
from bert_jax.config import CheckpointConfig, EvaluationConfig, PhaseConfig
from bert_jax.errors import UsageError
from bert_jax.runtime.distributed import Connection
from tests import distributed_worker, tiny_corpus
from tests.chaos import long_form
from tests.limits import HUNG
from tests.paths import ROOT

_ROOT = ROOT
_CONFIG = tiny_corpus.tiny_config(
    phases=(PhaseConfig(sequence_length=32, steps=12, global_batch_size=16, max_predictions=5),),
    evaluation=EvaluationConfig(every_steps=12, num_examples=20, batch_size=16),
    checkpoint=CheckpointConfig(every_steps=6),
    # An odd vocabulary, and parameters large enough to be shared out.
    model=dataclasses.replace(
        tiny_corpus.tiny_config().model, vocab_size=257, hidden_size=128, intermediate_size=512
    ),
)


def start(
    directory: Path,
    corpus: Path,
    *,
    processes: int,
    devices: int,
    config=_CONFIG,
    extra: dict[int, list[str]] | None = None,
) -> list[subprocess.Popen]:
    """A run of `processes` x `devices` in `directory`, just begun."""
    directory.mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    named = tiny_corpus.write_config(directory / "config.json", config)
    started = []
    for rank in range(processes):
        together = ["--coordinator", f"127.0.0.1:{port}", "--num-processes", str(processes)]
        command = [
            *(sys.executable, "-m", "tests.distributed_worker", directory / f"rows.{rank}.json"),
            *("pretrain", named, "--corpus", corpus, "--workdir", directory / "workdir"),
            *(together if processes > 1 else []),
            *(["--process-id", str(rank)] if processes > 1 else []),
            *(extra or {}).get(rank, []),
        ]
        environment = os.environ | {
            "JAX_PLATFORMS": "cpu",
            "JAX_NUM_CPU_DEVICES": str(devices),
            "TF_CPP_MIN_LOG_LEVEL": "2",
        }
        with (directory / f"log.{rank}").open("w") as log:
            started.append(
                subprocess.Popen(
                    list(map(str, command)), cwd=_ROOT, env=environment, stdout=log, stderr=log
                )
            )
    return started


def finish(directory: Path, processes: list[subprocess.Popen], seconds: float = HUNG) -> list[int]:
    deadline = time.monotonic() + seconds
    try:
        return [p.wait(max(1, deadline - time.monotonic())) for p in processes]
    except subprocess.TimeoutExpired:
        pytest.fail("\n".join(p.read_text() for p in directory.glob("log.*")))
    finally:
        for process in processes:
            process.kill()


def rows_fed(directory: Path) -> dict[str, dict[str, str]]:
    """Step -> global row -> digest, of all processes; a row that two made, they made alike."""
    together: dict[str, dict[str, str]] = {}
    for path in directory.glob("rows.*.json"):
        for step, rows in json.loads(path.read_text()).items():
            for row, digest in rows.items():
                assert together.setdefault(step, {}).setdefault(row, digest) == digest
    return together


def curve(directory: Path) -> list[dict]:
    return lines_of(directory / "workdir/metrics.jsonl")


def lines_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def alone(tmp_path_factory, corpus) -> tuple[list[dict], dict[str, dict[str, str]]]:
    """Curve and rows of the same run in this process, on its eight devices."""
    directory = tmp_path_factory.mktemp("alone")
    config = tiny_corpus.write_config(directory / "config.json", _CONFIG)
    command = ["pretrain", str(config), "--corpus", str(corpus)]
    with pytest.MonkeyPatch.context() as patch:
        distributed_worker.watch_rows(directory / "rows.0.json", patch.setattr)
        assert main([*command, "--workdir", str(directory / "workdir")]) == 0
    return curve(directory), rows_fed(directory)


@pytest.mark.chaos
@pytest.mark.parametrize("processes", [2, pytest.param(4, marks=long_form)])
def test_several_processes_train_the_same_run(tmp_path, corpus, alone, processes):
    """The same rows and masks, hashed, and the same losses; only process 0 writes and talks."""
    directory = tmp_path / "run"
    started = start(directory, corpus, processes=processes, devices=4 // processes)
    assert finish(directory, started) == [0] * processes, (directory / "log.0").read_text()
    assert len(list(directory.glob("rows.*.json"))) == processes
    assert "a new run" in (directory / "log.0").read_text()
    for rank in range(1, processes):
        assert "step" not in (directory / f"log.{rank}").read_text()
    lines, rows = alone
    assert set(rows) >= {str(step) for step in range(12)}
    assert rows_fed(directory) == rows
    assert len(curve(directory)) == len(lines) == 13
    for one, several in zip(lines, curve(directory), strict=True):
        assert several["loss"] == pytest.approx(one["loss"], rel=1e-5)


@pytest.mark.chaos
def test_processes_of_different_programs_do_not_start(tmp_path, corpus):
    """Their collectives would wait for each other; the error names the rank and what differs."""
    directory = tmp_path / "run"
    processes = start(
        directory,
        corpus,
        processes=2,
        devices=1,
        extra={1: ["--set", "optimizer.learning_rate=0.001"]},
    )
    assert finish(directory, processes) == [2, 2]
    message = (directory / "log.0").read_text()
    assert "process 1: config; process 1: lowered step" in message
    assert not list((directory / "workdir").glob("checkpoints/*"))


@pytest.mark.parametrize(
    ("connection", "message"),
    [
        (Connection(detect=True, num_processes=2), "detects the processes itself"),
        (Connection(coordinator="host:1"), "set all of"),
        (Connection(coordinator="host:1", num_processes=2, process_id=2), "from 0 to 1"),
        (Connection(coordinator="host", num_processes=2, process_id=0), "HOST:PORT"),
    ],
)
def test_flags_that_do_not_fit_together(connection, message):
    with pytest.raises(UsageError, match=message):
        connection.validate()


def test_no_cluster_is_a_usage_error(tmp_path, corpus):
    config = tiny_corpus.write_config(tmp_path / "config.json", _CONFIG)
    command = [sys.executable, "-m", "bert_jax", "pretrain", config, "--corpus", corpus]
    done = subprocess.run(
        [*command, "--workdir", tmp_path / "workdir", "--distributed"],
        cwd=_ROOT, env=os.environ | {"JAX_PLATFORMS": "cpu"}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 2
    assert "no cluster detected" in done.stderr
    assert not (tmp_path / "workdir").exists()
