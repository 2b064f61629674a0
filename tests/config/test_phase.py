"""Phases with overrides: JSON both ways, errors, clocks, and published recipes."""

import math
import re

import jax.numpy as jnp
import pytest

from bert_jax import config as configs
from bert_jax.config import OptimizerConfig, PhaseConfig, TrainConfig, growing
from bert_jax.config_checks import complete, validate
from bert_jax.config_loader import load_config, override
from bert_jax.errors import UsageError
from bert_jax.update.schedules import Constant, WarmupStableDecay

_BASE = TrainConfig(
    model=configs.ModelConfig(position_embedding_type="rotary"),
    optimizer=OptimizerConfig(schedule=Constant(), learning_rate=1e-3, warmup_steps=2),
    phases=tuple(PhaseConfig(steps=10) for _ in range(4)),
)
_CHANGED = override(
    _BASE,
    [
        "phases.1.rope_theta=2e4",
        "phases.2.schedule=warmup_stable_decay",
        "phases.2.schedule.decay_steps=5",
        "phases.3.rope_theta=3e4",
    ],
)


def test_overrides_in_json():
    assert configs.to_dict(_CHANGED)["phases"][2]["schedule"] == {
        "kind": "warmup_stable_decay",
        "decay_steps": 5,
        "min_lr_ratio": 0.0,
    }
    assert configs.from_dict(configs.to_dict(_CHANGED), TrainConfig) == _CHANGED
    assert hash(_CHANGED) != hash(_BASE)
    assert configs.flatten(_CHANGED)["phases.3.rope_theta"] == 3e4


def test_an_override_holds_until_another_phase_overrides_the_field():
    assert [_CHANGED.in_phase(i).model.rope_theta for i in range(4)] == [1e4, 2e4, 2e4, 3e4]
    schedules = [_CHANGED.in_phase(i).optimizer.schedule for i in range(4)]
    assert schedules == [Constant()] * 2 + [WarmupStableDecay(decay_steps=5)] * 2
    assert _BASE.in_phase(3) == _BASE
    assert not any(phase.overrides for phase in _CHANGED.scored_phases)


def test_a_phase_that_overrides_the_schedule_starts_it():
    spans = [_CHANGED.schedule_span(i) for i in range(4)]
    assert spans == [range(20), range(20), range(20, 40), range(20, 40)]
    assert [_BASE.schedule_span(i) for i in range(4)] == [range(40)] * 4
    for change in ("learning_rate=1e-4", "warmup_steps=0"):
        changed = override(_BASE, [f"phases.1.{change}"])
        assert changed.schedule_span(1) == range(10, 40)


def test_the_differences_between_two_phases():
    assert _CHANGED.changes_of(0) == {}
    assert _CHANGED.changes_of(1) == {"model.rope_theta": (1e4, 2e4)}
    assert _CHANGED.changes_of(2) == {
        "optimizer.schedule.decay_steps": (None, 5),
        "optimizer.schedule.min_lr_ratio": (None, 0.0),
        "optimizer.schedule.kind": ("constant", "warmup_stable_decay"),
    }


def test_a_checkpoint_at_a_boundary_has_the_model_of_the_phase_before():
    thetas = {step: _CHANGED.at_step(step).model.rope_theta for step in (0, 10, 11, 40)}
    assert thetas == {0: 1e4, 10: 1e4, 11: 2e4, 40: 3e4}


@pytest.mark.parametrize(
    ("assignment", "said"),
    [
        ("phases.0.learning_rate=1", "phases.0.learning_rate is an override in the first phase"),
        ("phases.1.hidden_size=12", "phases.1.hidden_size: no such field"),
        ("phases.1.learning_rate=0", "phases.1.learning_rate: expected float > 0"),
        ("phases.1.learning_rate=high", "phases.1.learning_rate: expected float"),
        ("phases.1.warmup_steps=30", "phases.1.warmup_steps is 30, but the schedule has 10 steps"),
        ("phases.2.warmup_steps=20", "but the schedule has 20 steps"),
        ("phases.1.schedule=cosinus", "phases.1.schedule.kind is 'cosinus'"),
        ("phases.2.schedule.decay_steps=50", "phases.2.schedule.decay_steps is 50"),
        ("phases.1.schedule.decay_steps=5", "phases.1.schedule"),
        ("model.position_embedding_type=learned", "phases.1.rope_theta is 20000.0, which"),
    ],
)
def test_an_impossible_override_is_named(assignment, said):
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
        rate = config.optimizer.schedule.rate(
            jnp.int32(update), config=config.optimizer, total_steps=len(span)
        )
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
