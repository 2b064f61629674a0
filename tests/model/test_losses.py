"""The loss of masked words with z-loss, and the output bias that a run begins with."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bert_jax
from bert_jax import config_loader
from bert_jax.config import HeadConfig, TrainConfig
from bert_jax.config_checks import complete, validate
from bert_jax.data.corpus.store import open_corpus, token_counts
from bert_jax.errors import UsageError
from bert_jax.interchange import huggingface
from bert_jax.model import sharding
from bert_jax.objectives.mlm import MLM
from bert_jax.training.initialization import Initialization, fresh_state
from tests.batches import mesh_of
from tests.tiny_corpus import tiny_config

_Z = 0.05  # large, so that its part of the gradient is seen


def _batch() -> tuple[np.ndarray, dict[str, np.ndarray]]:
    draw = np.random.default_rng(0)
    logits = 3 + 2 * draw.normal(size=(2, 3, 5))
    weights = np.array([[1, 1, 0], [1, 0, 0]], np.float32)
    return logits, {"mlm_targets": draw.integers(0, 5, (2, 3)), "mlm_weights": weights}


def _penalised(logits: np.ndarray, batch: dict[str, np.ndarray]) -> float:
    """The formula, in float64."""
    normaliser = np.log(np.exp(logits).sum(-1))
    chosen = np.take_along_axis(logits, batch["mlm_targets"][..., None], axis=-1)[..., 0]
    return float((batch["mlm_weights"] * (normaliser - chosen + _Z * normaliser**2)).sum())


def _sums(logits, batch, **options):
    return MLM.sums({"mlm_logits": jnp.asarray(logits, jnp.float32)}, batch, **options)


def test_the_gradient_of_z_loss_is_that_of_its_formula():
    logits, batch = _batch()
    with jax.set_mesh(sharding.make_mesh(fsdp=1, tensor=1, devices=jax.devices()[:1])):

        def gradient_and_sums(**options):
            def loss(logits):
                sums = _sums(logits, batch, **options)
                return sums["mlm_loss"], sums

            return jax.jit(jax.grad(loss, has_aux=True))(jnp.float32(logits))

        (without, plain), (ours, penalised) = gradient_and_sums(), gradient_and_sums(z_loss=_Z)
    step, expected = 1e-5, np.zeros_like(logits)
    for place in np.ndindex(*logits.shape):
        moved = np.zeros_like(logits)
        moved[place] = step
        there, back = (_penalised(logits + s * moved, batch) for s in (1, -1))
        expected[place] = (there - back) / (2 * step)
    np.testing.assert_allclose(ours, expected, atol=1e-5)
    assert np.abs(ours - without).max() > 0.1
    # What is logged is the cross-entropy.
    assert {k: float(v) for k, v in plain.items()} == {k: float(v) for k, v in penalised.items()}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (['head.parts=["token_classifier"]'], "z_loss is 0.0001, which a task ignores"),
        (["objective=rtd", 'head.parts=["generator","discriminator"]'], "objective rtd ignores"),
        (["head.parts=[]", "output_bias=log_frequency"], "output_bias is log_frequency, but head"),
        (["output_bias=frequency"], "expected one of zeros, log_frequency"),
        (["optimizer.z_loss=-1"], "optimizer.z_loss: expected float >= 0"),
    ],
)
def test_where_they_mean_nothing_they_are_refused(changes, message):
    config = config_loader.override(TrainConfig(), ["optimizer.z_loss=1e-4"])
    assert validate(config) is config
    with pytest.raises(UsageError, match=message):
        validate(config_loader.override(config, changes))


def test_the_output_bias_begins_at_the_log_of_the_frequencies(corpus):
    opened = open_corpus(corpus)
    config = tiny_config(output_bias="log_frequency")
    config = dataclasses.replace(config, model=dataclasses.replace(config.model, vocab_size=250))
    mesh = mesh_of((1, 2, 4))
    with jax.set_mesh(mesh):
        state, zeros = (
            fresh_state(c, opened, mesh)
            for c in (config, dataclasses.replace(config, output_bias="zeros"))
        )
    bias, before = state.params["mlm"]["bias"], zeros.params["mlm"]["bias"]
    assert bias.sharding == before.sharding and bias.dtype == before.dtype
    tokens = np.concatenate(opened.train.shards)
    counts = np.bincount(tokens, minlength=250)
    assert np.array_equal(token_counts(opened.train, 250), counts)
    np.testing.assert_allclose(bias, np.log((counts + 1) / (tokens.size + 250)), rtol=1e-6)
    # Nothing else is another number.
    zeros.params["mlm"]["bias"] = bias
    jax.tree.map(np.testing.assert_array_equal, state.params, zeros.params)


def test_a_generators_output_bias_begins_there_too(corpus):
    opened = open_corpus(corpus)
    mesh = mesh_of((1, 2, 1))
    config = complete(tiny_config(objective="rtd", output_bias="log_frequency"))
    with jax.set_mesh(mesh):
        params = fresh_state(config, opened, mesh).params
    assert "mlm" not in params
    tokens = np.concatenate(opened.train.shards)
    shares = (np.bincount(tokens, minlength=240) + 1) / (tokens.size + 240)
    np.testing.assert_allclose(params["generator"]["mlm"]["bias"], np.log(shares), rtol=1e-6)


@pytest.mark.parametrize("has_bias", [True, False])
def test_a_checkpoints_bias_is_its_own(trained, corpus, tmp_path, has_bias, caplog):
    """Without a masked-LM head in the checkpoint, the bias is that of a fresh run."""
    source = trained
    if not has_bias:
        model = bert_jax.load(trained)
        parts = HeadConfig(parts=("pooler",))
        params = {part: model.params[part] for part in ("encoder", "pooler")}
        source = tmp_path / "encoder"
        huggingface.write(
            source, params, model.config.model, head=parts, tokenizer=model.source.tokenizer
        )
    config = tiny_config(output_bias="log_frequency")
    beginning, opened = Initialization(source, allow_missing_heads=True), open_corpus(corpus)
    mesh = sharding.make_mesh(fsdp=1, tensor=1, devices=jax.devices()[:1])
    with jax.set_mesh(mesh), caplog.at_level("INFO", "bert_jax"):
        config = beginning.config_of(config, tmp_path / "run")
        bias = np.asarray(beginning.state(config, opened, mesh).params["mlm"]["bias"])
        fresh = np.asarray(fresh_state(config, opened, mesh).params["mlm"]["bias"])
    wanted = np.asarray(bert_jax.load(trained).params["mlm"]["bias"]) if has_bias else fresh
    np.testing.assert_array_equal(bias, wanted)
    said = "is the checkpoint's" if has_bias else "is initialized with log frequencies"
    assert f"the output bias {said}" in caplog.text
