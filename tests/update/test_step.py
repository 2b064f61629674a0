"""The train step: any mesh, any number of slices, the same update."""

import dataclasses

import jax
import numpy as np
import pytest

from bert_jax.config import ComputeConfig, ModelConfig, OptimizerConfig, PhaseConfig, TrainConfig
from bert_jax.model import sharding
from bert_jax.objectives.mlm_nsp import MLM_NSP
from bert_jax.update.state import TrainState
from bert_jax.update.step import compile_lowered, lower_eval_step, lower_train_step
from tests.batches import random_batch

pytestmark = pytest.mark.core

_CONFIG = TrainConfig(
    model=ModelConfig(
        vocab_size=211,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=32,
    ),
    compute=ComputeConfig(dtype="float32"),
    optimizer=OptimizerConfig(learning_rate=1e-3, warmup_steps=5),
    phases=(PhaseConfig(sequence_length=32, steps=20, global_batch_size=16, max_predictions=5),),
)


def batch_of(seed: int) -> dict:
    return random_batch(rows=16, length=32, predictions=5, vocab_size=211, seed=seed)


def train(config: TrainConfig, *, devices: int, steps: int = 20, batches=batch_of):
    mesh = sharding.make_mesh(fsdp=devices, tensor=1, devices=jax.local_devices()[:devices])
    # Outside of the mesh: its operations are compiled one by one, for each mesh.
    state = TrainState.create(config).to_mesh(mesh)
    with jax.set_mesh(mesh):
        layout = sharding.batch_sharding(mesh)
        batch = jax.device_put(batches(0), layout)
        step = compile_lowered(lower_train_step(config, state, batch, objective=MLM_NSP))
        rows = []
        for number in range(steps):
            state, row = step(state, jax.device_put(batches(number), layout))
            rows.append({name: float(value) for name, value in row.items()})
    return jax.device_get(state), rows


def test_accumulation_changes_nothing():
    sliced = dataclasses.replace(
        _CONFIG,
        optimizer=dataclasses.replace(_CONFIG.optimizer, gradient_accumulation_steps=4),
    )
    whole, whole_rows = train(_CONFIG, devices=2, steps=5)
    parts, parts_rows = train(sliced, devices=2, steps=5)
    for a, b in zip(whole_rows, parts_rows, strict=True):
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-5)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), whole.params, parts.params
    )


def test_one_batch_can_be_learned_by_heart():
    plain = dataclasses.replace(_CONFIG.model, hidden_dropout_prob=0.0,
                                attention_probs_dropout_prob=0.0)  # fmt: skip
    config = dataclasses.replace(
        _CONFIG,
        model=plain,
        optimizer=OptimizerConfig(learning_rate=5e-3, warmup_steps=20, bias_correction=True),
        phases=(dataclasses.replace(_CONFIG.phases[0], steps=300),),
    )
    _, rows = train(config, devices=1, steps=300, batches=lambda _: batch_of(0))
    assert rows[-1]["loss"] < 0.1
    assert rows[-1]["mlm_accuracy"] == 1.0


def test_metrics_describe_the_step():
    _, rows = train(_CONFIG, devices=8, steps=2)
    assert rows[0]["learning_rate"] == 0.0, "the original's first update has rate 0"
    assert rows[1]["learning_rate"] == pytest.approx(1e-3 / 5)
    assert rows[0]["loss"] == pytest.approx(rows[0]["mlm_loss"] + rows[0]["nsp_loss"], rel=1e-6)
    assert {"mlm_accuracy", "nsp_accuracy", "grad_norm"} <= rows[0].keys()


def test_rows_of_weight_zero_count_for_nothing():
    mesh = sharding.make_mesh(fsdp=1, tensor=1, devices=jax.devices()[:1])
    batch = batch_of(0)
    padded = {name: np.concatenate([values, values[:5]]) for name, values in batch.items()}
    for name in ("mlm_weights", "nsp_weights"):
        padded[name][16:] = 0
    with jax.set_mesh(mesh):
        params = TrainState.create(_CONFIG).params
        # Under an explicit mesh jax 0.12 takes only arrays that say how they lie.
        sums, padded_sums = (
            compile_lowered(lower_eval_step(_CONFIG, params, arrays, objective=MLM_NSP))(
                params, arrays
            )
            for arrays in jax.device_put((batch, padded), sharding.batch_sharding(mesh))
        )
    for name, value in sums.items():
        assert float(value) == pytest.approx(float(padded_sums[name]), rel=1e-6)
    assert float(sums["nsp_count"]) == 16
