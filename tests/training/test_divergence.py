"""A diverging run gets a warning and is stopped; a slow run is not."""

import dataclasses
import math
from types import SimpleNamespace
from typing import cast

import pytest

from bert_jax.__main__ import main
from bert_jax.config import CheckpointConfig, EvaluationConfig, OptimizerConfig, PhaseConfig
from bert_jax.errors import Diverged
from bert_jax.objectives.mlm import MLM
from bert_jax.objectives.mlm_nsp import MLM_NSP
from bert_jax.objectives.objective import Objective
from bert_jax.training import divergence
from bert_jax.training.divergence import Divergence
from bert_jax.training.loop import Run
from bert_jax.workdir import log_reader
from tests import tiny_corpus


def test_the_loss_of_a_uniform_prediction():
    model = tiny_corpus.tiny_config().model
    assert MLM.uniform_loss(model) == pytest.approx(math.log(240))
    assert MLM_NSP.uniform_loss(model) == pytest.approx(math.log(240) + math.log(2))
    assert Objective().uniform_loss(model) is None


def warnings_of(losses, *, uniform_loss=5.0) -> list[str]:
    said: list[str] = []
    objective = SimpleNamespace(uniform_loss=lambda _: uniform_loss)
    job = SimpleNamespace(objective=objective, config=tiny_corpus.tiny_config())
    hook = Divergence()
    hook.begin(cast(Run, SimpleNamespace(job=job, print=said.append)), 0, [])
    for step, loss in enumerate(losses, 1):
        hook.on_metrics(step, {"loss": loss})
    return said


def test_a_plateau_and_a_spike_are_healthy():
    assert warnings_of([5.0] * 1000) == []
    assert warnings_of([9.9] * 1000) == []
    assert warnings_of(([100.0] * 19 + [4.0]) * 30) == []
    assert warnings_of([1e9] * 1000, uniform_loss=None) == []
    # A text of one word: what it begins with is far above its unigram entropy, which is zero.
    assert warnings_of([5.2 - step / 100 for step in range(520)]) == []
    # An update without a number is left out, and counted elsewhere.
    assert warnings_of([math.nan] * 1000) == []


def test_a_loss_that_stays_too_high_is_warned_and_stopped():
    (said,) = warnings_of([4.0] + [11.0] * 199)
    assert "step 21: the run seems to diverge: its loss is 11.0" in said and "step 201" in said
    with pytest.raises(Diverged, match=r"step 201: the run has diverged.*for 200 steps"):
        warnings_of([4.0] + [11.0] * 200)
    # A recovery resets the count.
    assert len(warnings_of([11.0] * 30 + [4.0] + [11.0] * 30)) == 2


def run(tmp_path, corpus, optimizer: OptimizerConfig) -> tuple[int, list[dict]]:
    """Returns the exit code and the events of a run of at most 300 steps."""
    config = tiny_corpus.tiny_config(
        model=dataclasses.replace(tiny_corpus.tiny_config().model, num_hidden_layers=1),
        optimizer=optimizer,
        phases=(
            PhaseConfig(sequence_length=32, steps=300, global_batch_size=8, max_predictions=5),
        ),
        evaluation=EvaluationConfig(every_steps=1000, num_examples=16, batch_size=16),
        checkpoint=CheckpointConfig(every_steps=1000),
    )
    path = tiny_corpus.write_config(tmp_path / "tiny.json", config)
    workdir = tmp_path / "run"
    code = main(["pretrain", str(path), "--corpus", str(corpus), "--workdir", str(workdir)])
    return code, log_reader.read_events(workdir)


def test_a_diverged_run_ends_with_its_code(tmp_path, corpus, capsys, monkeypatch):
    monkeypatch.setattr(divergence, "_STEPS_UNTIL_END", 30)
    code, events = run(tmp_path, corpus, OptimizerConfig(learning_rate=10.0, warmup_steps=2))
    said = capsys.readouterr().err
    assert code == 8 and "warning: step 2" in said and "the run has diverged" in said
    assert "--workdir" in said
    assert events[-1]["reason"] == "diverged" and events[-1]["step"] < 300


def test_updates_that_are_not_finite_end_with_their_code(tmp_path, corpus, capsys):
    """Every update is skipped, until there are more than optimizer.max_skipped_updates."""
    optimizer = OptimizerConfig(learning_rate=1e30, warmup_steps=2, max_skipped_updates=5)
    code, events = run(tmp_path, corpus, optimizer)
    said = capsys.readouterr().err
    assert code == 6 and "update skipped (1 of at most 5)" in said
    assert "optimizer.learning_rate" in said
    assert events[-1]["reason"] == "non-finite" and events[-1]["step"] < 20
    assert [e["loss"] for e in events if e["event"] == "skip"] == ["nan"] * 7
    assert log_reader.read_rows(tmp_path / "run")[-1]["loss"] is None
