"""Bands and forecasts of curves, references, and warnings of a run with unexpected losses."""

import dataclasses
import json
import math
import random
import shutil
from typing import Any

import numpy as np
import pytest

from bert_jax.__main__ import main
from bert_jax.config import MeshConfig, OptimizerConfig, PhaseConfig, to_dict
from bert_jax.config_checks import complete
from bert_jax.config_loader import load_config
from bert_jax.workdir import log_reader
from bert_jax_lab.reference_curves import curve, hook, reference
from bert_jax_lab.reference_curves.curve import Curve
from bert_jax_lab.reference_curves.reference import Reference
from bert_jax_lab.reference_curves.watch import Watch
from tests import tiny_corpus, written_runs
from tests.paths import GOLDEN

_ENTROPY, _STEPS = 6.0, 2000


def falling(step: float, *, floor: float = 3.0) -> float:
    """A loss that falls by a power law from the entropy."""
    return floor + (_ENTROPY - floor) * (1 + step / 100) ** -0.5


def healthy() -> Reference:
    steps = range(20, _STEPS + 1, 20)
    curves = (Curve(tuple(steps), tuple(falling(step) for step in steps)),)
    return Reference(
        config=complete(tiny_corpus.tiny_config()), entropy=_ENTROPY, training=curves,
        validation=curves,
    )  # fmt: skip


def watching(warnings: list, **changes) -> Watch:
    values = {"total_steps": _STEPS, "warmup_steps": 100, "entropy": _ENTROPY} | changes
    return Watch(lambda step, reason, text: warnings.append((step, reason)), **values)


def warnings_of(loss_at, *, validation=None, every=200, seed=0, noise=0.3, **changes):
    """(step, reason) of all warnings of a run with these losses."""
    warnings: list[tuple[int, str]] = []
    watch, draw = watching(warnings, **changes), random.Random(seed)
    for step in range(1, _STEPS + 1):
        watch.see(step, {"mlm_loss": loss_at(step) + draw.gauss(0, noise)})
        if step % every == 0:
            scores = {"mlm_loss": (validation or loss_at)(step), "sequence_length": 64}
            watch.evaluated(step, scores)
    return warnings


# --- curves ---------------------------------------------------------------------------------------


def test_the_band_contains_other_seeds_and_other_moments():
    curves = healthy().validation
    for step, low, high in curve.band(curves, range(100, 1900, 50)):
        for moment in (0.85, 1.0, 1.15):
            assert low < falling(step * moment) < high
    # The margin of a single run is twice as wide.
    ((_, low, high),) = curve.band(curves, [1000])
    ((_, least, most),) = curve.band(curves * 2, [1000])
    assert (least - low, high - most) == pytest.approx((curve.MARGIN, curve.MARGIN))
    assert curve.band(curves, [10, 3000]) == []
    assert curve.band([], [100]) == []


def test_the_forecast_follows_the_law_of_the_past():
    past = range(200, 1001, 100)
    for step in (1200, 2000):
        found = curve.highest_expected(Curve(tuple(past), tuple(map(falling, past))), step)
        assert falling(step) < found < falling(step) + 0.6
    assert math.isinf(curve.highest_expected(Curve((1, 2, 3, 4), (5.0, 4.0, 3.0, 2.0)), 5))


def test_a_log_becomes_a_curve(tmp_path):
    written_runs.write_run(tmp_path / "run")
    rows = log_reader.read_rows(tmp_path / "run")
    found = curve.training(rows, 200)
    assert found.steps[:2] == (20, 22) and found.steps[-1] == 200
    first = [row["mlm_loss"] for row in rows if "split" not in row and row["step"] <= 20]
    assert found.losses[0] == pytest.approx(np.mean(first))
    # Rows that are too sparse for a mean.
    assert curve.training([row for row in rows if row["step"] % 20 == 0], 200).steps == ()
    assert curve.validation(rows).steps == tuple(
        row["step"] for row in rows if row.get("split") == "validation"
    )


# --- warnings -------------------------------------------------------------------------------------


def test_a_healthy_run_has_no_warning():
    for seed in range(5):
        assert warnings_of(falling, seed=seed, reference=healthy()) == []
        assert warnings_of(falling, seed=seed) == []
    # A plateau at the entropy for a quarter of the run, and a run that reaches it late.
    assert warnings_of(lambda s: 6.0 if s < 500 else falling(s - 499)) == []
    assert warnings_of(lambda s: _ENTROPY + 0.5 - 1.0 * s / _STEPS, noise=0.1) == []


def _rising(step: float) -> float:
    return falling(step) if step <= 1200 else falling(1200) + (step - 1200) / 500


@pytest.mark.parametrize(
    ("loss_at", "has_reference", "every", "reason", "earliest", "latest"),
    [
        (lambda _: _ENTROPY - 0.01, False, 200, "plateau", 600, 640),
        (lambda _: _ENTROPY - 0.01, True, 200, "above", 1, 240),
        (lambda _: _ENTROPY + 0.2, True, 200, "above", 1, 200),
        (lambda _: _ENTROPY + 0.8, False, 200, "entropy", 340, 340),
        (lambda step: falling(step / 4), True, 200, "above", 1, 600),
        (lambda step: 6 * math.exp(-step / 50), True, 200, "below", 1, 200),
        (_rising, False, 100, "rising", 1300, 1500),
    ],
)
def test_an_unexpected_loss_is_a_warning(loss_at, has_reference, every, reason, earliest, latest):
    changes: dict[str, Any] = {"reference": healthy()} if has_reference else {}
    for seed in range(3):
        step, found = warnings_of(loss_at, seed=seed, every=every, **changes)[0]
        assert found == reason and earliest <= step <= latest


def test_a_run_with_another_learning_rate_may_be_slower():
    def slower(step: float) -> float:
        return falling(step / 1.6)

    seen, config = healthy(), healthy().config
    tuned = dataclasses.replace(config, optimizer=OptimizerConfig(learning_rate=1.0))
    for each, reasons in ((config, ["above"]), (tuned, [])):
        found = warnings_of(slower, reference=seen, shift=seen.shift_for(each))
        assert [reason for _, reason in found] == reasons


def test_a_continued_run_has_only_its_past():
    assert warnings_of(lambda step: 2.0, entropy=None) == []
    assert [reason for _, reason in warnings_of(_rising, entropy=None, every=100)] == ["rising"]


def test_rows_of_another_length_begin_another_curve():
    told: list = []
    watch = watching(told)
    for step in range(100, 2001, 100):
        is_long = step > 1000
        scores = {"mlm_loss": falling(step) + 0.8 * is_long, "sequence_length": 64 << is_long}
        watch.evaluated(step, scores)
    watch.see(1, {"loss": 1.0})
    watch.see(2, {"mlm_loss": math.nan})
    watch.evaluated(2001, {"mlm_loss": math.inf})
    assert told == []


def test_a_resumed_run_remembers_its_validation_losses():
    told: list = []
    rows = [
        {"step": step, "split": "validation", "mlm_loss": falling(step), "sequence_length": 64}
        for step in range(100, 1001, 100)
    ]
    watch = watching(told)
    watch.recall([*rows, {"step": 1000, "mlm_loss": 3.0}])
    for step in (1100, 1200):
        watch.evaluated(step, {"mlm_loss": 5.5, "sequence_length": 64})
    assert told == [(1200, "rising")]


# --- references -----------------------------------------------------------------------------------


def test_losses_of_another_kind_of_run_are_not_comparable():
    config, seen = tiny_corpus.tiny_config(), healthy()
    same = dataclasses.replace(
        config, name="another", seed=3, mesh=MeshConfig(fsdp=2), optimizer=OptimizerConfig(),
        evaluation=dataclasses.replace(config.evaluation, every_steps=7),
        model=dataclasses.replace(config.model, hidden_dropout_prob=0.3),
    )  # fmt: skip
    assert seen.difference(same, _ENTROPY + 0.05) == ""
    assert "entropy" in seen.difference(same, _ENTROPY + 0.8)
    for name, change in {
        "objective": {"objective": "mlm"},
        "model.hidden_size": {"model": dataclasses.replace(config.model, hidden_size=64)},
        "phases": {"phases": (PhaseConfig(sequence_length=32, steps=9, global_batch_size=16),)},
    }.items():
        found = seen.difference(complete(dataclasses.replace(config, **change)), _ENTROPY)
        assert found.startswith(name)


def test_the_demo_reference_is_only_for_the_demo():
    """Record it again if the demo's config changes (tests/golden/make_expected_curves.py)."""
    config, seen = load_config("modern_tiny_cpu"), reference.demo()
    assert [hook.kind for hook in config.hooks] == ["expected_curves"]
    assert seen.difference(config, seen.entropy) == "" and seen.shift_for(config) == curve.SHIFT
    assert seen.described == "3 runs of modern_tiny_cpu"
    assert hook.expected(config, seen.entropy)[0] == seen.described
    assert {each.steps[-1] for each in seen.validation} == {config.total_steps}
    # Each run is in the band of the others.
    for curves in (seen.training, seen.validation):
        for one in curves:
            others = [each for each in curves if each is not one]
            found = curve.band(others, one.steps)
            for (_, low, high), loss in zip(found, one.losses, strict=True):
                assert low < loss < high


def test_a_run_is_compared_with_the_reference_in_expect(tmp_path, trained, corpus, capsys):
    workdir, config = tmp_path / "run", tmp_path / "tiny.json"
    # The first phase of `trained`, with one layer.
    run = complete(load_config(str(trained / "config.json")))
    run = dataclasses.replace(
        run,
        model=dataclasses.replace(run.model, num_hidden_layers=1),
        phases=run.phases[:1],
        seed=5,
    )
    tiny_corpus.write_config(config, run)
    command = ["pretrain", str(config), "--corpus", str(corpus), "--workdir", str(workdir)]
    command += ["--set", 'hooks=["expected_curves"]', "--set"]
    assert main([*command, f"hooks.0.expect={trained}"]) == 2
    assert "model.num_hidden_layers is 1, but 2" in capsys.readouterr().err
    assert main([*command, f"hooks.0.expect={tmp_path}"]) == 2
    assert "has no run" in capsys.readouterr().err
    assert not workdir.exists()

    earlier = shutil.copytree(trained, tmp_path / "earlier")
    stored = json.loads((earlier / "config.json").read_text())
    (earlier / "config.json").write_text(json.dumps(stored | {"config": to_dict(run)}))
    named = [*command, f"hooks.0.expect={earlier}", "--set", "optimizer.learning_rate=1e-7"]
    assert main(named) == 0
    said, table = capsys.readouterr()[::-1]
    assert "warning: step" in said and "1 run of tiny had" in said
    assert "NOT as expected" in table
    events = [e for e in log_reader.read_events(workdir) if e["event"] == "unexpected"]
    assert {event["reason"] for event in events} == {"above"}
    assert main(["report", str(workdir), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["expected_from"] == "1 run of tiny" and report["expected"]

    # The same command resumes the run on a machine without the reference.
    shutil.rmtree(earlier)
    assert main(named) == 0
    assert "losses are not compared" in capsys.readouterr().err


# Recorded runs: ten healthy ones, and ten runs of modern_tiny_cpu with one fault each.
_RECORDED = json.loads((GOLDEN / "expected_curves.json").read_text())
_MEAN = 10  # steps per recorded loss
_FAULTS = {
    "rate_x10": "above",
    "rate_by_30": "above",
    "labels": "above",
    "nothing_hidden": "below",
    "any_order": "above",
    "attention_mask": "above",
    # The unigram entropies of these corpora differ from that of the reference.
    "vocabulary": "nothing",
    "repeated": "nothing",
    "initial_values": "above",
    "dropout": "above",
}


@pytest.mark.parametrize("case", _RECORDED, ids=lambda case: case["name"])
def test_a_recorded_run_has_a_warning_in_the_first_fifth_if_it_has_a_fault(case):
    config = complete(load_config(case["recipe"], [*case["changes"]]))
    entropy, seen = case["unigram_entropy_nats"], reference.demo()
    told: list[tuple[int, str]] = []
    changes = {"total_steps": config.total_steps, "warmup_steps": config.optimizer.warmup_steps}
    if not seen.difference(config, entropy):
        changes |= {"reference": seen, "shift": seen.shift_for(config)}
    watch = watching(told, entropy=entropy, **changes)
    evaluations = {step: (length, loss) for step, length, loss in case["held_out"]}
    for number, loss in enumerate(case["training"]):
        for step in range(number * _MEAN + 1, (number + 1) * _MEAN + 1):
            watch.see(step, {"mlm_loss": loss})
            if step in evaluations:
                length, held_out = evaluations[step]
                watch.evaluated(step, {"mlm_loss": held_out, "sequence_length": length})
    if not case["is_sick"]:
        assert told == [] and len(case["training"]) * _MEAN >= config.total_steps - _MEAN
        return
    early = [reason for step, reason in told if step <= config.total_steps / 5]
    assert (early[0] if early else "nothing") == _FAULTS[case["name"]]
