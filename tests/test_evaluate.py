"""Held-out evaluation: one number, however the set is cut and wherever it runs."""

import dataclasses
import json
import math

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding

from bert_jax.data.corpus.store import open_corpus
from bert_jax.data.pretraining.pipeline import EvaluationSet
from bert_jax.model import bert, sharding
from bert_jax.objectives.mlm_nsp import MLM_NSP
from bert_jax.training import evaluate
from bert_jax.training.evaluate import HeldOut, evaluate_checkpoint
from bert_jax.workdir import log_reader
from tests.tiny_corpus import tiny_config

_CONFIG = tiny_config()


@pytest.fixture(scope="module")
def params():
    """Far from the beginning, where all losses are alike."""
    fresh = jax.device_get(jax.jit(lambda: bert.init_params(_CONFIG.model, seed=1))())
    return jax.tree.map(lambda x: 6 * x, fresh)


def evaluated(params, corpus, *, devices: int, batch_size: int, **changes) -> dict[str, float]:
    options = dataclasses.replace(_CONFIG.evaluation, batch_size=batch_size, **changes)
    config = dataclasses.replace(_CONFIG, evaluation=options)
    mesh = sharding.make_mesh(fsdp=devices, tensor=1, devices=jax.local_devices()[:devices])
    with jax.set_mesh(mesh):
        placed = jax.device_put(params, NamedSharding(mesh, jax.P()))
        held_out = HeldOut(
            config, config.phases[0], corpus=open_corpus(corpus), mesh=mesh, params=placed
        )
        scores = held_out.run(placed)
    assert scores is not None and scores.keys() == {"validation"}
    return scores["validation"]


def by_hand(params, corpus, *, num_examples: int) -> dict[str, float]:
    """The definition: one batch of all examples, means over the tokens that were masked."""
    opened, phase = open_corpus(corpus), _CONFIG.phases[0]
    examples = EvaluationSet(
        opened.validation,
        collator=MLM_NSP,
        vocabulary=opened.vocabulary,
        options=_CONFIG.data,
        sequence_length=phase.sequence_length,
        max_predictions=phase.max_predictions,
        num_examples=num_examples,
        batch_size=num_examples,
        seed=evaluate.EVALUATION_SEED,
    )
    assert examples.num_examples == num_examples
    batch = examples.batch_at(0, range(num_examples))
    mesh = sharding.make_mesh(fsdp=1, tensor=1, devices=jax.devices()[:1])
    with jax.set_mesh(mesh):
        outputs = jax.jit(
            lambda p, b: bert.apply(p, b, config=_CONFIG.model, compute=_CONFIG.compute)
        )(params, batch)
    result = {}
    for name, targets in (("mlm", batch["mlm_targets"]), ("nsp", batch["nsp_labels"])):
        logits = np.asarray(outputs[f"{name}_logits"], np.float64)
        counted = batch[f"{name}_weights"] == 1
        chosen = np.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
        loss = np.log(np.exp(logits).sum(-1)) - chosen
        result[f"{name}_loss"] = loss[counted].mean()
        result[f"{name}_accuracy"] = (logits.argmax(-1) == targets)[counted].mean()
    result["loss"] = result["mlm_loss"] + result["nsp_loss"]
    return result | {"perplexity": math.exp(result["mlm_loss"])}


@pytest.mark.parametrize("devices, batch_size", [(1, 7), (1, 64), (8, 7), (8, 64)])
def test_the_numbers_are_those_of_the_definition(params, corpus, devices, batch_size):
    """50 examples divide by none of these batches: the last is filled with what counts for 0."""
    expected = by_hand(params, corpus, num_examples=50)
    values = evaluated(params, corpus, devices=devices, batch_size=batch_size)
    assert values.keys() == expected.keys()
    for name, value in values.items():
        assert value == pytest.approx(expected[name], rel=2e-6), name
    assert 0 < values["mlm_accuracy"] < 1 and 0 < values["nsp_accuracy"] < 1


def test_more_examples_than_there_are_is_all_of_them(params, corpus):
    few = evaluated(params, corpus, devices=1, batch_size=64)
    every = evaluated(params, corpus, devices=1, batch_size=64, num_examples=10**6)
    again = evaluated(params, corpus, devices=1, batch_size=64, num_examples=10**7)
    assert few != every == again


def test_runs_of_other_seeds_see_the_same_examples(params, corpus):
    mesh = sharding.make_mesh(fsdp=1, tensor=1, devices=jax.devices()[:1])
    results = []
    with jax.set_mesh(mesh):
        for seed in (0, 1):
            held_out = HeldOut(
                dataclasses.replace(_CONFIG, seed=seed),
                _CONFIG.phases[0],
                corpus=open_corpus(corpus),
                mesh=mesh,
                params=params,
            )
            results.append(held_out.run(params))
    assert results[0] == results[1] is not None


def test_a_phases_own_mask_rate_is_not_that_of_its_evaluation(params, corpus):
    """Else the curve would jump where the rate changes, or the room for predictions."""
    mesh = sharding.make_mesh(fsdp=1, tensor=1, devices=jax.devices()[:1])
    usual = _CONFIG.phases[0]
    results = []
    with jax.set_mesh(mesh):
        for changes in ({}, {"masked_lm_prob": 0.4, "max_predictions": 19}):
            phase = dataclasses.replace(usual, **changes)
            corpus_ = open_corpus(corpus)
            held_out = HeldOut(_CONFIG, phase, corpus=corpus_, mesh=mesh, params=params)
            results.append(held_out.run(params))
    assert results[0] == results[1] is not None


def test_nothing_counted_is_a_loss_of_zero():
    sums = {f"{n}_{k}": 0.0 for n in ("mlm", "nsp") for k in ("loss", "hits", "count")}
    assert MLM_NSP.summarise(sums)["loss"] == 0.0
    assert MLM_NSP.summarise(sums)["perplexity"] == 1.0


def test_a_hopeless_loss_has_a_perplexity_that_json_can_write():
    sums = {"mlm_loss": 1e6, "mlm_hits": 0.0, "mlm_count": 10.0}
    sums |= {"nsp_loss": 1.0, "nsp_hits": 1.0, "nsp_count": 2.0}
    values = MLM_NSP.summarise(sums)
    assert values["mlm_loss"] == pytest.approx(1e5)
    assert json.loads(json.dumps(values, allow_nan=False)) == values


@pytest.mark.core
def test_any_step_of_a_workdir_is_evaluated_as_during_the_run(trained, corpus):
    rows = [r for r in log_reader.read_rows(trained) if r.get("split") == "validation"]
    by_step = {row["step"]: row for row in rows}
    last = max(by_step)
    assert last == _CONFIG.total_steps
    for checkpoint in (trained, trained / "checkpoints" / str(last)):
        result = evaluate_checkpoint(checkpoint, corpus)
        assert result["step"] == last
        for name in ("loss", "mlm_loss", "mlm_accuracy", "nsp_loss", "nsp_accuracy", "perplexity"):
            assert result[name] == by_step[last][name]
