"""The reference of the demo, and warnings of a run with unexpected losses."""

import dataclasses
import json
import math
import random
from typing import Any

import pytest

from bert_jax.__main__ import main
from bert_jax.config import MeshConfig, OptimizerConfig, PhaseConfig
from bert_jax.config_checks import complete
from bert_jax.config_loader import load_config
from bert_jax.workdir import log_reader
from bert_jax_lab.reference_curves import hook, reference
from bert_jax_lab.reference_curves.reference import Curve, Reference
from bert_jax_lab.reference_curves.watch import Watch
from tests import tiny_corpus
from tests.paths import GOLDEN

_ENTROPY, _STEPS = 6.0, 2000
_DEMO_ENTROPY = 6.315


def falling(step: float, *, floor: float = 3.0) -> float:
    """A loss that falls by a power law from the entropy."""
    return floor + (_ENTROPY - floor) * (1 + step / 100) ** -0.5


def healthy() -> Reference:
    steps = range(20, _STEPS + 1, 20)
    curves = (Curve(tuple(steps), tuple(falling(step) for step in steps)),)
    return Reference(described="recorded runs", training=curves, validation=curves)


def watching(warnings: list, **changes) -> Watch:
    values = {"total_steps": _STEPS, "warmup_steps": 100, "entropy": _ENTROPY} | changes
    return Watch(lambda step, reason, text: warnings.append((step, reason)), **values)


def warnings_of(loss_at, *, seed=0, noise=0.3, **changes):
    """(step, reason) of all warnings of a run with these losses."""
    warnings: list[tuple[int, str]] = []
    watch, draw = watching(warnings, **changes), random.Random(seed)
    for step in range(1, _STEPS + 1):
        watch.see(step, {"mlm_loss": loss_at(step) + draw.gauss(0, noise)})
        if step % 200 == 0:
            watch.evaluated(step, {"mlm_loss": loss_at(step)})
    return warnings


# --- the range of recorded losses -----------------------------------------------------------------


def test_the_band_contains_other_seeds_and_other_moments():
    seen = healthy()
    for step in range(100, 1900, 50):
        low, high = seen.band(seen.validation, step) or (0.0, 0.0)
        for moment in (0.85, 1.0, 1.15):
            assert low < falling(step * moment) < high
    assert seen.band(seen.validation, 10) is seen.band(seen.validation, 3000) is None
    assert seen.band([], 100) is None


# --- warnings -------------------------------------------------------------------------------------


def test_a_healthy_run_has_no_warning():
    for seed in range(5):
        assert warnings_of(falling, seed=seed, reference=healthy()) == []
        assert warnings_of(falling, seed=seed) == []
    # A plateau at the entropy for a quarter of the run, and a run that reaches it late.
    assert warnings_of(lambda s: 6.0 if s < 500 else falling(s - 499)) == []
    assert warnings_of(lambda s: _ENTROPY + 0.5 - 1.0 * s / _STEPS, noise=0.1) == []


@pytest.mark.parametrize(
    ("loss_at", "has_reference", "reason", "earliest", "latest"),
    [
        (lambda _: _ENTROPY - 0.01, False, "plateau", 600, 640),
        (lambda _: _ENTROPY - 0.01, True, "above", 1, 240),
        (lambda _: _ENTROPY + 0.2, True, "above", 1, 200),
        (lambda _: _ENTROPY + 0.8, False, "entropy", 340, 340),
        (lambda step: falling(step / 4), True, "above", 1, 600),
        (lambda step: 6 * math.exp(-step / 50), True, "below", 1, 200),
    ],
)
def test_an_unexpected_loss_is_a_warning(loss_at, has_reference, reason, earliest, latest):
    changes: dict[str, Any] = {"reference": healthy()} if has_reference else {}
    for seed in range(3):
        step, found = warnings_of(loss_at, seed=seed, **changes)[0]
        assert found == reason and earliest <= step <= latest


# --- references -----------------------------------------------------------------------------------


def test_losses_of_another_kind_of_run_are_not_comparable():
    config = load_config("modern_tiny_cpu")
    same = dataclasses.replace(
        config, name="another", seed=3, mesh=MeshConfig(fsdp=2),
        evaluation=dataclasses.replace(config.evaluation, every_steps=7),
    )  # fmt: skip
    for entropy in (_DEMO_ENTROPY - 0.05, _DEMO_ENTROPY + 0.05):
        found = reference.demo(same, entropy)
        assert found is not None and found.shift == reference.SHIFT
    assert reference.demo(same, _DEMO_ENTROPY + 0.8) is None
    tuned = reference.demo(
        dataclasses.replace(config, optimizer=OptimizerConfig(learning_rate=1.0)), _DEMO_ENTROPY
    )
    assert tuned is not None and tuned.shift > reference.SHIFT
    for change in (
        {"objective": "mlm+nsp"},
        {"model": dataclasses.replace(config.model, hidden_size=64)},
        {"phases": (PhaseConfig(sequence_length=32, steps=9, global_batch_size=16),)},
    ):
        assert reference.demo(dataclasses.replace(config, **change), _DEMO_ENTROPY) is None


def test_the_demo_reference_is_only_for_the_demo():
    """Record it again if the demo's config changes (tests/golden/make_expected_curves.py)."""
    config = load_config("modern_tiny_cpu")
    assert [each.kind for each in config.hooks] == ["expected_curves"]
    seen = reference.demo(config, _DEMO_ENTROPY)
    assert seen is not None and seen.described == "3 runs of modern_tiny_cpu"
    described, bands = hook.expected(config, _DEMO_ENTROPY)
    assert described == seen.described and bands[-1][0] == config.total_steps
    assert hook.expected(dataclasses.replace(config, hooks=()), _DEMO_ENTROPY) == ("", [])
    assert {each.steps[-1] for each in seen.validation} == {config.total_steps}
    # Each run is in the band of the others.
    for curves in (seen.training, seen.validation):
        for one in curves:
            others = [each for each in curves if each is not one]
            for step, loss in zip(one.steps, one.losses, strict=True):
                low, high = seen.band(others, step) or (0.0, 0.0)
                assert low < loss < high


def test_a_warning_is_an_event_and_in_the_closing_table(tmp_path, corpus, capsys, monkeypatch):
    monkeypatch.setattr(reference, "demo", lambda config, entropy: healthy())
    workdir, config = tmp_path / "run", tmp_path / "tiny.json"
    run = tiny_corpus.tiny_config(optimizer=OptimizerConfig(learning_rate=1e-7, warmup_steps=1))
    tiny_corpus.write_config(config, dataclasses.replace(run, phases=run.phases[:1]))
    command = ["pretrain", str(config), "--corpus", str(corpus), "--workdir", str(workdir)]
    assert main([*command, "--set", 'hooks=["expected_curves"]']) == 0
    table, said = capsys.readouterr()
    assert "warning: step" in said and "recorded runs had" in said
    assert "as expected" in table
    events = [e for e in log_reader.read_events(workdir) if e["event"] == "unexpected"]
    assert {event["reason"] for event in events} == {"above"}
    assert main(["report", str(workdir), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["expected_from"] == "recorded runs" and report["expected"]


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
    entropy, told = case["unigram_entropy_nats"], []
    changes = {"total_steps": config.total_steps, "warmup_steps": config.optimizer.warmup_steps}
    watch = watching(told, entropy=entropy, reference=reference.demo(config, entropy), **changes)
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
