"""A study in real processes: SIGTERM, SIGKILL, two processes at once, a variant that diverges."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bert_jax.config import CheckpointConfig, EvaluationConfig, OptimizerConfig, PhaseConfig
from bert_jax.workdir import log_reader
from tests import tiny_corpus
from tests.chaos.runs import ROOT
from tests.limits import HUNG

pytestmark = pytest.mark.chaos

_STUDY = """
from bert_jax_lab.studies.study import Study, StudyTask, Variant

def study():
    return Study(
        title="Kills",
        base="tiny.json",
        variants=(
            Variant("sound"),
            # Without clipping, an update that is finite and too large is not skipped.
            Variant(
                "too_fast",
                ("optimizer.learning_rate=1e30", "optimizer.clip_norm=0",
                 "optimizer.max_skipped_updates=2"),
            ),
        ),
        tasks=(StudyTask("word_order", rule="word_order", epochs=1, length=32),),
    )
"""


class Studying:
    """A `bert-jax study` as a process."""

    def __init__(self, folder: Path, corpus: Path):
        self.workdir, self.log = folder / "study", folder / f"log.{time.monotonic_ns()}"
        command = [sys.executable, "-m", "bert_jax", "study", str(folder / "kills.py"), "--json"]
        command += ["--corpus", str(corpus), "--workdir", str(self.workdir)]
        environment = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log,
                                            stderr=log)  # fmt: skip

    def until_step(self, step: int) -> None:
        """Waits until the sound run has logged that step."""
        deadline = time.monotonic() + HUNG
        while not any(
            row["step"] >= step
            for run in self.workdir.glob("runs/sound.seed0-*")
            for row in log_reader.read_rows(run)
        ):
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.02)

    def code(self) -> int:
        return self.process.wait(HUNG)


def test_a_study_survives_signals_and_runs_in_two_processes(tmp_path, corpus):
    config = tiny_corpus.tiny_config(
        phases=(PhaseConfig(sequence_length=32, steps=400, global_batch_size=16),),
        optimizer=OptimizerConfig(learning_rate=5e-3, warmup_steps=10, bias_correction=True),
        evaluation=EvaluationConfig(every_steps=200, num_examples=16, batch_size=16),
        checkpoint=CheckpointConfig(every_steps=50, keep_last=1),
        log_every_steps=1,
    )
    tiny_corpus.write_config(tmp_path / "tiny.json", config)
    (tmp_path / "kills.py").write_text(_STUDY, encoding="utf-8")

    first = Studying(tmp_path, corpus)
    first.until_step(20)
    first.process.send_signal(signal.SIGTERM)
    assert first.code() == 42, first.log.read_text()
    assert "resumes the study" in first.log.read_text()

    # The child continues and keeps the lock: the next process leaves the run to the child.
    killed = Studying(tmp_path, corpus)
    killed.until_step(40)
    killed.process.kill()
    assert killed.code() == -signal.SIGKILL
    both = [Studying(tmp_path, corpus) for _ in range(2)]
    for study in both:
        assert study.code() == 0, study.log.read_text()

    workdir = both[0].workdir
    found = json.loads((workdir / "study.json").read_text())
    runs = {run["run"]: run for run in found["runs"]}
    assert {name: run["status"] for name, run in runs.items()} == {
        "sound.seed0": "done",
        "sound.seed0.word_order": "done",
        "too_fast.seed0": "failed",
        "too_fast.seed0.word_order": "blocked",
    }
    assert runs["too_fast.seed0"]["code"] in (6, 8) and runs["too_fast.seed0"]["reason"]
    (sound,) = workdir.glob("runs/sound.seed0-????????????")
    rows = log_reader.read_rows(sound)
    trained = [row["step"] for row in rows if row.get("split") is None]
    assert trained == list(range(1, 401))
    # Each step was trained once: a signal made the child save, and a kill did not reach the child.
    assert not (sound / "metrics.aside.jsonl").exists()
    assert (workdir / "study.md").stat().st_size > 500
