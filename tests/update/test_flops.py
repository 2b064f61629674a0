"""The closed form of FLOPs against every matrix product of the traced train step."""

import math

import jax
import pytest

from bert_jax import config_loader
from bert_jax.model import layers
from bert_jax.objectives.mlm_nsp import MLM_NSP
from bert_jax.training import device_feed
from bert_jax.update.flops import peak_flops, train_flops
from bert_jax.update.state import TrainState
from bert_jax.update.step import train_step
from tests.batches import mesh_of


def product_flops(jaxpr) -> int:
    """Returns the FLOPs of the products in a jaxpr and what it calls; of loops, all rounds."""
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


# As the first case, but for the loop: fewer blocks show that as well.
_UNROLLED = ["compute.layer_loop=unroll", "model.num_hidden_layers=3"]
_GATED = [
    "model.feed_forward=gated",
    "model.norm_placement=pre",
    "model.position_embedding_type=rotary",
]
# Two blocks of 16 keys for each query; layers 0 and 3 are global.
_LOCAL = [
    "compute.layer_loop=unroll",
    "model.num_hidden_layers=4",
    "model.attention_window=16",
    "model.global_attention_every_n_layers=3",
    "model.attention_probs_dropout_prob=0",
]


@pytest.mark.parametrize(
    ("name", "phase_index", "changes"),
    [
        ("bert_base", 0, ["compute.layer_loop=scan"]),
        ("bert_large", 1, ["compute.layer_loop=scan"]),
        ("bert_base", 0, _UNROLLED),
        ("bert_base", 0, _LOCAL),
        ("bert_base", 0, [*_UNROLLED, *_GATED]),
        ("bert_base", 0, [*_UNROLLED, "model.position_embedding_type=relative_key"]),
        ("bert_base", 0, [*_UNROLLED, "model.position_embedding_type=relative_key_query"]),
    ],
)
def test_the_closed_form_is_the_train_steps_products(name, phase_index, changes, monkeypatch):
    """BERT-Base and -Large as published, both phases: nothing is computed, only traced.

    The closed form counts three forward passes. Left out of it on purpose: rows at masked positions
    are picked by a product with a one-hot matrix, and their gradients are put back by another. That
    is bookkeeping, not the model's work, and less than 0.1 %. The embedding's lookup and its
    gradient are a gather and a scatter, in neither count.
    """
    # A CPU multiplies with ones to sum up the gradient of a bias.
    monkeypatch.setattr(layers, "is_on_cpu", lambda: False)
    config = config_loader.load_config(name, changes)
    phase = config.phases[phase_index]
    mesh = mesh_of((1, 8, 1))
    with jax.set_mesh(mesh):
        state = TrainState.abstract(config, mesh)
        batch = device_feed.abstract_batch(phase, fields=MLM_NSP.fields, mesh=mesh)
        jaxpr = jax.make_jaxpr(lambda s, b: train_step(s, b, config=config, objective=MLM_NSP))(
            state, batch
        )
    found = product_flops(jaxpr.jaxpr)
    closed = train_flops(MLM_NSP, config.model, phase)
    assert found == pytest.approx(closed, rel=1e-3)
    picked = phase.max_predictions + 1  # and [CLS], for the pooler
    one_pick = 2 * picked * phase.sequence_length * config.model.hidden_size
    assert found - closed == 2 * phase.global_batch_size * one_pick, "there and back"


def test_the_speed_of_this_machine_is_measured(eight_devices):
    """Eight devices that share its cores are not eight times as fast."""
    assert jax.device_count() == 8
    peak = peak_flops("float32")
    assert 1e8 < peak < 1e14


def test_an_accelerator_is_looked_up(monkeypatch):
    class Device:
        device_kind = "TPU v3"

    monkeypatch.setattr(jax, "devices", lambda: [Device()] * 64)
    monkeypatch.setattr(jax, "device_count", lambda: 64)
    # 32 chips of 123 TFLOP/s, two devices each.
    assert peak_flops("bfloat16") == pytest.approx(32 * 123e12)
