"""StableAdamW over a change of phase: a ModernBERT trained beside torch and torch-optimi."""

import jax
import numpy as np
import safetensors.numpy

from bert_jax.config_checks import complete, validate
from bert_jax.interchange import huggingface
from bert_jax.model.sharding import batch_sharding
from bert_jax.registry import OBJECTIVES
from bert_jax.update.state import TrainState
from bert_jax.update.step import train_step
from tests.batches import mesh_of
from tests.golden.make_modernbert import HEAD, MODEL, params, sample
from tests.golden.make_modernbert_training import CONFIG, FILE, batch
from tests.models import vocabulary


def test_a_hundred_updates_with_a_change_of_phase_are_those_of_torch(tmp_path):
    """Loss by loss, and every weight at the end (tests/golden/make_modernbert_training.py)."""
    config = validate(complete(CONFIG))
    objective, expected = OBJECTIVES[config.objective], np.load(FILE)
    losses, mesh = [], mesh_of(1)
    with jax.set_mesh(mesh):
        state = TrainState.create(config, params())
        steps = [
            jax.jit(
                lambda state, batch, phase=phase: train_step(
                    state, batch, config=config, objective=objective, phase=phase
                )
            )
            for phase in range(2)
        ]
        for step in range(config.total_steps):
            rows = jax.device_put(batch(step), batch_sharding(mesh))
            state, metrics = steps[config.phase_of(step)](state, rows)
            losses.append(float(metrics["loss"]))
    assert losses[0] > 4 and losses[-1] < losses[59] < 3.5
    np.testing.assert_allclose(losses, expected["losses"], rtol=1e-4)
    words = vocabulary(tmp_path / "words")
    huggingface.write(tmp_path / "hf", state.params, MODEL, tokenizer=words, head=HEAD)
    for name, weights in safetensors.numpy.load_file(tmp_path / "hf" / "model.safetensors").items():
        off = np.abs(sample(weights) - expected[f"weights.{name}"]).max()
        assert off <= 1e-4 * expected[f"largest.{name}"], name
