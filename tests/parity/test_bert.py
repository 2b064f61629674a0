"""Forward pass, gradients and 100 steps of training against transformers on torch."""

import dataclasses

import jax
import numpy as np
import pytest

from bert_jax.config import ComputeConfig, ModelConfig, OptimizerConfig, PhaseConfig, TrainConfig
from bert_jax.interchange.families import BERT_FAMILY
from bert_jax.model import bert, sharding
from bert_jax.objectives.mlm_nsp import MLM_NSP
from bert_jax.update.state import TrainState
from bert_jax.update.step import train_step
from tests.batches import random_batch

torch = pytest.importorskip("torch", reason="needs the 'parity' extra")
pytestmark = pytest.mark.parity

_NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
_TINY = ModelConfig(
    vocab_size=1009,
    hidden_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=96,
    max_position_embeddings=64,
    **_NO_DROPOUT,
)
_SIZES = {
    "tiny": (_TINY, 5, 32, 6),
    "small": (
        dataclasses.replace(
            _TINY,
            vocab_size=8192,
            hidden_size=256,
            num_hidden_layers=4,
            num_attention_heads=4,
            intermediate_size=1024,
            max_position_embeddings=128,
            hidden_act="gelu",
        ),
        4,
        128,
        20,
    ),
    "base": (ModelConfig(hidden_act="gelu", **_NO_DROPOUT), 2, 64, 10),
}


@pytest.mark.parametrize("size", _SIZES)
def test_logits_and_gradients_equal_transformers(size):
    from tests.torch_reference import torch_loss, torch_model

    model, rows, length, predictions = _SIZES[size]
    batch = random_batch(
        rows=rows, length=length, predictions=predictions, vocab_size=model.vocab_size
    )
    params = bert.init_params(model, seed=3)

    def loss(params):
        outputs = bert.apply(params, batch, config=model, compute=ComputeConfig(dtype="float32"))
        return MLM_NSP.metrics(MLM_NSP.sums(outputs, batch))["loss"], outputs

    mesh = sharding.make_mesh(fsdp=1, tensor=1, devices=jax.devices()[:1])
    with jax.set_mesh(mesh):
        (our_loss, outputs), gradients = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)

    theirs = torch_model(params, model)
    their_out = torch_loss(theirs, batch)
    their_out["loss"].backward()

    picked = np.take_along_axis(
        their_out["mlm"].detach().numpy(), batch["mlm_positions"][:, :, None], axis=1
    )
    np.testing.assert_allclose(outputs["mlm_logits"], picked, atol=1e-4, rtol=0)
    np.testing.assert_allclose(
        outputs["nsp_logits"][:, 0], their_out["nsp"].detach().numpy(), atol=1e-4, rtol=0
    )
    assert abs(float(our_loss) - their_out["loss"].item()) < 1e-5

    ours = BERT_FAMILY.to_tensors(gradients)
    references = {n: p.grad.numpy() for n, p in theirs.named_parameters()}
    global_norm = np.sqrt(sum(np.sum(np.square(g, dtype=np.float64)) for g in ours.values()))
    for name, gradient in ours.items():
        reference = references[name]
        bound = max(np.linalg.norm(reference), 1e-6 * global_norm)
        assert np.linalg.norm(gradient - reference) <= 1e-4 * bound, name
    # The two tied copies are one parameter there: nothing of theirs is left unchecked.
    assert set(references) == set(ours)


def test_training_curve_equals_torch():
    """100 updates from the same weights on the same batches, with the same update rule."""
    from tests.torch_reference import torch_loss, torch_model

    steps = 100
    config = TrainConfig(
        model=_TINY,
        compute=ComputeConfig(dtype="float32"),
        optimizer=OptimizerConfig(learning_rate=1e-3, warmup_steps=10),
        phases=(
            PhaseConfig(sequence_length=32, steps=steps, global_batch_size=8, max_predictions=5),
        ),
    )
    batches = [
        random_batch(rows=8, length=32, predictions=5, vocab_size=_TINY.vocab_size, seed=s % 10)
        for s in range(steps)
    ]
    params = bert.init_params(_TINY, seed=1)
    theirs = torch_model(params, _TINY)
    mesh = sharding.make_mesh(fsdp=1, tensor=1, devices=jax.devices()[:1])
    with jax.set_mesh(mesh):
        state = TrainState.create(config, params).to_mesh(mesh)
        step = jax.jit(lambda s, b: train_step(s, b, config=config, objective=MLM_NSP))
        our_losses = []
        for batch in batches:
            state, metrics = step(state, batch)
            our_losses.append(float(metrics["loss"]))

    their_losses = _train_torch(theirs, batches, torch_loss, config)
    assert our_losses[-1] < our_losses[0] - 1.0, "nothing was learned: the comparison is empty"
    np.testing.assert_allclose(our_losses, their_losses, atol=1e-3, rtol=0)


def _train_torch(model, batches, torch_loss, config) -> list[float]:
    """The rule of google-research/bert optimization.py, written with torch's tensors."""
    rule, total = config.optimizer, config.total_steps
    names = {id(p): n for n, p in model.named_parameters()}
    moments = {id(p): (torch.zeros_like(p), torch.zeros_like(p)) for p in model.parameters()}
    curve = []
    for step, batch in enumerate(batches):
        model.zero_grad()
        loss = torch_loss(model, batch)["loss"]
        loss.backward()
        curve.append(loss.item())
        torch.nn.utils.clip_grad_norm_(model.parameters(), rule.clip_norm)
        rate = rule.learning_rate * (1 - step / total)
        if step < rule.warmup_steps:
            rate = rule.learning_rate * step / rule.warmup_steps
        with torch.no_grad():
            for p in model.parameters():
                m, v = moments[id(p)]
                m.mul_(rule.beta1).add_(p.grad, alpha=1 - rule.beta1)
                v.mul_(rule.beta2).addcmul_(p.grad, p.grad, value=1 - rule.beta2)
                update = m / (v.sqrt() + rule.epsilon)
                name = names[id(p)]
                if "LayerNorm" not in name and "bias" not in name:
                    update = update + rule.weight_decay * p
                p.sub_(rate * update)
    return curve
