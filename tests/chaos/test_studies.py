"""A study in real processes: killed, told to go, begun twice, with a variant that diverges."""

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
            # Nothing skips an update that is finite and wrong: it is clipped nowhere.
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
        run = self.workdir / "runs" / "sound.seed0"
        while not any(row["step"] >= step for row in log_reader.read_rows(run)):
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.02)

    def code(self) -> int:
        return self.process.wait(HUNG)


def test_a_study_is_killed_told_to_go_and_begun_twice(tmp_path, corpus):
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
    assert "goes on with the study" in first.log.read_text()

    # Its child goes on training, and keeps the lock: the next one leaves that run to it.
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
    rows = log_reader.read_rows(workdir / "runs" / "sound.seed0")
    trained = [row["step"] for row in rows if row.get("split") is None]
    assert trained == list(range(1, 401))
    # Each step was trained once: what a signal or a kill of the study met was saved or went on.
    assert not (workdir / "runs" / "sound.seed0" / "metrics.aside.jsonl").exists()
    assert (workdir / "study.md").stat().st_size > 500
