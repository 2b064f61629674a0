"""LAMB, StableAdamW and Muon against those of others; schedules at their bends."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.config import Optimizer, OptimizerConfig, Schedule
from bert_jax.model import sharding
from bert_jax.registry import SCHEDULES
from bert_jax.update import muon, optimizers
from tests.batches import mesh_of
from tests.optimizer_gradients import (
    RATES,
    STEPS,
    WEIGHT_DECAY,
    gradients,
    nested,
    parameters,
    sampled,
)
from tests.paths import GOLDEN


@pytest.mark.parametrize("kind", RATES)
def test_200_updates_are_those_of_the_reference(kind, monkeypatch):
    """Each parameter moves as far as there, within 1e-5 of the largest change of its tensor."""
    monkeypatch.setattr(muon, "_DTYPE", jnp.float32)
    config = Optimizer.of_kind(kind)(
        weight_decay=WEIGHT_DECAY, clip_norm=0.0, beta1=0.9, beta2=0.98
    )
    optimizer, params = optimizers.make(config), nested(parameters())

    @jax.jit
    def update(params, state, gradient):
        direction, state = optimizer.update(
            gradient, state, params, norm=jnp.float32(1), should_apply=jnp.bool_(True)
        )
        return jax.tree.map(lambda p, d: p - RATES[kind] * d, params, direction), state

    state = optimizer.init(params)
    for step in range(STEPS):
        params, state = update(params, state, nested(gradients(step)))
    reference = np.load(GOLDEN / "optimizers.npz")
    for name, begun in parameters().items():
        ours, theirs = params, reference[f"{kind}/{name}"]
        for key in name.split("/"):
            ours = ours[key]
        moved = np.abs(theirs - sampled(begun)).max()
        assert moved > 1e-4, (name, "hardly moved: nothing was compared")
        np.testing.assert_allclose(
            sampled(np.asarray(ours)), theirs, atol=1e-5 * moved, rtol=1e-5, err_msg=name
        )


@pytest.mark.parametrize(
    "shape", [pytest.param((1, 8, 1), marks=pytest.mark.full), (1, 4, 2)], ids=str
)
@pytest.mark.parametrize("kind", RATES)
def test_any_mesh_gives_the_same_updates(kind, shape, monkeypatch):
    """Norms and products are those of whole tensors, however these are cut."""
    monkeypatch.setattr(muon, "_DTYPE", jnp.float32)
    monkeypatch.setattr(sharding, "_SMALL", 2**10)
    optimizer = optimizers.make(Optimizer.of_kind(kind)())
    update = jax.jit(
        lambda gradients, state, params: optimizer.update(
            gradients, state, params, norm=jnp.float32(1), should_apply=jnp.bool_(True)
        )
    )

    def after_three(place):
        params = place(nested(parameters()))
        state = optimizer.init(params)
        for step in range(3):
            direction, state = update(place(nested(gradients(step))), state, params)
        return jax.device_get(direction)

    mesh = mesh_of(shape)

    def on_mesh(tree):
        layout = sharding.param_shardings(tree, mesh=mesh, shard_weights=True)
        placed = jax.device_put(tree, layout)
        specs = {str(leaf.sharding.spec) for leaf in jax.tree.leaves(placed)}
        assert len(specs) > 1, "nothing is cut"
        return placed

    expected = after_three(jax.device_put)
    with jax.set_mesh(mesh):
        found = after_three(on_mesh)
    # Muon multiplies 15 matrices in float32, which is rounded to 1.2e-7 of the largest element.
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-6 * np.abs(b).max()),
        found,
        expected,
    )


def test_muon_makes_a_matrix_orthogonal():
    """All singular values come near 1, as published: between 0.68 and 1.14, whatever the shape."""
    draw = np.random.default_rng(0)
    for shape in ((64, 96), (96, 64), (48, 48)):
        x = draw.normal(0, 1e-4, shape).astype(np.float32)
        values = np.linalg.svd(np.asarray(muon.orthogonal(jnp.asarray(x))), compute_uv=False)
        assert values.min() > 0.3 and values.max() < 1.3
        u, _, v = np.linalg.svd(x, full_matrices=False)
        inner = np.sum(np.asarray(muon.orthogonal(jnp.asarray(x))) * (u @ v))
        assert inner / min(shape) > 0.8


# --- schedules ------------------------------------------------------------------------------------

_RATE, _WARMUP, _TOTAL, _DECAY, _FLOOR = 3e-4, 100, 1000, 400, 0.1


def in_float64(name: str, step: int, *, warmup: int) -> float:
    """The published formulas."""
    left = (_TOTAL - step) / (_TOTAL - warmup)
    up = min(1.0, step / warmup) if warmup else 1.0
    if name == "electra_linear":
        return _RATE * (_TOTAL - step) / _TOTAL * up
    if name == "constant":
        return _RATE * up
    if step < warmup:
        return _RATE * up
    if name == "bert_linear":
        return _RATE * (_TOTAL - step) / _TOTAL
    shape = {
        "linear": left,
        "polynomial": left**2,
        "cosine": 0.5 * (1 + np.cos(np.pi * (1 - left))),
        "warmup_stable_decay": 1 - np.sqrt(max(step - (_TOTAL - _DECAY), 0) / _DECAY),
    }[name]
    return _RATE * (_FLOOR + (1 - _FLOOR) * shape)


@pytest.mark.parametrize("warmup", [0, 1, _WARMUP])
@pytest.mark.parametrize("name", SCHEDULES.names())
def test_schedules_at_their_bends(name, warmup):
    """In float32 within two units in the last place of the formula in float64.

    Without a warm-up each begins at the rate. The square of a cosine's sine doubles the error of
    its angle, which is exact at the bends of the long warm-up alone.
    """
    units = 4 if name == "cosine" and warmup != _WARMUP else 2
    changes: dict[str, Any] = {"power": 2.0} if name == "polynomial" else {}
    if name in ("linear", "polynomial", "cosine", "warmup_stable_decay"):
        changes["min_lr_ratio"] = _FLOOR
    if name == "warmup_stable_decay":
        changes["decay_steps"] = _DECAY
    config = OptimizerConfig(
        schedule=Schedule.of_kind(name)(**changes), learning_rate=_RATE, warmup_steps=warmup
    )
    bends = [0, 1, 99, 100, 101, 500, 599, 600, 601, 640, 700, 800, 900, 999, 1000]
    rate_of = jax.jit(lambda step: config.schedule.rate(step, config=config, total_steps=_TOTAL))
    for step in bends:
        ours, exact = rate_of(jnp.int32(step)), in_float64(name, step, warmup=warmup)
        assert ours.dtype == jnp.float32
        off = abs(np.float64(ours) - exact) / np.spacing(np.float32(max(exact, _FLOOR * _RATE)))
        assert off <= units, (step, ours, exact)
    assert float(rate_of(jnp.int32(0))) == (0.0 if warmup else pytest.approx(_RATE, rel=1e-6))
