"""From an empty cloud to a trained model: two real processes train, are preempted, and resume."""

import dataclasses
import json
import os
import signal
import socket
import time
from pathlib import Path

import pytest

from bert_jax.config import CheckpointConfig, EvaluationConfig, PhaseConfig
from tests import tiny_corpus
from tests.chaos import IS_LONG
from tests.launch.cloud import ROOT

_STEPS = 60
_CONFIG = tiny_corpus.tiny_config(
    model=dataclasses.replace(tiny_corpus.tiny_config().model, num_hidden_layers=1),
    phases=(
        PhaseConfig(sequence_length=32, steps=_STEPS, global_batch_size=16, max_predictions=5),
    ),
    evaluation=EvaluationConfig(every_steps=_STEPS, num_examples=16, batch_size=16),
    checkpoint=CheckpointConfig(every_steps=20),
)


def lines_of(path: Path) -> list[dict]:
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.mark.chaos
def test_two_processes_train_are_preempted_and_resume(cloud, corpus, tmp_path):
    """On a spot machine that is taken away: both processes save, a new machine goes on."""
    here = cloud(
        real_trainer=True,
        # The real one compiles the step at each start; tests/lab/doctor has it, too.
        doctor="real" if IS_LONG else [],
        environment={
            "JAX_PLATFORMS": "cpu",
            "JAX_NUM_CPU_DEVICES": "1",
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "PYTHONPATH": str(ROOT),
            "TF_CPP_MIN_LOG_LEVEL": "2",
        },
    )
    config = tiny_corpus.write_config(tmp_path / "tiny.json", _CONFIG)
    workdir = tmp_path / "workdir"
    command = [
        ROOT / "launch" / "tpu", "supervise", *here.options, "--capacity=spot",
        f"--config={config}", f"--corpus={corpus}", f"--workdir={workdir}",
    ]  # fmt: skip
    settings = {
        "DISTRIBUTED": f"--coordinator 127.0.0.1:{free_port()} --num-processes 2 --process-id %i",
        "COMPILATION_CACHE": str(tmp_path / "cache"),
        "POLL_SECONDS": "0.5",
    }
    supervisor = here.start(*command, settings=settings)

    def logs() -> str:
        return "\n".join(p.read_text() for p in here.directory.glob("hosts/*/bert-jax/log/*.log"))

    def wait_until(condition, seconds: float = 240) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert supervisor.poll() is None, f"{supervisor.communicate()}\n{logs()}"
            assert time.monotonic() < deadline, logs()
            time.sleep(0.005)

    # The cloud takes the machine: its hosts shut down and stop their units, and then it is gone.
    wait_until(lambda: len(lines_of(workdir / "metrics.jsonl")) >= 25)
    for host in range(2):
        os.kill(int((here.home(host) / "unit.pid").read_text()), signal.SIGTERM)
    exits = [here.home(host) / "bert-jax" / "exit" for host in range(2)]
    wait_until(lambda: all(path.exists() for path in exits), 60)
    codes = [path.read_text() for path in exits]
    here.set_states("SUSPENDED")
    assert codes == ["42\n", "42\n"], logs()
    assert max(row["step"] for row in lines_of(workdir / "metrics.jsonl")) < _STEPS

    says = ("2 processes met", " 0 failed") if IS_LONG else ("what the doctor says",)
    assert all(text in logs() for text in says), logs()
    out, err = supervisor.communicate(timeout=300)
    assert supervisor.returncode == 0, f"{err}\n{out}\n{logs()}"
    assert here.state()["created"] == 2
    assert [path.read_text() for path in exits] == ["0\n", "0\n"]
    # Every step once, the later ones from the saved state on; more than the last periodic save had.
    rows = [row for row in lines_of(workdir / "metrics.jsonl") if "split" not in row]
    assert [row["step"] for row in rows] == list(range(1, _STEPS + 1))
    events = lines_of(workdir / "events.jsonl")
    resumed = [event["step"] for event in events if event["event"] == "resume"]
    assert resumed and all(25 <= step < _STEPS for step in resumed)
    assert rows[-1]["mlm_loss"] < rows[0]["mlm_loss"]

    before = here.commands()
    again = here.run(*command, settings=settings)
    assert again.returncode == 0 and "done already" in again.stderr, again.stderr
    assert here.commands() == before
