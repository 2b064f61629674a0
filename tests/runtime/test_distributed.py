"""Real processes on localhost, over gloo: the same run as one process, and the same end."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bert_jax.__main__ import main
from bert_jax.config import CheckpointConfig, EvaluationConfig, PhaseConfig
from bert_jax.errors import UsageError
from bert_jax.runtime.distributed import Connection
from tests import tiny_corpus
from tests.chaos import faulty, long_form
from tests.chaos.runs import Started, lines
from tests.paths import ROOT

_CONFIG = tiny_corpus.tiny_config(
    phases=(PhaseConfig(sequence_length=32, steps=12, global_batch_size=16, max_predictions=5),),
    evaluation=EvaluationConfig(every_steps=12, num_examples=20, batch_size=16),
    checkpoint=CheckpointConfig(every_steps=6),
    # An odd vocabulary, and parameters large enough to be shared out.
    model=dataclasses.replace(
        tiny_corpus.tiny_config().model, vocab_size=257, hidden_size=128, intermediate_size=512
    ),
)


def rows_fed(directory: Path) -> dict[str, dict[str, str]]:
    """Step -> global row -> digest, of all processes; a row that two made, they made alike."""
    together: dict[str, dict[str, str]] = {}
    for path in directory.glob("rows.*.json"):
        for step, rows in json.loads(path.read_text()).items():
            for row, digest in rows.items():
                assert together.setdefault(step, {}).setdefault(row, digest) == digest
    return together


@pytest.fixture(scope="module")
def alone(tmp_path_factory, corpus) -> tuple[list[dict], dict[str, dict[str, str]]]:
    """Curve and rows of the same run in this process, on its eight devices."""
    directory = tmp_path_factory.mktemp("alone")
    config = tiny_corpus.write_config(directory / "config.json", _CONFIG)
    command = ["pretrain", str(config), "--corpus", str(corpus)]
    with pytest.MonkeyPatch.context() as patch:
        faulty.rows(str(directory / "rows.0.json"), patch.setattr)
        assert main([*command, "--workdir", str(directory / "workdir")]) == 0
    return lines(directory / "workdir/metrics.jsonl"), rows_fed(directory)


@pytest.mark.chaos
@pytest.mark.parametrize("processes", [2, pytest.param(4, marks=long_form)])
def test_several_processes_train_the_same_run(tmp_path, corpus, alone, processes):
    """The same rows and masks, hashed, and the same losses; only process 0 writes and talks."""
    fed = {rank: [f"rows={tmp_path}/rows.{rank}.json"] for rank in range(processes)}
    run = Started(tmp_path, corpus, processes=processes, devices=4 // processes, config=_CONFIG,
                  faults_of=fed)  # fmt: skip
    assert run.finish() == [0] * processes, run.log()
    assert len(list(tmp_path.glob("rows.*.json"))) == processes
    assert "new run of 12" in run.log()
    assert not any("step" in run.log(rank) for rank in range(1, processes))
    expected, rows = alone
    assert set(rows) >= {str(step) for step in range(12)}
    assert rows_fed(tmp_path) == rows
    found = lines(run.workdir / "metrics.jsonl")
    assert len(found) == len(expected) == 13
    for one, several in zip(expected, found, strict=True):
        assert several["loss"] == pytest.approx(one["loss"], rel=1e-5)


@pytest.mark.chaos
def test_processes_of_different_programs_do_not_start(tmp_path, corpus):
    """Their collectives would wait for each other; the error names the rank and what differs."""
    other = {1: ["--set", "optimizer.learning_rate=0.001"]}
    run = Started(tmp_path, corpus, processes=2, config=_CONFIG, options_of=other)
    assert run.finish() == [2, 2]
    assert "process 1: config; process 1: lowered step" in run.log()
    assert not list(run.workdir.glob("checkpoints/*"))


@pytest.mark.parametrize(
    ("connection", "message"),
    [
        (Connection(distributed=True, num_processes=2), "detects the processes itself"),
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
        cwd=ROOT, env=os.environ | {"JAX_PLATFORMS": "cpu"}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 2
    assert "no cluster detected" in done.stderr
    assert not (tmp_path / "workdir").exists()
