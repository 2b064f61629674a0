"""The closed form of FLOPs against every matrix product of the traced train step."""

import math

import jax
import pytest

from bert_jax import resolve
from bert_jax.model import sharding
from bert_jax.training import feed, metrics
from bert_jax.training.state import TrainState
from bert_jax.training.step import train_step


def product_flops(jaxpr) -> int:
    """Of all products in a jaxpr and in what it calls; a loop's body as often as it runs."""
    total = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            (contract, _), _ = equation.params["dimension_numbers"]
            left = equation.invars[0].aval.shape
            inner = math.prod(left[i] for i in contract)
            total += 2 * inner * math.prod(equation.outvars[0].aval.shape)
        times = equation.params.get("length", 1) if equation.primitive.name == "scan" else 1
        for value in equation.params.values():
            inside = getattr(value, "jaxpr", value)
            if hasattr(inside, "eqns"):
                total += times * product_flops(inside)
    return total


@pytest.mark.parametrize(
    ("name", "phase_index", "layers"),
    [
        ("bert_base", 0, "unroll"),
        ("bert_base", 1, "scan"),
        ("bert_large", 0, "scan"),
        ("bert_large", 1, "scan"),
    ],
)
def test_the_closed_form_is_the_train_steps_products(name, phase_index, layers):
    """BERT-Base and -Large as published, both phases: nothing is computed, only traced.

    The closed form counts three forward passes. Left out of it on purpose: rows at masked positions
    are picked by a product with a one-hot matrix, and their gradients are put back by another. That
    is bookkeeping, not the model's work, and less than 0.1 %. The embedding's lookup and its
    gradient are a gather and a scatter, in neither count.
    """
    config = resolve.load(name, [f"compute.layers={layers}"])
    phase = config.phases[phase_index]
    mesh = sharding.make_mesh(fsdp=8, tensor=1)
    with jax.set_mesh(mesh):
        state = TrainState.abstract(config, mesh)
        batch = feed.abstract_batch(phase, mesh=mesh)
        jaxpr = jax.make_jaxpr(lambda s, b: train_step(s, b, config=config))(state, batch)
    found = product_flops(jaxpr.jaxpr)
    closed = metrics.train_flops(config.model, phase)
    assert found == pytest.approx(closed, rel=1e-3)
    picked = phase.max_predictions + 1  # and [CLS], for the pooler
    one_pick = 2 * picked * phase.sequence_length * config.model.hidden_size
    assert found - closed == 2 * phase.global_batch_size * one_pick, "there and back"
