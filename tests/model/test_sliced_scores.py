"""The loss of masked words in slices of the vocabulary: that of whole scores, in less memory."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax import config_loader
from bert_jax.config import TrainConfig
from bert_jax.config_checks import validate
from bert_jax.errors import UsageError
from bert_jax.model import sharding
from bert_jax.model.heads.sliced_scores import SlicedScores
from bert_jax.model.layers import split_rows
from bert_jax.objectives.mlm import MLM
from tests.batches import mesh_of

_WORDS = 211  # a prime: neither slices nor devices divide it
_Z = 0.05  # large, so that its part of the gradient is seen


def _factors() -> tuple[tuple[np.ndarray, ...], dict[str, np.ndarray]]:
    draw = np.random.default_rng(0)
    x, table = draw.normal(size=(8, 5, 16)), draw.normal(size=(_WORDS, 16))
    bias = draw.normal(size=_WORDS)
    targets = draw.integers(0, _WORDS, (8, 5))
    targets[0, :4] = (0, _WORDS - 1, np.argmax(x[0, 2] @ table.T + bias), 53)
    weights = (draw.random((8, 5)) < 0.7).astype(np.float32)
    weights[0, :4] = 1
    batch = {"mlm_targets": targets.astype(np.int32), "mlm_weights": weights}
    return tuple(each.astype(np.float32) for each in (x, table, bias)), batch


def _sums(factors, batch, slices, z_loss, is_summed_late=False):
    x, table, bias = factors
    if is_summed_late:  # as tables are that are stored in pieces
        table = jax.reshard(table, jax.P(reduced={*sharding.BATCH}))
    scores = SlicedScores(x, split_rows(table, fill=0), split_rows(bias, fill=-jnp.inf), slices)
    sums = MLM.sums({"mlm_scores": scores}, batch, z_loss=z_loss)
    return sums["mlm_loss"], sums


def _formula(factors, batch, z_loss) -> tuple[dict[str, float], list[np.ndarray]]:
    """Sums and derivatives by hand, in float64."""
    x, table, bias = (each.astype(np.float64) for each in factors)
    weights, targets = batch["mlm_weights"].astype(np.float64), batch["mlm_targets"]
    scores = x @ table.T + bias
    normaliser = np.log(np.exp(scores).sum(-1))
    chosen = np.take_along_axis(scores, targets[..., None], axis=-1)[..., 0]
    sums = {
        "mlm_loss": (weights * (normaliser - chosen)).sum(),
        "mlm_hits": (weights * (scores.argmax(-1) == targets)).sum(),
        "mlm_count": weights.sum(),
    }
    probabilities = np.exp(scores - normaliser[..., None])
    slope = probabilities * (1 + 2 * z_loss * normaliser)[..., None]
    slope = weights[..., None] * (slope - np.eye(_WORDS)[targets])
    gradients = [slope @ table, np.einsum("bmv,bmd->vd", slope, x), slope.sum((0, 1))]
    return sums, gradients


@pytest.mark.parametrize(
    ("shape", "slices", "z_loss"),
    [
        (None, 4, 0.0),
        (None, 300, _Z),  # more slices than sub-words
        ((1, 1, 1), 2, _Z),
        ((1, 8, 1), 4, _Z),
        ((2, 2, 2), 4, _Z),
        ((1, 2, 4), 5, 0.0),
    ],
    ids=str,
)
def test_it_is_the_formula_on_any_mesh(shape, slices, z_loss):
    factors, batch = _factors()
    expected, slopes = _formula(factors, batch, z_loss)
    assert expected["mlm_hits"] >= 1
    is_cut = shape not in (None, (1, 1, 1))
    for is_summed_late in (False, True) if is_cut else (False,):
        sums = partial(_sums, slices=slices, z_loss=z_loss, is_summed_late=is_summed_late)
        value = jax.jit(jax.value_and_grad(sums, has_aux=True))
        if shape is None:
            (_, found), gradients = value(factors, batch)
        else:
            mesh = mesh_of(shape)
            with jax.set_mesh(mesh):
                whole = jax.NamedSharding(mesh, jax.P())
                layouts = (sharding.batch_sharding(mesh), whole, whole)
                placed = tuple(map(jax.device_put, factors, layouts))
                (_, found), gradients = value(placed, jax.device_put(batch, layouts[0]))
        for name, number in expected.items():
            assert float(found[name]) == pytest.approx(number, rel=1e-6), name
        for ours, theirs in zip(gradients, slopes, strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-5 * np.abs(theirs).max())


def test_the_tables_gradient_is_rounded_after_the_sum_over_devices():
    """As that of whole scores is: in bfloat16 four devices round as often as one."""
    (x, table, bias), batch = _factors()
    factors = (*(jnp.asarray(each, jnp.bfloat16) for each in (x, table)), jnp.asarray(bias))
    gradient = jax.jit(jax.grad(lambda *a: _sums(a[0], a[1], 4, 0.0)[0]))
    alone = gradient(factors, batch)[1]
    mesh = mesh_of(4)
    with jax.set_mesh(mesh):
        rows, whole = sharding.batch_sharding(mesh), jax.NamedSharding(mesh, jax.P())
        placed = tuple(map(jax.device_put, factors, (rows, whole, whole)))
        together = gradient(placed, jax.device_put(batch, rows))[1]
    assert together.dtype == jnp.bfloat16
    assert np.mean(np.asarray(together) == np.asarray(alone)) > 0.99


@pytest.mark.parametrize("words", [50_368, 256_000])
def test_its_memory_is_an_eighth_of_whole_scores(words):
    """By the compiler, beside arguments and gradients: 2,458 predictions are 30 % of 8,192."""
    predictions, width = 2458, 64
    batch = {"mlm_targets": (1, predictions), "mlm_weights": (1, predictions)}
    batch = {
        name: jax.ShapeDtypeStruct(shape, jnp.int32 if "targets" in name else jnp.float32)
        for name, shape in batch.items()
    }
    shapes = ((1, predictions, width), (words, width), (words,))
    factors = tuple(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)

    def temporary(slices):
        loss = partial(_sums, slices=slices, z_loss=_Z)
        compiled = jax.jit(jax.value_and_grad(loss, has_aux=True)).lower(factors, batch).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    whole = predictions * words * 4
    assert temporary(slices=32) <= whole / 8
    assert temporary(slices=1) > whole / 2, "the analysis does not see the scores"


def test_an_objective_that_reads_whole_scores_is_refused():
    changes = ["objective=rtd", 'head.parts=["generator","discriminator"]']
    config = config_loader.override(TrainConfig(), ["compute.loss_slices=8"])
    assert validate(config) is config
    with pytest.raises(UsageError, match="loss_slices is above 1; objective rtd needs 1"):
        validate(config_loader.override(config, changes))
