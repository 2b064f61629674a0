"""Hooks: their requests are obeyed, by an interrupted run as by an uninterrupted one."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest

from bert_jax.__main__ import main
from bert_jax.config import CheckpointConfig, EvaluationConfig, OptimizerConfig, PhaseConfig
from bert_jax.registry import HOOKS, OBJECTIVES
from bert_jax.runtime.stop import Preemption
from bert_jax.training.held_out_hooks import HeldOutFigure
from bert_jax.training.hooks import Hook, evaluates_at, evaluations_in
from bert_jax.workdir import checkpoint, log_reader
from tests import tiny_corpus
from tests.states import arrays_of, assert_same_bits

_STEPS, _EVERY = 60, 6
# It grows during the whole run to be far too high, so that the first evaluations are best.
_RATE = 0.3


def write(path: Path, *hooks: Any) -> list[str]:
    """Returns the command that trains for 60 steps, evaluated every 6 and saved every 20."""
    model = dataclasses.replace(tiny_corpus.tiny_config().model, num_hidden_layers=1)
    config = tiny_corpus.tiny_config(
        hooks=hooks,
        model=model,
        phases=(
            PhaseConfig(sequence_length=32, steps=_STEPS, global_batch_size=8, max_predictions=5),
        ),
        optimizer=OptimizerConfig(learning_rate=_RATE, warmup_steps=_STEPS - 1),
        evaluation=EvaluationConfig(every_steps=_EVERY, num_examples=16, batch_size=16),
        checkpoint=CheckpointConfig(every_steps=20, keep_last=1),
        log_every_steps=1,
    )
    return ["pretrain", str(tiny_corpus.write_config(path, config))]


def events(workdir: Path, name: str) -> list[dict]:
    return [e for e in log_reader.read_events(workdir) if e["event"] == name]


def held_out(workdir: Path, figure: str) -> dict[int, float]:
    rows = log_reader.read_rows(workdir)
    return {row["step"]: row[figure] for row in rows if row.get("split") == "validation"}


def interrupted(command: list[str], at: int) -> None:
    """Runs a command that is preempted after `at` checks."""
    with pytest.MonkeyPatch.context() as patch:
        asked = iter(range(1000))
        patch.setattr(Preemption, "requested", lambda self: next(asked) >= at)
        assert main(command) == 42


def test_the_best_checkpoint_is_kept_named_and_loaded(tmp_path, corpus, capsys):
    command = write(tmp_path / "best.json", {"kind": "best_checkpoint", "figure": "mlm_loss"})
    command += ["--corpus", str(corpus), "--workdir"]
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert main([*command, str(whole)]) == 0
    losses = held_out(whole, "mlm_loss")
    best = min(losses, key=lambda step: losses[step])
    assert 0 < best < _STEPS and best % 20
    assert checkpoint.steps(whole) == [best, _STEPS]
    assert events(whole, "best")[-1] | {"time": 0} == {
        **{"event": "best", "time": 0, "step": best, "figure": "mlm_loss"},
        "value": losses[best],
    }

    capsys.readouterr()
    checked = ["evaluate", "--json", "--corpus", str(corpus)]
    assert main([*checked, f"{whole}@best"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["step"] == best and found["mlm_loss"] == pytest.approx(losses[best], rel=1e-6)
    exported = ["export", "--format", "hf", f"{whole}@best", "--output-dir"]
    assert main([*exported, str(tmp_path / "hf")]) == 0

    # An interrupted run has the same evaluations, the same best step, and the same bits of both.
    interrupted([*command, str(cut)], 15)
    assert main([*command, str(cut)]) == 0
    assert held_out(cut, "mlm_loss") == losses and checkpoint.steps(cut) == [best, _STEPS]
    for step in (best, _STEPS):
        assert_same_bits(arrays_of(whole, step), arrays_of(cut, step))

    # A resumed run writes an event that a kill has prevented.
    kept = [e for e in log_reader.read_lines(cut / "events.jsonl") if e["event"] != "best"]
    (cut / "events.jsonl").write_text("".join(json.dumps(e) + "\n" for e in kept))
    assert main([*command, str(cut)]) == 0
    assert [e["step"] for e in events(cut, "best")] == [best]


def test_without_the_hook_no_step_is_best(trained, corpus, capsys):
    assert main(["evaluate", "--corpus", str(corpus), f"{trained}@best"]) == 2
    assert "no best step" in capsys.readouterr().err


def test_a_run_stops_early_and_logs_the_reason(tmp_path, corpus, capsys):
    hook = {"kind": "early_stopping", "figure": "mlm_loss", "patience": 3}
    command = write(tmp_path / "early.json", hook)
    command += ["--corpus", str(corpus), "--workdir"]
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert main([*command, str(whole), "--json"]) == 0
    losses = held_out(whole, "mlm_loss")
    best, last = min(losses, key=lambda step: losses[step]), max(losses)
    assert last == best + 3 * _EVERY < _STEPS
    assert json.loads(capsys.readouterr().out)["step"] == last
    assert checkpoint.steps(whole) == [last]
    (stop,) = events(whole, "stop")
    assert stop["step"] == last and f"mlm_loss was best at step {best}" in stop["reason"]

    assert main([*command, str(whole)]) == 0  # the run has ended, and the reason is shown
    assert f"stops at step {last} of {_STEPS}: early stopping" in capsys.readouterr().err
    assert max(held_out(whole, "mlm_loss")) == last

    interrupted([*command, str(cut)], 15)
    assert main([*command, str(cut)]) == 0
    assert held_out(cut, "mlm_loss") == losses
    assert_same_bits(arrays_of(whole, last), arrays_of(cut, last))

    # Without the hook, the run continues.
    assert main([*command, str(cut), "--set", "hooks=[]"]) == 0
    assert max(held_out(cut, "mlm_loss")) == _STEPS


def test_a_hook_sees_every_step_once_and_in_order(tmp_path, corpus, monkeypatch):
    seen: list[int] = []

    class Sees(Hook):
        def on_metrics(self, step, metrics):
            seen.append(step)

    monkeypatch.setitem(HOOKS._entries, "sees", Sees)
    command = write(tmp_path / "run.json", "sees")
    assert main([*command, "--corpus", str(corpus), "--workdir", str(tmp_path / "run")]) == 0
    assert seen == [*range(1, _STEPS + 1)]
    assert [e["step"] for e in events(tmp_path / "run", "save")] == [20, 40, 60]


class Stops(Hook):
    """Stops the run at the first step."""

    def on_metrics(self, step, metrics):
        return "enough"


def test_a_run_that_stops_before_its_first_evaluation(tmp_path, corpus, monkeypatch, capsys):
    monkeypatch.setitem(HOOKS._entries, "stops", Stops)
    command = write(tmp_path / "run.json", "stops")
    assert main([*command, "--corpus", str(corpus), "--workdir", str(tmp_path / "run")]) == 0
    found = capsys.readouterr().out
    assert "step 2" in found and "training speed" in found and "MLM loss" not in found


class StopsAt(Hook):
    """Stops the run at an evaluation, or at a step that is due for one, and refuses to continue."""

    def __init__(self, at: str):
        self._at = at

    def begin(self, run, step, rows):
        super().begin(run, step, rows)
        return "enough" if step >= 2 * _EVERY else None

    def on_metrics(self, step, metrics):
        # The metrics of a step are read while the next step is computed.
        return "enough" if self._at == "step" and step == 2 * _EVERY - 1 else None

    def on_evaluation(self, step, scores):
        return "enough" if self._at == "evaluation" and step == 2 * _EVERY else None


@pytest.mark.parametrize("at", ["step", "evaluation"])
def test_a_stopped_run_is_saved_and_has_the_evaluation_that_is_due(
    tmp_path, corpus, monkeypatch, at
):
    monkeypatch.setitem(HOOKS._entries, "stops", lambda: StopsAt(at))
    command = [*write(tmp_path / "run.json", "stops"), "--corpus", str(corpus), "--workdir"]
    run = tmp_path / "run"
    for _ in range(2):
        assert main([*command, str(run)]) == 0
        assert [*held_out(run, "mlm_loss")] == [_EVERY, 2 * _EVERY]
        assert checkpoint.steps(run) == [2 * _EVERY]
    assert [event["reason"] for event in events(run, "stop")] == ["enough"] * 2


def test_the_number_of_evaluations_in_a_phase_follows_from_the_schedule():
    for every in (0, 1, 7, 20, 25):
        config = tiny_corpus.tiny_config(evaluation=EvaluationConfig(every_steps=every))
        ends = (0, *config.phase_ends)
        for number in range(len(config.phases)):
            steps = range(ends[number] + 1, ends[number + 1] + 1)
            asked = sum(evaluates_at(config, step) for step in steps)
            assert evaluations_in(config, number) == asked


def test_an_unknown_hook_or_metric_is_named(tmp_path, corpus, capsys):
    command = write(tmp_path / "run.json")
    command += ["--corpus", str(corpus), "--workdir", str(tmp_path / "run")]
    assert main([*command, "--set", 'hooks=["early_stoping"]']) == 2
    assert "Did you mean 'early_stopping'?" in capsys.readouterr().err
    for hook in ("best_checkpoint", "early_stopping"):
        figure = ["--set", f'hooks=[{{"kind": "{hook}", "figure": "f1"}}]']
        for asked in (command, ["doctor", *command[1:]]):
            assert main([*asked, *figure]) == 2
            told = capsys.readouterr()
            assert "no metric 'f1'; it has loss, mlm_loss, " in told.out + told.err
        assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_hooks_can_follow_every_metric_of_an_evaluation(trained):
    rows = [row for row in log_reader.read_rows(trained) if row.get("split")]
    figures = {name for name, value in rows[-1].items() if isinstance(value, float)}
    assert {*OBJECTIVES["mlm+nsp"].watched()} == figures - {"time", "learning_rate"}


def best_of(values, figure="loss", lengths=None) -> int:
    hook = HeldOutFigure(figure=figure)
    for step, value in enumerate(values):
        length = lengths[step] if lengths else None
        hook._see(step, {"step": step, figure: value, "sequence_length": length})
    return hook._best_step


def test_the_best_step_of_a_metric():
    assert best_of([0.0, 3.0, 2.0, 2.0, 4.0]) == 2  # step 0 does not count
    assert best_of([9.0, 0.3, 0.5, 0.4], "mlm_accuracy") == 2
    assert best_of([9.0, None, math.nan, 5.0, 6.0]) == 3
    assert best_of([9.0, 1.0, 5.0, 4.0, 6.0], lengths=[1, 1, 2, 2, 2]) == 3
