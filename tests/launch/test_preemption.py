"""From an empty cloud to a trained model: two real processes train, are preempted, and resume.

Where the Google Cloud SDK and sshd are installed, by the real gcloud over real ssh.
"""

import dataclasses
import os
import signal
import socket
from pathlib import Path

import pytest

from bert_jax.config import CheckpointConfig, EvaluationConfig, PhaseConfig
from tests import tiny_corpus
from tests.chaos import IS_LONG
from tests.chaos.runs import lines, losses, state_digest
from tests.launch.cloud import ROOT, wait_until
from tests.limits import HUNG

_STEPS = 60
_CONFIG = tiny_corpus.tiny_config(
    model=dataclasses.replace(tiny_corpus.tiny_config().model, num_hidden_layers=1),
    phases=(
        PhaseConfig(sequence_length=32, steps=_STEPS, global_batch_size=16, max_predictions=5),
    ),
    evaluation=EvaluationConfig(every_steps=_STEPS, num_examples=16, batch_size=16),
    checkpoint=CheckpointConfig(every_steps=20),
)
_PROCESSES = {
    "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1", "PYTHONPATH": str(ROOT),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "TF_CPP_MIN_LOG_LEVEL": "2",
}  # fmt: skip


@pytest.mark.chaos
def test_two_processes_train_are_preempted_and_resume(cloud, machines, corpus, tmp_path):
    """Created, trained, preempted; the same command: trained to the end, deleted; the same bits."""
    scenario: dict = {"real_trainer": True, "environment": _PROCESSES}
    if IS_LONG:  # the real doctor compiles the step at each start; tests/lab/doctor has it, too
        scenario["doctor"] = "real"
    config = tiny_corpus.write_config(tmp_path / "tiny.json", _CONFIG)

    def command(here, workdir: Path) -> list:
        what = (f"--config={config}", f"--corpus={corpus}", f"--workdir={workdir}", "--keep")
        return [here.launcher, "run", *here.options, "--capacity=spot", *what]

    def settings() -> dict[str, str]:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        return {
            "DISTRIBUTED": f"--coordinator 127.0.0.1:{port} --num-processes 2 --process-id %i",
            "COMPILATION_CACHE": str(tmp_path / "cache"),
            "POLL_SECONDS": "0.5",
        }

    # A run that nothing disturbs, to compare with.
    calm = cloud(**scenario)
    calm.run(*command(calm, tmp_path / "calm"), settings=settings())

    here = machines(**scenario)
    workdir = tmp_path / "workdir"
    place = settings()
    run = here.start(*command(here, workdir), settings=place)
    exits = [here.home(host) / "bert-jax/exit" for host in range(2)]
    # The cloud takes the machine: its hosts shut down and stop their units, and then it is gone.
    wait_until(lambda: len(lines(workdir / "metrics.jsonl")) >= 25, run)
    for host in range(2):
        os.kill(int((here.home(host) / "unit.pid").read_text()), signal.SIGTERM)
    wait_until(lambda: all(path.exists() for path in exits))
    assert [path.read_text() for path in exits] == ["42\n", "42\n"]
    if here.api is None:
        here.set_states("SUSPENDED")
    else:
        here.api.lose("SUSPENDED", "PREEMPTED")
    out, err = run.communicate(timeout=HUNG)
    assert run.returncode == 42 and "the same command goes on" in err, err
    assert max(row["step"] for row in lines(workdir / "metrics.jsonl")) < _STEPS
    assert ("2 processes met" if IS_LONG else ": pretrain src/run/tiny.json") in out

    again = here.run(*command(here, workdir), settings=place)
    assert "asked for pod" in again.stderr and "goes on (" in again.stderr
    # Every step once, the later ones from the saved state on; more than the last periodic save had.
    rows = [row for row in lines(workdir / "metrics.jsonl") if "split" not in row]
    assert [row["step"] for row in rows] == list(range(1, _STEPS + 1))
    events = lines(workdir / "events.jsonl")
    resumed = [event["step"] for event in events if event["event"] == "resume"]
    assert resumed and all(25 <= step < _STEPS for step in resumed)
    assert losses(workdir) == losses(tmp_path / "calm")
    digests = {state_digest(place, config=_CONFIG) for place in (workdir, tmp_path / "calm")}
    assert len(digests) == 1
    here.tpu("delete", "--capacity=spot", says="pod is gone")
