"""Any transformation of optax as the optimiser: its rule, bad updates, its state on any mesh."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from bert_jax.config import (
    CheckpointConfig,
    ComputeConfig,
    ModelConfig,
    Optimizer,
    PhaseConfig,
    TrainConfig,
)
from bert_jax.model import bert, sharding
from bert_jax.objectives.mlm_nsp import MLM_NSP
from bert_jax.registry import OPTIMIZERS
from bert_jax.update.state import TrainState
from bert_jax.update.step import compile_lowered, lower_train_step
from bert_jax.workdir import checkpoint
from bert_jax.workdir.checkpoint import Checkpoints
from tests.batches import mesh_of, random_batch
from tests.models import assert_same

pytestmark = pytest.mark.core

# Element by element; with means over a dim, and state that has fewer dims than its parameter.
_MAKE = {
    "lion": lambda config: optax.lion(1.0),
    "adafactor": lambda config: optax.adafactor(1.0),
}
# slices x fsdp x tensor
_MESHES = [(1, 1, 1), (1, 8, 1), (2, 2, 2)]
_CLIP, _WARMUP, _STEPS = 0.5, 3, 20
# Adafactor moves a parameter by a share of its size.
_RATES = {"lion": 1e-3, "adafactor": 1e-2}
# Plain optax runs on one device.
each_mesh = pytest.mark.parametrize(
    "shape", [pytest.param(_MESHES[1], marks=pytest.mark.full), _MESHES[2]], ids=str
)


@pytest.fixture(params=_MAKE)
def kind(request):
    """The name in `_MAKE`, registered as `test-NAME`."""
    OPTIMIZERS.register(f"test-{request.param}", _MAKE[request.param])
    yield request.param
    del OPTIMIZERS._entries[f"test-{request.param}"]


def config_of(kind: str) -> TrainConfig:
    """Kernels large enough to be stored in pieces; no dropout, so that gradients can be had."""
    return TrainConfig(
        model=ModelConfig(
            vocab_size=514,
            hidden_size=128,
            num_hidden_layers=1,
            num_attention_heads=4,
            intermediate_size=512,
            max_position_embeddings=32,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        ),
        compute=ComputeConfig(dtype="float32"),
        optimizer=Optimizer.of_kind(f"test-{kind}")(
            learning_rate=_RATES[kind], warmup_steps=_WARMUP, clip_norm=_CLIP
        ),
        phases=(
            PhaseConfig(sequence_length=32, steps=_STEPS, global_batch_size=16, max_predictions=5),
        ),
    )


def batch_of(step: int) -> dict:
    return random_batch(rows=16, length=32, predictions=5, vocab_size=514, seed=step)


@functools.cache
def compiled_step(config: TrainConfig, mesh):
    """The step of all tests with this optimiser and mesh; to be asked for within the mesh."""
    batch = jax.device_put(batch_of(0), sharding.batch_sharding(mesh))
    state = TrainState.abstract(config, mesh)
    return compile_lowered(lower_train_step(config, state, batch, objective=MLM_NSP))


def train(config: TrainConfig, shape, batches, *, begin=None) -> list[tuple[TrainState, dict]]:
    """The states after each batch, on the host, with the metrics."""
    mesh = mesh_of(shape)
    found = []
    with jax.set_mesh(mesh):
        state = TrainState.initial(config, mesh) if begin is None else begin.to_mesh(mesh)
        layout = sharding.batch_sharding(mesh)
        abstract = TrainState.abstract(config, mesh)
        step = compiled_step(config, mesh)
        for batch in jax.device_put(batches, layout):
            state, metrics = step(state, batch)
            jax.tree.map(_require_layout, state, abstract)
            found.append((jax.device_get(state), jax.device_get(metrics)))
    return found


def _require_layout(leaf, described) -> None:
    assert (leaf.shape, leaf.dtype) == (described.shape, described.dtype)
    assert leaf.sharding.is_equivalent_to(described.sharding, leaf.ndim)


def rate_at(step: int, kind: str) -> float:
    return _RATES[kind] * (step / _WARMUP if step < _WARMUP else 1 - step / _STEPS)


# --- the rule -------------------------------------------------------------------------------------


@functools.cache
def by_plain_optax(kind) -> list:
    """The parameters at the beginning and after each of five updates, without any mesh."""
    config = config_of(kind)
    plain = optax.chain(optax.clip_by_global_norm(_CLIP), _MAKE[kind](config.optimizer))

    @jax.jit
    def update(params, state, batch, rate):
        def loss(params):
            sums = MLM_NSP.forward(params, batch, config=config, key=None)
            return MLM_NSP.loss(sums, MLM_NSP.counts(batch))

        updates, state = plain.update(jax.grad(loss)(params), state, params)
        return jax.tree.map(lambda p, u: p + rate * u, params, updates), state

    params = bert.init_params(config.model, seed=config.seed)
    state = plain.init(params)
    found = [params]
    for step in range(5):
        params, state = update(params, state, batch_of(step), rate_at(step, kind))
        found.append(params)
    return found


@each_mesh
def test_training_is_plain_optax_at_the_rate_of_the_schedule(kind, shape):
    config = config_of(kind)
    found = train(config, shape, [batch_of(step) for step in range(5)])
    begun, *expected = by_plain_optax(kind)
    for step, params in enumerate(expected):
        ours, metrics = found[step]
        assert float(metrics["learning_rate"]) == pytest.approx(rate_at(step, kind), rel=1e-6)
        assert_close(ours.params, params, kind)
    moved = jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), expected[-1], begun)
    assert np.median(jax.tree.leaves(moved)) > 3e-4, "hardly anything moved"


def assert_close(ours, theirs, kind: str) -> None:
    for (path, a), b in zip(jax.tree.leaves_with_path(ours), jax.tree.leaves(theirs), strict=True):
        off = np.abs(a - np.asarray(b)) > 2e-6
        # Lion takes a sign: of a sum that is zero but for rounding, it may be either.
        allowed = 1e-4 * off.size if kind == "lion" else 0
        assert off.sum() <= allowed, (jax.tree_util.keystr(path), off.sum(), np.abs(a - b).max())


# --- bad updates ----------------------------------------------------------------------------------


@each_mesh
def test_a_bad_batch_leaves_every_bit_and_training_goes_on(kind, shape):
    config = config_of(kind)
    bad = batch_of(1) | {"mlm_weights": batch_of(1)["mlm_weights"] * np.float32("nan")}
    (before, _), (after, metrics), (last, good) = train(
        config, shape, [batch_of(0), bad, batch_of(2)]
    )
    assert float(metrics["applied"]) == 0 and np.isnan(metrics["loss"])
    assert int(after.step) == int(before.step) + 1
    assert_same(
        (after.params, after.opt_state, after.recent_norms),
        (before.params, before.opt_state, before.recent_norms),
    )
    assert float(good["applied"]) == 1
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(last.params))


# --- its state ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("there", "back"),
    [
        (_MESHES[0], _MESHES[2]),
        pytest.param(_MESHES[2], _MESHES[1], marks=pytest.mark.full),
    ],
)
def test_its_state_is_saved_and_restored_on_any_mesh(tmp_path, kind, there, back):
    config = config_of(kind)
    batches = [batch_of(step) for step in range(4)]
    states = [state for state, _ in train(config, back, batches)]
    saved = Checkpoints(tmp_path, CheckpointConfig())
    saved.save(states[1].to_mesh(mesh_of(there)), step=2)
    saved.close()
    restored = checkpoint.load_state(tmp_path, step=2, config=config, mesh=mesh_of(back))
    jax.tree.map(_require_layout, restored, TrainState.abstract(config, mesh_of(back)))
    assert_same(jax.device_get(restored), states[1])
    # It goes on as if nothing had been.
    (_, _), (end, _) = train(config, back, batches[2:], begin=restored)
    assert_same(end, states[3])


def test_what_is_large_of_it_is_stored_in_pieces():
    """Lion has one moment for each parameter, which lies as the parameter does."""
    OPTIMIZERS.register("test-lion", _MAKE["lion"])
    config, mesh = config_of("lion"), mesh_of((1, 4, 2))
    with jax.set_mesh(mesh):
        state = TrainState.initial(config, mesh)
    del OPTIMIZERS._entries["test-lion"]
    moments = [leaf.sharding for leaf in jax.tree.leaves(state.opt_state) if leaf.ndim]
    assert moments == [leaf.sharding for leaf in jax.tree.leaves(state.params)]
    large = [s for s in moments if "fsdp" in jax.tree.leaves(tuple(s.spec))]
    assert len(large) >= 3
