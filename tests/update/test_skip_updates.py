"""Which updates are left out, against the rule in plain Python, and in a real step."""

import dataclasses
import functools
import math
import random
import statistics

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.config import OptimizerConfig, PhaseConfig
from bert_jax.model import sharding
from bert_jax.objectives.mlm_nsp import MLM_NSP
from bert_jax.update import skip_updates
from bert_jax.update.state import TrainState
from bert_jax.update.step import train_step
from tests.batches import mesh_of, random_batch
from tests.tiny_corpus import tiny_config

_FACTOR = 4.0
_CONFIG = tiny_config(
    phases=(PhaseConfig(sequence_length=16, steps=500, global_batch_size=8, max_predictions=3),),
    optimizer=OptimizerConfig(learning_rate=1e-3, warmup_steps=0),
)


def decisions(norms: list[float], *, factor: float = _FACTOR) -> list[bool]:
    """Returns the decisions on one norm after the other, in one compiled loop."""

    def one(recent, norm):
        good = skip_updates.should_apply(jnp.float32(1), norm, recent, spike_factor=factor)
        return skip_updates.push_norm(norm, recent), good

    return np.asarray(jax.lax.scan(one, skip_updates.empty_norms(), jnp.array(norms))[1]).tolist()


def by_the_rule(norms: list[float]) -> list[bool]:
    finite: list[float] = []
    found = []
    for norm in norms:
        last = finite[-skip_updates.WINDOW :]
        is_full = len(last) == skip_updates.WINDOW
        usual = statistics.median_high(last) if is_full else math.inf
        found.append(math.isfinite(norm) and norm <= _FACTOR * usual)
        finite += [norm] if math.isfinite(norm) else []
    return found


def test_the_rule():
    draw = random.Random(0)
    norms = [float(np.float32(math.exp(draw.gauss(0, 0.9)))) for _ in range(600)]
    for place in draw.sample(range(600), 20):
        norms[place] = draw.choice([math.nan, math.inf, 1e30])
    found = decisions(norms)
    assert found == by_the_rule(norms)
    assert 20 < found.count(False) < 120


def test_neither_a_nan_nor_a_spike_hides_the_next_spike():
    calm = [1.0, 1.1, 0.9] * 50
    assert decisions([*calm, math.nan, 1e9, 1.0, 5.0, 1.2])[-5:] == [
        False,
        False,
        True,
        False,
        True,
    ]


def test_a_level_that_lasts_is_accepted():
    found = decisions([1.0] * 200 + [10.0] * 100)
    assert found.index(False) == 200 and all(found[200 + skip_updates.WINDOW // 2 + 1 :])


def test_off_and_at_the_beginning():
    assert decisions([1.0] * 200 + [1e9], factor=0.0)[-1]
    assert all(decisions([1.0] * 127 + [1e9]))


_SPIKES = dataclasses.replace(
    _CONFIG, optimizer=dataclasses.replace(_CONFIG.optimizer, spike_factor=_FACTOR)
)
_step = jax.jit(functools.partial(train_step, config=_SPIKES, objective=MLM_NSP))


@pytest.mark.parametrize("usual", [1e-6, 1e6])
def test_a_spike_costs_exactly_its_update(usual):
    """The norm of a real step is far from both; step and memory go on, all else keeps its bits."""
    mesh = mesh_of((1, 8, 1))
    fresh = TrainState.create(_SPIKES).to_mesh(mesh)
    with jax.set_mesh(mesh):
        state = dataclasses.replace(fresh, recent_norms=jnp.full(skip_updates.WINDOW, usual))
        vocab_size = _SPIKES.model.vocab_size
        batch = random_batch(rows=8, length=16, predictions=3, vocab_size=vocab_size)
        batch = jax.device_put(batch, sharding.batch_sharding(mesh))
        after, metrics = _step(state, batch)
    assert int(after.step) == 1
    assert float(after.recent_norms[0]) == float(metrics["grad_norm"])
    assert float(metrics["applied"]) == (usual > 1)
    is_same = [
        np.asarray(a).tobytes() == np.asarray(b).tobytes()
        for a, b in zip(
            jax.tree.leaves((after.params, after.opt_state)),
            jax.tree.leaves((state.params, state.opt_state)),
            strict=True,
        )
    ]
    assert not any(is_same[:3]) if usual > 1 else all(is_same)
