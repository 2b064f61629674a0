"""Heads of tasks begun from a masked-LM directory: as the classes of transformers begin and learn.

`tests/golden/make_task_heads.py` has the other side.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.config import ComputeConfig, TrainConfig
from bert_jax.data.tasks.encode_rows import Features, arrays_of
from bert_jax.data.tasks.packing import PackedBatches
from bert_jax.interchange import huggingface
from bert_jax.model import bert
from bert_jax.objectives.task import TaskObjective
from bert_jax.pretrained.load import load_checkpoint
from bert_jax.tasks import finetune
from tests.golden import make_task_heads
from tests.golden.make_task_heads import CASES, STEPS, classifier, masked_lm, rows_of
from tests.models import apply

_FLOAT32 = ComputeConfig(dtype="float32")


@pytest.fixture(scope="module")
def golden():
    return dict(np.load(make_task_heads.FILE))


def begun(case, folder):
    """The config and the parameters with which a fine-tuning begins, but for the classifier's."""
    source = load_checkpoint(masked_lm(folder, case))
    model = source.config.model
    assert model == case.model
    head = huggingface.with_classifier(model, source.config.head, case.head)
    config = dataclasses.replace(TrainConfig(), model=model, head=head, compute=_FLOAT32)
    params = jax.tree.map(np.asarray, finetune._beginning(config, source).params)
    last = case.head.parts[-1]
    outputs = params[last]["bias"].shape[0]
    params[last] |= classifier(outputs, model.hidden_size)
    if case.family == "EuroBert" and "pooler" in params:  # it has no head to begin from
        params["pooler"]["dense"] = classifier(model.hidden_size, model.hidden_size)
    return config, params


def features_of(case, step):
    rows = rows_of(case, step)
    is_token = (np.arange(32) < rows.lengths[:, None]).astype(np.float32)
    weights = is_token if rows.labels.shape == rows.ids.shape else np.ones(8, np.float32)
    return Features(rows.ids, np.zeros_like(rows.ids), rows.lengths, rows.labels, weights)


def batch_of(case, step):
    """Packed, where the loss is not over the tokens of a row."""
    features, rows = features_of(case, step), np.arange(8)
    if case.task == "QuestionAnswering":
        return arrays_of(features, rows, length=32)
    batch = PackedBatches(features, size=8)(rows)
    assert len(batch["input_ids"]) < 8
    return batch


@pytest.mark.parametrize("name", CASES)
def test_logits_are_those_of_their_class(golden, name, tmp_path):
    case = CASES[name]
    config, params = begun(case, tmp_path)
    batch = arrays_of(features_of(case, 0), np.arange(8), length=32)
    with jax.default_matmul_precision("highest"):
        outputs = apply(params, batch, config=config.model, head=config.head, compute=_FLOAT32)
    ours = outputs[TaskObjective(config.head).output]
    seen = np.s_[:] if ours.ndim == 2 else batch["sequence_ids"] > 0
    for version in case.versions:
        theirs = golden[f"{version}.{name}.logits"]
        assert np.ptp(theirs) > 1
        np.testing.assert_allclose(ours[seen], theirs[seen], atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.is_trained])
def test_fifty_losses_are_those_of_their_class(golden, name, tmp_path):
    case = CASES[name]
    config, params = begun(case, tmp_path)
    objective = TaskObjective(config.head)

    def loss_of(params, batch):
        outputs = bert.apply(params, batch, config=config.model, head=config.head, compute=_FLOAT32)
        return objective.sums(outputs, batch)["task_loss"] / objective.counts(batch)["task"]

    def step(params, batch):
        loss, gradients = jax.value_and_grad(loss_of)(params, batch)
        return jax.tree.map(lambda p, g: p - case.rate * g, params, gradients), loss

    batches = [batch_of(case, number) for number in range(STEPS)]
    stacked = {key: jnp.stack([batch[key] for batch in batches]) for key in batches[0]}
    with jax.default_matmul_precision("highest"):
        ours = jax.jit(lambda p, b: jax.lax.scan(step, p, b)[1])(params, stacked)
    for version in case.versions:
        theirs = golden[f"{version}.{name}.losses"]
        assert theirs[-5:].mean() < 0.9 * theirs[:5].mean()
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)
