"""SIGTERM to a run in a slow bucket, and SIGKILL at the end of the grace period.

The server has the latency and bandwidth of `benchmarks/bucket_save.py`. The long form saves half a
gigabyte, the share of each of eight hosts that train BERT-Large, and four gigabytes.
"""

import dataclasses
import json
import signal
import subprocess
import time
from pathlib import Path

import pytest

from bert_jax.config import CheckpointConfig, EvaluationConfig, PhaseConfig
from bert_jax.workdir import location, log_reader
from tests import tiny_corpus
from tests.chaos import IS_LONG
from tests.chaos.runs import Started, lines
from tests.faulty_bucket import control, environment, reaching

pytestmark = pytest.mark.chaos

# Seconds between SIGTERM and SIGKILL on a spot machine: https://cloud.google.com/tpu/docs/spot
_GRACE = 30
_LATENCY, _STREAM = 0.04, 80e6
# Number of layers (151 MB each, 140 MB compressed), and whether the save is complete in time.
_SIZES = [(3, True), (26, False)] if IS_LONG else [(0, True)]


def config_of(layers: int):
    """Returns a config of an endless run with layers of BERT-Large, or of a tiny model for 0."""
    config = tiny_corpus.tiny_config()
    if layers:
        model = dataclasses.replace(
            config.model,
            num_hidden_layers=layers,
            hidden_size=1024,
            num_attention_heads=16,
            intermediate_size=4096,
        )
        compute = dataclasses.replace(config.compute, layer_loop="scan")
        config = dataclasses.replace(config, model=model, compute=compute)
    phase = PhaseConfig(sequence_length=16, steps=100_000, global_batch_size=2, max_predictions=2)
    return dataclasses.replace(
        config,
        phases=(phase,),
        evaluation=EvaluationConfig(every_steps=0, num_examples=2, batch_size=2),
        checkpoint=CheckpointConfig(every_steps=100_000, keep_last=2),
    )


class InBucket:
    """A run in the bucket, with the local folder of its machine."""

    def __init__(self, address: str, directory: Path, corpus: Path, layers: int):
        self._local, self._address = directory / "local", address
        self._workdir = f"gs://bucket/grace-{layers}"
        self._local.mkdir(exist_ok=True)
        variables = environment(address) | {"TMPDIR": str(self._local)}
        self.run = Started(
            directory, corpus, config=config_of(layers), workdir=self._workdir, variables=variables
        )

    def events(self, kind: str) -> list[dict]:
        """Returns the events in the bucket, and those that killed processes have left here."""
        with reaching(self._address):
            found = log_reader.read_events(location.opened(self._workdir).path)
        left = [row for path in self._local.glob("*/events.jsonl") for row in lines(path)]
        found += [row for row in left if row not in found]
        return [row for row in found if row["event"] == kind]

    def until_step(self, step: int) -> None:
        files = self._local.glob
        self.run.until(
            lambda: any(
                row["step"] >= step for file in files("*/metrics.jsonl") for row in lines(file)
            )
        )

    def end(self, seconds: float) -> tuple[int, float]:
        """Sends SIGTERM, and SIGKILL after so many seconds; returns the exit code and the time."""
        (process,), began = self.run.processes, time.monotonic()
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
        return process.wait(), time.monotonic() - began


@pytest.mark.parametrize(("layers", "is_whole"), _SIZES)
def test_a_preempted_machine(address, tmp_path, corpus, layers, is_whole):
    control(address, faults={}, latency=_LATENCY, stream=_STREAM)
    # Enough time for any save.
    run = InBucket(address, tmp_path, corpus, layers)
    run.until_step(2)
    code, seconds = run.end(600)
    assert code == 42, run.run.log()
    (first,) = run.events("preempt")
    assert [event["step"] for event in run.events("save")] == [first["step"]]
    written = control(address).get("insert bytes in", 0)
    print(json.dumps({"layers": layers, "gigabytes": written / 1e9, "seconds": seconds}))
    assert written > layers * 130e6
    # The next run resumes, and has the grace period of a spot machine.
    run = InBucket(address, tmp_path, corpus, layers)
    run.until_step(first["step"] + 2)
    code, seconds = run.end(_GRACE)
    assert run.events("resume")[-1]["step"] == first["step"]
    if is_whole:
        assert code == 42 and seconds < _GRACE, run.run.log()
        newest = run.events("preempt")[-1]["step"]
        assert newest >= first["step"] + 2
        assert [event["step"] for event in run.events("save")] == [first["step"], newest]
    else:
        assert code == -signal.SIGKILL, "the save was faster than expected"
        newest = first["step"]
    print(json.dumps({"layers": layers, "code": code, "seconds": seconds, "newest": newest}))
    # The incomplete step is removed, the complete step is resumed, and nothing is set aside.
    run = InBucket(address, tmp_path, corpus, layers)
    run.until_step(newest + 1)
    run.run.kill()
    assert run.events("resume")[-1]["step"] == newest
    assert not run.events("rollback")
    assert control(address).get("copy", 0) == 0, "a step was moved"
