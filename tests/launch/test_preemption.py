"""From an empty cloud to a trained model: two real processes train, reboot, and resume."""

import dataclasses
import socket

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
def test_two_processes_train_reboot_and_resume_with_the_same_bits(cloud, corpus, tmp_path):
    """Host maintenance in the middle of a run; then a deleted TPU, and the same command again."""
    config = tiny_corpus.write_config(tmp_path / "tiny.json", _CONFIG)
    cache = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache")}

    def scenario() -> dict:
        with socket.create_server(("127.0.0.1", 0)) as free:
            place = f"127.0.0.1:{free.getsockname()[1]}"
        # The real doctor compiles the step at each start, so the short form replaces it.
        doctor = {"doctor": "real"} if IS_LONG else {}
        return {"real_trainer": place, "environment": _PROCESSES | cache, "boots": True} | doctor

    def command(here, workdir) -> list:
        what = (f"--config={config}", f"--corpus={corpus}", f"--workdir={workdir}", "--keep")
        return [here.launcher, "run", *here.options, "--capacity=spot", *what]

    calm = cloud(**scenario())
    calm.run(*command(calm, tmp_path / "calm"), settings={"POLL_SECONDS": "0.5"})

    here = cloud(**scenario())
    workdir = tmp_path / "workdir"
    run = here.start(*command(here, workdir), settings={"POLL_SECONDS": "0.5"})
    wait_until(lambda: len(lines(workdir / "metrics.jsonl")) >= 25, run)
    here.stop_units()  # both hosts save
    exits = [here.home(host) / "bert-jax/last" for host in range(2)]
    assert [path.read_text() for path in exits] == ["42\n", "42\n"]
    here.run("boot")
    _, err = run.communicate(timeout=HUNG)
    assert run.returncode == 0, err
    # Each step once, the later ones from the saved state.
    rows = [row for row in lines(workdir / "metrics.jsonl") if "split" not in row]
    assert [row["step"] for row in rows] == list(range(1, _STEPS + 1))
    events = lines(workdir / "events.jsonl")
    resumed = [event["step"] for event in events if event["event"] == "resume"]
    assert resumed and all(25 <= step < _STEPS for step in resumed)
    assert losses(workdir) == losses(tmp_path / "calm")
    digests = {state_digest(place, config=_CONFIG) for place in (workdir, tmp_path / "calm")}
    assert len(digests) == 1
    here.set_states("GONE")
    again = here.run(*command(here, workdir), settings={"POLL_SECONDS": "0.5"})
    assert "requesting pod" in again.stderr
    here.tpu("delete", says="there is no TPU pod")
