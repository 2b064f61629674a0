"""Saved on one arrangement of processes and devices, resumed on another: the same losses."""

import dataclasses
import shutil

import pytest

from bert_jax.config import CheckpointConfig, EvaluationConfig, PhaseConfig
from bert_jax.workdir import checkpoint
from tests.chaos import IS_LONG, long_form
from tests.chaos.runs import CONFIG, Started, lines, losses, state_digest

pytestmark = pytest.mark.chaos

_SAVED = [(1, 4), (2, 2), (4, 1)] if IS_LONG else [(2, 2)]
_RESUMED = [(1, 1), (1, 8), (2, 2), (4, 1)] if IS_LONG else [(1, 1)]


@pytest.fixture(scope="module")
def halves(tmp_path_factory, corpus, finished_by_two):
    """Per arrangement: a whole run, and a run that was killed after its first saves."""
    found = {}
    for shape in _SAVED:
        directory, whole = tmp_path_factory.mktemp(f"{shape[0]}x{shape[1]}"), finished_by_two
        if shape != (2, 2):
            run = Started(directory / "whole", corpus, processes=shape[0], devices=shape[1])
            assert run.finish() == [0] * shape[0], run.log()
            whole = run.workdir
        run = Started(
            directory / "half",
            corpus,
            faults=["step=0.1"],
            processes=shape[0],
            devices=shape[1],
        )
        events = run.workdir / "events.jsonl"
        run.until(lambda e=events: any(x["event"] == "save" and x["step"] >= 8 for x in lines(e)))
        run.kill()
        found[shape] = (losses(whole), state_digest(whole), directory / "half")
    return found


@pytest.mark.parametrize("resumed", _RESUMED)
@pytest.mark.parametrize("saved", _SAVED)
def test_resumed_elsewhere(tmp_path, corpus, halves, saved, resumed):
    whole, digest, half = halves[saved]
    shutil.copytree(half, tmp_path / "run")
    run = Started(tmp_path / "run", corpus, processes=resumed[0], devices=resumed[1])
    assert run.finish() == [0] * resumed[0], run.log()
    assert "resuming at step" in run.log()
    found = losses(run.workdir)
    assert [row[:2] for row in found] == [row[:2] for row in whole]
    if saved == resumed:
        assert found == whole and state_digest(run.workdir) == digest
    for ours, theirs in zip(found, whole, strict=True):
        # Evaluations as well: the masks are the same.
        assert ours[2] == pytest.approx(theirs[2], rel=1e-5), ours
    assert max(row[0] for row in found) == sum(phase.steps for phase in CONFIG.phases)


@long_form
def test_eight_processes_of_eight_devices(tmp_path, corpus):
    """As on a slice of 64 devices: all processes make the same steps and exit with 0."""
    phase = PhaseConfig(sequence_length=32, steps=6, global_batch_size=64, max_predictions=5)
    narrow = dataclasses.replace(
        CONFIG,
        model=dataclasses.replace(CONFIG.model, num_hidden_layers=1),
        phases=(phase,),
        optimizer=dataclasses.replace(CONFIG.optimizer, warmup_steps=2),
        evaluation=EvaluationConfig(every_steps=6, num_examples=20, batch_size=64),
        checkpoint=CheckpointConfig(every_steps=3, keep_last=2),
    )
    run = Started(tmp_path / "run", corpus, processes=8, devices=8, config=narrow)
    assert run.finish(1200) == [0] * 8, run.log()
    (start,) = [e for e in lines(run.workdir / "events.jsonl") if e["event"] == "start"]
    assert (start["processes"], start["devices"]) == (8, 64)
    alone = Started(tmp_path / "alone", corpus, config=narrow)
    assert alone.finish(600) == [0], alone.log()
    found, expected = losses(run.workdir), losses(alone.workdir)
    assert [row[:2] for row in found] == [row[:2] for row in expected]
    assert found[-1][0] == 6
    for ours, theirs in zip(found, expected, strict=True):
        assert ours[2] == pytest.approx(theirs[2], rel=1e-5), ours
    assert checkpoint.problem(run.workdir, 6) is None
