"""SIGTERM to a run in a bucket far away, and SIGKILL when the time for saving is over.

The server answers as late and takes bytes as slowly as `benchmarks/bucket_save.py` has it. The
long form has states of half a gigabyte, which is the part of each of eight hosts that train
BERT-Large, and of four, on one host.
"""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bert_jax.config import CheckpointConfig, EvaluationConfig, PhaseConfig
from bert_jax.workdir import location, log_reader
from tests import tiny_corpus
from tests.chaos import IS_LONG
from tests.chaos.runs import ROOT, lines
from tests.faulty_bucket import control, environment, reaching
from tests.limits import HUNG

pytestmark = pytest.mark.chaos

# What a spot machine is given: https://cloud.google.com/tpu/docs/spot
_GRACE = 30
_LATENCY, _STREAM = 0.04, 80e6
# Layers of 151 MB, compressed 140, and whether the save is whole in time.
_SIZES = [(3, True), (26, False)] if IS_LONG else [(0, True)]


def config_of(layers: int):
    """Returns a run without end, with so many of BERT-Large's layers or a tiny one."""
    config = tiny_corpus.tiny_config()
    if layers:
        model = dataclasses.replace(
            config.model,
            num_hidden_layers=layers,
            hidden_size=1024,
            num_attention_heads=16,
            intermediate_size=4096,
        )
        compute = dataclasses.replace(config.compute, layers="scan")
        config = dataclasses.replace(config, model=model, compute=compute)
    phase = PhaseConfig(sequence_length=16, steps=100_000, global_batch_size=2, max_predictions=2)
    return dataclasses.replace(
        config,
        phases=(phase,),
        evaluation=EvaluationConfig(every_steps=0, num_examples=2, batch_size=2),
        checkpoint=CheckpointConfig(every_steps=100_000, keep_last=2),
    )


class InBucket:
    """A run in the bucket, begun."""

    def __init__(self, address: str, directory: Path, corpus: Path, layers: int):
        path = tiny_corpus.write_config(directory / "config.json", config_of(layers))
        self._local, self._log = directory / "local", directory / "log"
        self._local.mkdir(exist_ok=True)
        self._address, self._workdir = address, f"gs://bucket/grace-{layers}"
        command = [sys.executable, "-m", "bert_jax", "pretrain", str(path), "--corpus", str(corpus)]
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [*command, "--workdir", self._workdir],
                cwd=ROOT,
                env=os.environ
                | environment(address)
                | {
                    "TMPDIR": str(self._local),
                    "JAX_PLATFORMS": "cpu",
                    "JAX_NUM_CPU_DEVICES": "1",
                },
                stdout=log,
                stderr=log,
            )

    def log(self) -> str:
        return self._log.read_text(errors="replace")[-4000:]

    def rows(self) -> list[dict]:
        """The rows that the running process has in its local folder."""
        return [row for path in self._local.glob("*/metrics.jsonl") for row in lines(path)]

    def events(self, kind: str) -> list[dict]:
        """The events in the bucket, and those that killed processes have left here."""
        with reaching(self._address):
            found = log_reader.read_events(location.opened(self._workdir).path)
        left = [row for path in self._local.glob("*/events.jsonl") for row in lines(path)]
        found += [row for row in left if row not in found]
        return [row for row in found if row["event"] == kind]

    def until_step(self, step: int) -> None:
        deadline = time.monotonic() + HUNG
        while not any(row["step"] >= step for row in self.rows()):
            assert self.process.poll() is None and time.monotonic() < deadline, self.log()
            time.sleep(0.05)

    def end(self, seconds: float | None) -> tuple[int, float]:
        """Sends SIGTERM, and SIGKILL after so many seconds; returns the exit code and the time."""
        began = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
        return self.process.wait(), time.monotonic() - began


@pytest.mark.parametrize(("layers", "is_whole"), _SIZES)
def test_a_preempted_machine(address, tmp_path, corpus, layers, is_whole):
    control(address, faults={}, latency=_LATENCY, stream=_STREAM)
    # As much time as it needs.
    run = InBucket(address, tmp_path, corpus, layers)
    run.until_step(2)
    code, seconds = run.end(600)
    assert code == 42, run.log()
    (first,) = run.events("preempt")
    assert [event["step"] for event in run.events("save")] == [first["step"]]
    written = control(address).get("insert bytes in", 0)
    print(json.dumps({"layers": layers, "gigabytes": written / 1e9, "seconds": seconds}))
    assert written > layers * 130e6
    # The next one goes on from it, and has the time that a machine has.
    run = InBucket(address, tmp_path, corpus, layers)
    run.until_step(first["step"] + 2)
    code, seconds = run.end(_GRACE)
    assert run.events("resume")[-1]["step"] == first["step"]
    if is_whole:
        assert code == 42 and seconds < _GRACE, run.log()
        newest = run.events("preempt")[-1]["step"]
        assert newest >= first["step"] + 2
        assert [event["step"] for event in run.events("save")] == [first["step"], newest]
    else:
        assert code == -signal.SIGKILL, "the save was faster than this machine's are"
        newest = first["step"]
    print(json.dumps({"layers": layers, "code": code, "seconds": seconds, "newest": newest}))
    # What was cut off is removed, what is whole is gone on from, and nothing is set aside.
    run = InBucket(address, tmp_path, corpus, layers)
    run.until_step(newest + 1)
    run.process.kill()
    run.process.wait()
    assert run.events("resume")[-1]["step"] == newest
    assert not run.events("rollback")
    assert control(address).get("copy", 0) == 0, "a step was moved"
