"""Runs with faults: real processes that are started, watched, and compared bit for bit."""

import dataclasses
import hashlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import numpy as np

from bert_jax.config import CheckpointConfig, EvaluationConfig, OptimizerConfig, PhaseConfig
from bert_jax.model import sharding
from bert_jax.workdir import checkpoint
from tests import tiny_corpus
from tests.limits import HUNG

ROOT = Path(__file__).parents[2]
STEPS = 40
# One layer: every process traces two steps, and the time of tracing grows with the depth.
CONFIG = tiny_corpus.tiny_config(
    model=dataclasses.replace(tiny_corpus.tiny_config().model, num_hidden_layers=1),
    phases=(
        PhaseConfig(sequence_length=32, steps=24, global_batch_size=16, max_predictions=5),
        PhaseConfig(sequence_length=48, steps=16, global_batch_size=8, max_predictions=7),
    ),
    optimizer=OptimizerConfig(learning_rate=5e-3, warmup_steps=10),
    evaluation=EvaluationConfig(every_steps=8, num_examples=20, batch_size=16),
    checkpoint=CheckpointConfig(every_steps=4, keep_last=2),
)


class Started:
    """A started run of one or several processes."""

    def __init__(
        self,
        directory: Path,
        corpus: Path,
        *,
        faults: Sequence[str] = (),
        faults_of: dict[int, Sequence[str]] | None = None,
        options: Sequence[str] = (),
        options_of: dict[int, Sequence[str]] | None = None,
        processes: int = 1,
        devices: int = 1,
        config=CONFIG,
        workdir: str | None = None,
        variables: dict[str, str] | None = None,
    ):
        """`workdir` may be in a bucket; `variables` are added to the environment."""
        directory.mkdir(exist_ok=True, parents=True)
        self.directory, self.workdir = directory, directory / "workdir"
        named = tiny_corpus.write_config(directory / "config.json", config)
        together: list[str] = []
        if processes > 1:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
            together = ["--coordinator", f"127.0.0.1:{port}", "--num-processes", str(processes)]
        environment = os.environ | {
            "JAX_PLATFORMS": "cpu",
            "JAX_NUM_CPU_DEVICES": str(devices),
            "TF_CPP_MIN_LOG_LEVEL": "3",
            **(variables or {}),
        }
        self.processes = []
        for rank in range(processes):
            command = [sys.executable, "-m", "tests.chaos.faulty"]
            command += [*faults, *(faults_of or {}).get(rank, ()), "--", "pretrain", str(named)]
            command += ["--corpus", str(corpus), "--workdir", workdir or str(self.workdir)]
            command += [*options, *(options_of or {}).get(rank, ()), *together]
            command += ["--process-id", str(rank)] if together else []
            with (directory / f"log.{rank}").open("ab") as log:
                self.processes.append(
                    subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log)
                )

    def log(self, rank: int = 0) -> str:
        return (self.directory / f"log.{rank}").read_text(errors="replace")

    def until(self, reached: Callable[[], bool], seconds: float = HUNG) -> None:
        """Waits for a condition; the run must not end before."""
        deadline = time.monotonic() + seconds
        while not reached():
            if any(p.poll() is not None for p in self.processes) or time.monotonic() > deadline:
                self.kill()
                raise AssertionError(self.log())
            time.sleep(0.02)

    def finish(self, seconds: float = HUNG) -> list[int]:
        """Returns the exit codes by rank."""
        deadline = time.monotonic() + seconds
        try:
            return [p.wait(max(0.1, deadline - time.monotonic())) for p in self.processes]
        except subprocess.TimeoutExpired as error:
            codes = [process.poll() for process in self.processes]
            logs = "\n".join(self.log(rank) for rank in range(len(codes)))
            raise AssertionError(f"exit codes so far: {codes}\n{logs}") from error
        finally:
            self.kill()

    def kill(self) -> None:
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait()


def lines(path: Path) -> list[dict]:
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def losses(workdir: Path) -> list[tuple]:
    """Returns every logged loss of training and evaluation, with all bits."""
    rows = lines(workdir / "metrics.jsonl")
    return sorted((r["step"], r.get("split", ""), r["loss"], r["mlm_loss"]) for r in rows)


def state_digest(workdir: Path, *, step: int | None = None, config=CONFIG) -> str:
    """Returns the SHA-256 of parameters, moments and step of a checkpoint."""
    mesh = sharding.make_mesh(fsdp=1, tensor=1, devices=jax.devices()[:1])
    newest = max(checkpoint.steps(workdir)) if step is None else step
    assert checkpoint.problem(workdir, newest) is None
    state = checkpoint.load_state(workdir, step=newest, config=config, mesh=mesh)
    digest = hashlib.sha256()
    for path, leaf in jax.tree.leaves_with_path(state):
        digest.update(jax.tree_util.keystr(path).encode())
        digest.update(np.asarray(leaf).tobytes())
    return digest.hexdigest()


def with_deadline(seconds: float, **changes):
    return dataclasses.replace(CONFIG, deadline_seconds=seconds, **changes)
