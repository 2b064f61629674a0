"""Bands and forecasts of curves, runs of one kind, and when a run is told that it is off."""

import dataclasses
import json
import math
import random

import numpy as np
import pytest

from bert_jax.__main__ import main
from bert_jax.config import (
    CheckpointConfig,
    EvaluationConfig,
    MeshConfig,
    Optimizer,
    OptimizerConfig,
    PhaseConfig,
)
from bert_jax.config_checks import complete
from bert_jax.config_loader import load_config
from bert_jax.errors import UsageError
from bert_jax.workdir import log_reader
from bert_jax_lab.reference_curves import (
    comparable_runs,
    curve,
    published_losses,
    recorded_runs,
)
from bert_jax_lab.reference_curves.curve import Curve
from bert_jax_lab.reference_curves.expectation import Expectation, expectation_of, expected_points
from bert_jax_lab.reference_curves.recorded_runs import RecordedRuns
from bert_jax_lab.reference_curves.watch import Watch
from tests import tiny_corpus, written_runs
from tests.paths import GOLDEN, ROOT

_ENTROPY, _STEPS = 6.0, 2000


def falling(step: float, *, floor: float = 3.0) -> float:
    """A loss that leaves the entropy at once, by a law."""
    return floor + (_ENTROPY - floor) * (1 + step / 100) ** -0.5


def expectation(**changes) -> Expectation:
    steps = range(20, _STEPS + 1, 20)
    curves = (Curve(tuple(steps), tuple(falling(step) for step in steps)),)
    group = RecordedRuns(
        name="healthy",
        config=tiny_corpus.tiny_config(),
        entropy=_ENTROPY,
        training=curves,
        held_out=curves,
    )
    values = {
        "total_steps": _STEPS,
        "warmup_steps": 100,
        "entropy": _ENTROPY,
        "recorded_runs": group,
    } | changes
    return Expectation(**values)


def warnings_of(loss_at, seen: Expectation, *, held_out=None, every=200, seed=0, noise=0.3):
    """(step, reason) of all that is told of a run with these losses, and the sentences."""
    told: list[tuple[int, str]] = []
    sentences: list[str] = []

    def tell(step, reason, said):
        told.append((step, reason))
        sentences.append(said)

    watch, draw = Watch(seen, tell), random.Random(seed)
    watch.begin(0)
    for step in range(1, seen.total_steps + 1):
        watch.see(step, {"mlm_loss": loss_at(step) + draw.gauss(0, noise)})
        if step % every == 0:
            watch.evaluated(step, {"mlm_loss": (held_out or loss_at)(step)}, length=64)
    return told, sentences


def test_the_band_holds_other_seeds_and_other_moments():
    curves = expectation().recorded_runs.held_out
    for step, low, high in curve.band(curves, range(100, 1900, 50)):
        for moment in (0.85, 1.0, 1.15):
            assert low < falling(step * moment) < high
    # Several runs say how far they lie apart, one does not.
    ((_, low, high),) = curve.band(curves, [1000])
    ((_, least, most),) = curve.band(curves * 2, [1000])
    assert (least - low, high - most) == pytest.approx((curve.MARGIN, curve.MARGIN))
    assert curve.band(curves, [10, 3000]) == []
    assert curve.band([], [100]) == []


def test_the_forecast_is_that_of_the_law():
    past = range(200, 1001, 100)
    found = curve.forecast(Curve(tuple(past), tuple(falling(s) for s in past)), [1200, 2000])
    for step, low, high in found:
        assert low < falling(step) < high and high - low < 0.6
    assert curve.forecast(Curve((1, 2, 3, 4), (5.0, 4.0, 3.0, 2.0)), [5]) == []


def test_a_healthy_run_is_left_alone():
    for seed in range(5):
        assert warnings_of(falling, expectation(), seed=seed) == ([], [])
        assert warnings_of(falling, expectation(recorded_runs=None), seed=seed) == ([], [])
    # A plateau at the entropy, for a quarter of the run; and what comes down to it late.
    slow = expectation(recorded_runs=None)
    assert warnings_of(lambda s: 6.0 if s < 500 else falling(s - 499), slow) == ([], [])
    late = lambda s: _ENTROPY + 0.5 - 1.0 * s / _STEPS  # noqa: E731
    assert warnings_of(late, slow, noise=0.1) == ([], [])


def test_a_run_that_stands_at_the_entropy_is_told_at_three_tenths():
    for seed in range(5):
        told, said = warnings_of(
            lambda _: _ENTROPY - 0.01, expectation(recorded_runs=None), seed=seed
        )
        assert [reason for _, reason in told] == ["plateau"]
        assert 0.3 * _STEPS <= told[0][0] <= 0.32 * _STEPS
        assert "stands at 5.9" in said[0] or "stands at 6.0" in said[0]
        assert "optimizer.learning_rate" in said[0] and "initializer_range" in said[0]
    # Runs of its kind say more than the entropy.
    assert warnings_of(lambda _: _ENTROPY - 0.01, expectation())[0][0][1] == "above"


def test_a_run_that_is_worse_than_its_kind_is_told_early():
    seen = expectation(judged=[("optimizer.learning_rate", 0.01, 0.001)])
    told, said = warnings_of(lambda step: _ENTROPY + 0.2, seen)
    assert told[0][0] <= _STEPS / 10 and told[0][1] == "above" and len(told) <= 2
    assert "1 run of healthy had" in said[0]
    assert "here optimizer.learning_rate is 0.01, not 0.001" in said[0]


def test_half_the_rate_is_a_choice_and_a_tenth_of_it_is_not():
    slower = lambda step: falling(step / 1.6)  # noqa: E731
    for rate, expected in ((5e-4, []), (1e-4, ["above"])):
        seen = expectation(judged=[("optimizer.learning_rate", rate, 1e-3)])
        assert [reason for _, reason in warnings_of(slower, seen)[0]] == expected
    assert [reason for _, reason in warnings_of(slower, expectation())[0]] == ["above"]
    # Not even a choice takes four times as long.
    seen = expectation(judged=[("optimizer.learning_rate", 5e-4, 1e-3)])
    assert warnings_of(lambda step: falling(step / 4), seen)[0][0][1] == "above"


def test_what_is_near():
    for name, mine, theirs, near in (
        ("optimizer.learning_rate", 1e-3, 2e-3, True),
        ("optimizer.learning_rate", 1e-3, 2.1e-3, False),
        ("optimizer.warmup_steps", 0, 100, False),
        ("optimizer.beta2", 0.98, 0.999, True),
        ("model.hidden_dropout_prob", 0.1, 0.0, True),
        ("model.hidden_dropout_prob", 0.6, 0.0, False),
        ("optimizer.decay_end", "zero", "tenth", False),
    ):
        assert comparable_runs.is_near((name, mine, theirs)) == near, name


def test_a_run_that_is_too_good_is_told_early():
    for seen, reason in ((expectation(), "below"), (expectation(recorded_runs=None), "known")):
        told, said = warnings_of(lambda step: 6 * math.exp(-step / 50), seen)
        assert told[0][0] <= _STEPS / 10 and told[0][1] == reason
        assert "visible" in said[0]


def test_what_no_run_of_its_kind_is_known_for():
    told, said = warnings_of(lambda step: _ENTROPY + 0.8, expectation(recorded_runs=None))
    assert told[0] == (340, "entropy")
    assert "counts words would have 6.00" in said[0]
    rising = lambda step: falling(step) if step <= 1200 else falling(1200) + (step - 1200) / 500  # noqa: E731
    told, said = warnings_of(rising, expectation(recorded_runs=None), every=100)
    assert [reason for _, reason in told] == ["rising"] and 1300 <= told[0][0] <= 1500
    told, _ = warnings_of(
        lambda s: falling(s) - 1.0 * (s > 300), expectation(recorded_runs=None), held_out=falling
    )
    assert "gap" in [reason for _, reason in told]
    own_rates = expectation(recorded_runs=None, has_own_mask_rates=True)
    assert warnings_of(lambda s: falling(s) - 1.0 * (s > 300), own_rates, held_out=falling)[0] == []
    # The rows of training are of other shares than those held out.
    mixture = expectation(recorded_runs=None, is_mixture=True)
    for loss_at in (lambda s: falling(s) - 1.0 * (s > 300), lambda s: _ENTROPY, lambda s: 2.0):
        assert warnings_of(loss_at, mixture, held_out=falling)[0] == []


def test_a_vocabulary_of_another_text_is_told_at_once():
    told, said = warnings_of(falling, expectation(unknown_share=0.196))
    assert told == [(0, "vocabulary")] and said[0].startswith("19.6% of the corpus's tokens are")
    assert warnings_of(falling, expectation(unknown_share=0.009))[0] == []


def test_a_run_that_goes_on_from_another_has_only_its_own_past():
    continued = expectation(is_continued=True)
    assert warnings_of(lambda step: 2.0, continued)[0] == []
    assert expected_points(continued, [])[0] == "its own past"


def test_rows_of_another_length_begin_another_curve():
    told: list = []
    watch = Watch(expectation(recorded_runs=None), lambda *said: told.append(said))
    for step in range(100, 1001, 100):
        watch.evaluated(step, {"mlm_loss": falling(step)}, length=64)
    for step in range(1100, 2001, 100):
        watch.evaluated(step, {"mlm_loss": falling(step) + 0.8}, length=128)
    assert told == []
    watch.see(1, {"loss": 1.0})
    watch.see(2, {"mlm_loss": math.nan})
    watch.evaluated(2001, {"mlm_loss": math.inf})
    assert told == []


def test_what_was_logged_before_is_remembered():
    told: list = []
    rows = [
        {"step": step, "split": "validation", "mlm_loss": falling(step), "sequence_length": 64}
        for step in range(100, 1001, 100)
    ]
    watch = Watch(
        expectation(recorded_runs=None), lambda step, reason, said: told.append((step, reason))
    )
    watch.recall([*rows, {"step": 1000, "mlm_loss": 3.0}])
    for step in (1100, 1200):
        watch.evaluated(step, {"mlm_loss": 5.5}, length=64)
    assert told == [(1200, "rising")]


def test_runs_of_one_kind():
    config = tiny_corpus.tiny_config()
    same = dataclasses.replace(
        config,
        name="another",
        seed=3,
        mesh=MeshConfig(fsdp=2),
        evaluation=EvaluationConfig(every_steps=7),
        checkpoint=CheckpointConfig(every_steps=9),
    )
    assert comparable_runs.differences(same, config) == ([], [])
    rate = dataclasses.replace(config, optimizer=OptimizerConfig(learning_rate=1.0))
    apart, judged = comparable_runs.differences(rate, config)
    assert apart == [] and judged[0][:2] == ("optimizer.learning_rate", 1.0)
    for change in (
        {"objective": "mlm"},
        {"model": dataclasses.replace(config.model, hidden_size=64)},
        {"optimizer": Optimizer.of_kind("lamb")()},
        {"phases": (PhaseConfig(sequence_length=32, steps=9, global_batch_size=16),)},
    ):
        apart, _ = comparable_runs.differences(
            complete(dataclasses.replace(config, **change)), config
        )
        assert apart, change
    assert comparable_runs.is_same_text(6.31, 6.36) and not comparable_runs.is_same_text(6.3, 7.1)


def test_the_shipped_curves_are_those_of_the_shipped_configs():
    """A recipe that changes needs new curves (tests/golden/make_expected_curves.py)."""
    for group in recorded_runs.shipped():
        found, judged = recorded_runs.of_kind(
            load_config(group.name), group.entropy, recorded_runs.shipped()
        )
        assert found is group and judged == []
        assert len(group.training) == len(group.held_out) >= 2
        ends = [c.steps[-1] for c in group.held_out]
        assert ends == [group.config.total_steps] * len(ends)
        # Each lies in the band of the others.
        for which in (group.training, group.held_out):
            for number, one in enumerate(which):
                others = [c for c in which if c is not one]
                for (_, low, high), loss in zip(
                    curve.band(others, one.steps), one.losses, strict=True
                ):
                    assert low < loss < high, (group.name, number)


def test_a_log_becomes_a_curve(tmp_path):
    written_runs.write_run(tmp_path / "run")
    rows = log_reader.read_rows(tmp_path / "run")
    found = curve.training(rows, 200)
    assert found.steps[:2] == (20, 22) and found.steps[-1] == 200
    first = [row["mlm_loss"] for row in rows if "split" not in row and row["step"] <= 20]
    assert found.losses[0] == pytest.approx(np.mean(first))
    # Rows too far apart for a mean.
    assert curve.training([row for row in rows if row["step"] % 20 == 0], 200).steps == ()
    assert curve.held_out(rows).steps == tuple(
        row["step"] for row in rows if row.get("split") == "validation"
    )


def test_papers_have_figures_of_their_sizes():
    (base,) = published_losses.published(complete(load_config("bert_base")))
    assert (base.figure, base.value) == ("perplexity", 3.99)
    large = published_losses.published(complete(load_config("bert_large")))
    assert {each.figure: each.value for each in large} == {"perplexity": 3.23, "mlm_accuracy": 0.72}
    roberta = dataclasses.replace(
        complete(load_config("bert_base")),
        phases=(PhaseConfig(steps=125_000, global_batch_size=2048),),
    )
    assert published_losses.published(roberta)[0].value == 3.68
    for name in ("tiny_docs_cpu", "electra_base"):
        assert published_losses.published(complete(load_config(name))) == []
    short = load_config("bert_base", ["phases.0.steps=1000", "phases.1.steps=1"], checked=False)
    assert published_losses.published(complete(short)) == []


def test_the_table_of_the_docs_has_all_figures_of_papers():
    text = (ROOT / "docs/reproducing.md").read_text(encoding="utf-8")
    for each in published_losses.PUBLISHED:
        line = (
            f"| {each.layers} x {each.width}, {each.heads} | {each.rows:,}, {each.steps:,} | "
            f"{each.figure} {each.value:g} ({each.where}) |"
        )
        assert line in text


def test_expect(tmp_path, trained, corpus, capsys):
    """A finished run is what another one is compared with; the workdir and its report know it."""
    workdir, config = tmp_path / "run", tmp_path / "tiny.json"
    tiny_corpus.write_config(config, tiny_corpus.tiny_config(seed=5))
    command = ["pretrain", str(config), "--corpus", str(corpus), "--workdir", str(workdir)]
    command += ["--expect", str(trained)]
    assert main([*command, "--set", "model.hidden_size=64"]) == 2
    assert "model.hidden_size is 64, and 32 there" in capsys.readouterr().err
    assert not workdir.exists()
    assert main([*command, "--expect", str(tmp_path)]) == 2
    assert "holds no run" in capsys.readouterr().err

    rate = ["--set", "optimizer.learning_rate=1e-7"]
    assert main([*command, *rate]) == 0
    said, table = capsys.readouterr()[::-1]
    assert "warning: step" in said and "1 run of tiny had" in said
    assert "here optimizer.learning_rate is 1e-07, not 0.005" in said
    assert "NOT as expected" in table
    events = [e for e in log_reader.read_events(workdir) if e["event"] == "unexpected"]
    assert {event["reason"] for event in events} == {"above"}
    (kept,) = recorded_runs.named(workdir)
    assert kept.described == "1 run of tiny"

    # The same command goes on where those runs are not: the workdir has their curves.
    gone = [word if word != str(trained) else str(tmp_path / "gone") for word in command]
    assert main([*gone, *rate]) == 0
    assert "the curves that were expected when this run began are kept" in capsys.readouterr().err

    assert main(["report", str(workdir), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["expected_from"] == "1 run of tiny" and report["expected"]
    assert any(event["event"] == "unexpected" for event in report["events"])
    # A study is a directory of runs.
    (tmp_path / "study/runs").mkdir(parents=True)
    (tmp_path / "study/runs/tiny.seed0").symlink_to(trained)
    other = dataclasses.replace(tiny_corpus.tiny_config(), output_bias="log_frequency")
    written_runs.write_config(tmp_path / "study/runs/other.seed0", other)
    group = recorded_runs.of_runs(load_config(str(config)), kept.entropy, [tmp_path / "study"])
    assert len(group["runs"]) == 1
    with pytest.raises(UsageError, match="no run of this study is of this kind"):
        recorded_runs.of_runs(load_config("bert_base"), 6.0, [tmp_path / "study"])


def test_nothing_is_expected_of_a_short_run():
    config = tiny_corpus.tiny_config()
    found = expectation_of(config, 3.8, (), is_continued=False)
    assert found.recorded_runs is None and expected_points(found, []) == ("its own past", [])


# Recorded runs (tests/golden/make_expected_curves.py): ten healthy ones, and ten with one thing
# wrong each.
_RECORDED = json.loads((GOLDEN / "expected_curves.json").read_text())
_MEAN = 10  # steps


def replayed(case) -> tuple[list[tuple[int, str]], int]:
    """(step, reason) of all that a recorded run would have been told, and its number of steps."""
    config = complete(load_config(case["recipe"], [*case["changes"]]))
    told: list[tuple[int, str]] = []
    watch = Watch(
        expectation_of(
            config,
            case["unigram_entropy_nats"],
            recorded_runs.shipped(),
            is_continued=False,
            unknown_share=case["unknown_share"],
        ),
        lambda step, reason, _: told.append((step, reason)),
    )
    watch.begin(0)
    evaluations = {step: (length, loss) for step, length, loss in case["held_out"]}
    for number, loss in enumerate(case["training"]):
        for step in range(number * _MEAN + 1, (number + 1) * _MEAN + 1):
            watch.see(step, {"mlm_loss": loss})
            if step in evaluations:
                length, held_out = evaluations[step]
                watch.evaluated(step, {"mlm_loss": held_out}, length=length)
    return told, config.total_steps


@pytest.mark.parametrize(
    "case", [c for c in _RECORDED if not c["is_sick"]], ids=lambda case: case["name"]
)
def test_a_healthy_run_that_was_recorded_is_left_alone(case):
    told, steps = replayed(case)
    assert told == []
    assert len(case["training"]) * _MEAN >= steps - _MEAN and case["held_out"]


def test_sick_runs_that_were_recorded_are_told_early():
    found = {}
    sick = [case for case in _RECORDED if case["is_sick"]]
    for case in sick:
        told, steps = replayed(case)
        early = [reason for step, reason in told if step <= steps / 10]
        found[case["name"]] = early[0] if early else "nothing"
    assert len(sick) == 10 and len(_RECORDED) == 20
    assert found == {
        "rate_x10": "above",
        "rate_by_30": "above",
        "labels": "above",
        "nothing_hidden": "below",
        "any_order": "above",
        # At a tenth of this run the loss is still what words and their neighbours say.
        "attention_mask": "nothing",
        "vocabulary": "vocabulary",
        # At a tenth of this run no row has come twice.
        "repeated": "nothing",
        "initial_values": "above",
        "dropout": "above",
    }
