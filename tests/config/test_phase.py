"""Phases that change fields: JSON both ways, overrides, errors, clocks, and published recipes."""

import math
import re

import jax.numpy as jnp
import pytest

from bert_jax import config as configs
from bert_jax.config import OptimizerConfig, PhaseConfig, TrainConfig, growing
from bert_jax.config_checks import complete, validate
from bert_jax.config_loader import load_config, override
from bert_jax.errors import UsageError
from bert_jax.update.schedules import learning_rate

_BASE = TrainConfig(
    optimizer=OptimizerConfig(schedule="constant", learning_rate=1e-3, warmup_steps=2),
    phases=tuple(PhaseConfig(steps=10) for _ in range(4)),
)
_CHANGED = override(
    _BASE,
    [
        "phases.1.model.hidden_dropout_prob=0.2",
        "phases.2.optimizer.schedule=warmup_stable_decay",
        "phases.2.optimizer.decay_steps=5",
        "phases.3.model.hidden_dropout_prob=0",
    ],
)


def test_changes_stand_in_the_phase_as_they_do_in_the_config():
    assert configs.to_dict(_CHANGED)["phases"][2]["optimizer"] == {
        "decay_steps": 5,
        "schedule": "warmup_stable_decay",
    }
    assert configs.from_dict(configs.to_dict(_CHANGED)) == _CHANGED
    assert hash(_CHANGED) != hash(_BASE)
    assert "model" not in configs.to_dict(_BASE)["phases"][0]
    assert configs.flatten(_CHANGED)["phases.3.model.hidden_dropout_prob"] == 0.0


def test_a_change_holds_until_another_phase_changes_it():
    rates = [_CHANGED.in_phase(i).model.hidden_dropout_prob for i in range(4)]
    assert rates == [0.1, 0.2, 0.2, 0.0]
    optimizers = [_CHANGED.in_phase(i).optimizer for i in range(4)]
    assert [o.schedule for o in optimizers] == ["constant"] * 2 + ["warmup_stable_decay"] * 2
    assert optimizers[3].options == {"decay_steps": 5, "min_lr_ratio": 0.0}
    assert _BASE.in_phase(3) is _BASE


def test_an_entry_that_is_no_longer_chosen_takes_its_options_with_it():
    back = override(_CHANGED, ["phases.3.optimizer.schedule=constant"])
    assert not back.in_phase(3).optimizer.options
    validate(complete(back))


def test_a_schedule_begins_anew_where_a_phase_changes_it():
    spans = [_CHANGED.schedule_span(i) for i in range(4)]
    assert spans == [range(20), range(20), range(20, 40), range(20, 40)]
    assert [_BASE.schedule_span(i) for i in range(4)] == [range(40)] * 4


def test_what_differs_between_two_phases():
    assert _CHANGED.changes_of(0) == {}
    assert _CHANGED.changes_of(1) == {"model.hidden_dropout_prob": (0.1, 0.2)}
    assert _CHANGED.changes_of(2) == {
        "optimizer.decay_steps": (None, 5),
        "optimizer.min_lr_ratio": (None, 0.0),
        "optimizer.schedule": ("constant", "warmup_stable_decay"),
    }


def test_a_checkpoint_at_a_boundary_is_the_model_of_the_phase_before_it():
    rates = {step: _CHANGED.at_step(step).model.hidden_dropout_prob for step in (0, 10, 11, 40)}
    assert rates == {0: 0.1, 10: 0.1, 11: 0.2, 40: 0.0}


@pytest.mark.parametrize(
    "assignment, said",
    [
        ("phases.0.optimizer.learning_rate=1", "optimizer.learning_rate is changed by the first"),
        ("phases.1.model.hidden_size=12", "model.hidden_size is the whole run's; a phase cannot"),
        ("phases.1.optimizer.kind=muon", "optimizer.kind is the whole run's"),
        ("phases.1.data.masked_lm_prob=0.3", "a phase's own is phases.1.masked_lm_prob"),
        ("phases.1.data.num_workers=3", "data.num_workers is the whole run's"),
        ("phases.1.optimizer.learning_rate=0", "phases.1.optimizer.learning_rate is 0.0; it must"),
        ("phases.1.optimizer.warmup_steps=30", "but the schedule has 10 steps"),
        ("phases.1.optimizer.schedule=cosinus", "phases.1.optimizer.schedule"),
        ("phases.1.optimizer.decay_steps=5", "which schedule constant does not read"),
        ("phases.1.optimizer.learning_rat=1", "'learning_rat'. Did you mean 'learning_rate'?"),
        ("phases.1.optimizer.nonsense=1", "'nonsense'. Fields here: kind, schedule, learning_rate"),
        ('phases=[{"steps": 3}, {"optimizer": {"learning_rat": 1}}]', "learning_rat: no such fiel"),
        ('phases=[{"steps": 3}, {"optimizer": 3}]', "phases.1.optimizer: expected a section"),
        ("phases.1.optimizer.learning_rate=high", "phases.1.optimizer.learning_rate: expected flo"),
        ("phases.1.optimizer.gradient_accumulation_steps=3", "= 3 does not divide"),
    ],
)
def test_what_a_phase_cannot_change(assignment, said):
    with pytest.raises(UsageError) as error:
        validate(complete(override(_CHANGED, [assignment])))
    assert said in str(error.value)


# --- recipes as they are published ---------------------------------------------------------------


class Recipe:
    """The facts of a config after so many tokens, counted in full rows."""

    def __init__(self, name: str):
        self.config = load_config(name)
        self._tokens = [0.0]
        for phase in self.config.phases:
            tokens = phase.steps * phase.global_batch_size * phase.sequence_length
            self._tokens.append(self._tokens[-1] + tokens)
        self.tokens = self._tokens[-1]

    def at(self, tokens: float) -> tuple[dict[str, float], float]:
        """Returns the facts of the update there, and the share of its schedule that is done."""
        number = max(i for i, begin in enumerate(self._tokens[:-1]) if begin <= tokens)
        phase, config = self.config.phases[number], self.config.in_phase(number)
        span = self.config.schedule_span(number)
        inside = (tokens - self._tokens[number]) / phase.global_batch_size / phase.sequence_length
        update = round((0, *self.config.phase_ends)[number] + inside) - span.start
        rate = learning_rate(jnp.int32(update), config=config.optimizer, total_steps=len(span))
        facts = {
            "rows": phase.global_batch_size,
            "length": phase.sequence_length,
            "mask": phase.mask_rate(config.data.masked_lm_prob),
            "theta": config.model.rope_theta,
            "local": config.model.local_rope_theta or config.model.rope_theta,
            "rate": float(rate),
            "decay": config.optimizer.weight_decay * config.optimizer.learning_rate,
        }
        return facts, update / len(span)


_BILLION = 1e9
# Of tokens: four updates. A boundary lies between two, and rounds.
_NEAR = 20e6


def test_modernbert_as_published():
    """AnswerDotAI/ModernBERT, `pretraining_documentation`: its yamls, `src/scheduler.py` and
    `src/sequence_packer.py`.
    """
    recipe = Recipe("modernbert_base")
    assert recipe.tokens == pytest.approx(2019 * _BILLION, rel=1e-4)
    stable = {"length": 1024, "mask": 0.3, "theta": 1e4, "local": 1e4, "decay": 1e-5}
    batches = [768, 1536, 2304, 3072, 3840, 4608, 4608]
    for rows, begin in zip(batches, [0, 10 / 3, 10, 20, 100 / 3, 50, 1718], strict=True):
        found, done = recipe.at(begin * _BILLION + 2 * _NEAR)
        assert found["rows"] == rows
        assert {name: found[name] for name in stable} == pytest.approx(stable)
        # Three billion tokens of warm-up, in the smallest batch.
        warm = min(1.0, done * len(recipe.config.schedule_span(0)) / (3e9 / (768 * 1024)))
        assert found["rate"] == pytest.approx(8e-4 * warm, rel=1e-4)
    assert recipe.at(3 * _BILLION)[0]["rate"] == pytest.approx(8e-4, rel=1e-3)

    long = {"rows": 576, "length": 8192, "mask": 0.3, "theta": 1.6e5, "local": 1e4, "decay": 1e-5}
    for tokens in (1719, 1800, 1968):
        found, _ = recipe.at(tokens * _BILLION + 2 * _NEAR)
        assert found == pytest.approx(long | {"rate": 3e-4})
    for tenth in range(11):
        tokens = min((1969 + 5 * tenth) * _BILLION + _NEAR, recipe.tokens - 1)
        found, done = recipe.at(tokens)
        assert done == pytest.approx(tenth / 10, abs=1e-3)
        rate = 3e-4 * (0.001 + 0.999 * (1 - math.sqrt(done)))
        assert found == pytest.approx(long | {"rate": rate}, rel=1e-5)


def test_ettin_as_published():
    """JHU-CLSP/ettin-encoder-vs-decoder, pretraining/configs/standard/very_tiny and the two
    folders in it.
    """
    recipe = Recipe("ettin_17m")
    begins = [125 * k * (k + 1) / 56 for k in range(8)]  # 28 is the sum of 1 to 7
    for number, begin in enumerate(begins):
        found, _ = recipe.at(begin * _BILLION + 2 * _NEAR)
        assert (found["rows"], found["mask"], found["theta"]) == (576 * (number + 1), 0.3, 1e4)
    assert recipe.at(4 * _BILLION)[0]["rate"] == pytest.approx(3e-3, rel=1e-3)
    for tenth in range(11):
        for begin, size, peak, floor, mask, local in (
            (1700, 250, 3e-3, 0.5, 0.3, 1e4),
            (1950, 50, 1.5e-3, 0.04, 0.15, 1.6e5),
        ):
            tokens = min((begin + size * tenth / 10.01) * _BILLION + 2 * _NEAR, recipe.tokens - 1)
            found, done = recipe.at(tokens)
            assert done == pytest.approx(tenth / 10, abs=5e-3)
            falls = floor + (1 - floor) * (1 - math.sqrt(done))
            assert found == pytest.approx(
                {"rows": 4608, "length": 7999, "mask": mask, "theta": 1.6e5, "local": local,
                 "rate": peak * falls, "decay": 3e-4},
                rel=1e-5,
            )  # fmt: skip


@pytest.mark.parametrize(("name", "billions", "devices"), [("modern_base", 50, 64),
                                                           ("modern_small", 20, 8)])  # fmt: skip
def test_our_own_recipes(name, billions, devices):
    """85, 5 and 10 % of the tokens; the same of each microbatch in rows of either length."""
    recipe = Recipe(name)
    config, tokens = recipe.config, billions * _BILLION
    assert recipe.tokens == pytest.approx(tokens, rel=1e-3)
    pieces = devices * config.optimizer.gradient_accumulation_steps
    for phase in config.phases:
        rows, rest = divmod(phase.global_batch_size, pieces)
        assert not rest and rows * phase.sequence_length <= 8192
    for share, length, theta in ((0.84, 1024, 1e4), (0.86, 8192, 1.6e5), (0.89, 8192, 1.6e5)):
        found, _ = recipe.at(share * tokens)
        assert (found["length"], found["theta"], found["mask"]) == (length, theta, 0.3)
    peak = recipe.at(0.89 * tokens)[0]["rate"]
    found, done = recipe.at(0.95 * tokens)
    assert done == pytest.approx(0.5, abs=0.01)
    assert found["rate"] == pytest.approx(peak * (0.001 + 0.999 * (1 - math.sqrt(done))))


def test_a_batch_that_grows_has_the_tokens_of_its_phase():
    phase = PhaseConfig(sequence_length=10, steps=1000, global_batch_size=6)
    phases = growing(phase, by=2, tokens=12_000)
    assert [p.global_batch_size for p in phases] == [2, 4, 6]
    assert [p.steps for p in phases] == [200, 200, 800]
    assert sum(p.steps * p.global_batch_size * 10 for p in phases) == 60_000


@pytest.mark.parametrize(
    ("by", "tokens", "named"),
    [(6, 12_000, "`by` 6"), (0, 12_000, "`by` 0"), (2, 1e6, "`tokens` 1e+06"), (2, 20, "`tokens`")],
)
def test_a_batch_that_cannot_grow_is_named(by, tokens, named):
    """As many rows as the phase has, none, more tokens than it has, or too few for a step."""
    phase = PhaseConfig(sequence_length=10, steps=1000, global_batch_size=6)
    with pytest.raises(UsageError, match=re.escape(named)):
        growing(phase, by=by, tokens=tokens)
