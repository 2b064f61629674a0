"""Fine-tuning without dropout, and vectors, beside transformers on torch."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.config import ComputeConfig, OptimizerConfig, PhaseConfig, TrainConfig
from bert_jax.data.tasks.encode_rows import Batches, training_rows
from bert_jax.data.tasks.packing import PackedBatches
from bert_jax.data.tokenizer.tokenizer import load_tokenizer
from bert_jax.inference.embed import embed
from bert_jax.interchange import huggingface
from bert_jax.interchange.families import BERT_FAMILY
from bert_jax.model import bert, sharding
from bert_jax.model.dropout import DropoutKey
from bert_jax.objectives.task import TaskObjective
from bert_jax.registry import TASKS
from bert_jax.tasks.task_data import Sources, load_task
from bert_jax.update.layer_rates import layer_rates
from bert_jax.update.state import TrainState
from bert_jax.update.step import train_step
from tests import tiny_tasks

torch = pytest.importorskip("torch", reason="needs the 'parity' extra")
pytestmark = pytest.mark.parity


def _one_device():
    return sharding.make_mesh(fsdp=1, tensor=1, devices=jax.devices()[:1])


def _sst2(folder, *, length):
    words = load_tokenizer(tiny_tasks.encoder(folder / "encoder"))
    sources = Sources(data=str(tiny_tasks.sst2(folder / "sst2")))
    return load_task(TASKS["sst2"].spec, sources, words, length=length)


def _both_sides(folder, model, head):
    """The same fresh classifier: our parameters, and a module of torch's with dropout on."""
    from transformers import BertForSequenceClassification

    params = bert.init_params(model, head, seed=0)
    huggingface.write(folder / "hf", params, model, tokenizer=folder / "encoder", head=head)
    torch.manual_seed(0)
    return params, BertForSequenceClassification.from_pretrained(folder / "hf").train()


def _long(array):
    return torch.from_numpy(array).long()


def _inputs(batch):
    """Returns the arrays of a batch that has a row for each text, as transformers names them."""
    return {
        "input_ids": _long(batch["input_ids"]),
        "token_type_ids": _long(batch["token_type_ids"]),
        "attention_mask": _long(batch["sequence_ids"]),
    }


def test_the_losses_are_those_of_transformers(tmp_path):
    data = _sst2(tmp_path, length=16)
    rule = OptimizerConfig(learning_rate=1e-3, warmup_steps=5, bias_correction=True)
    phase = PhaseConfig(sequence_length=16, steps=50, global_batch_size=16, max_predictions=1)
    config = TrainConfig(
        model=tiny_tasks.MODEL,
        head=data.task.head(),
        compute=ComputeConfig(dtype="float32"),
        optimizer=rule,
        phases=(phase,),
    )
    params, theirs = _both_sides(tmp_path, config.model, config.head)
    named = list(theirs.named_parameters())
    groups = [
        {"params": [p for n, p in named if is_plain == ("LayerNorm" in n or n.endswith("bias"))],
         "weight_decay": 0.0 if is_plain else rule.weight_decay}
        for is_plain in (True, False)
    ]  # fmt: skip
    optimizer = torch.optim.AdamW(groups, betas=(rule.beta1, rule.beta2), eps=rule.epsilon)

    features, apart = data.train.features, []
    batches, packed = Batches(features, size=16), PackedBatches(features, size=16)
    mesh = _one_device()
    with jax.set_mesh(mesh):
        rates = layer_rates(params, decay=1.0, frozen_layers=0)
        objective = TaskObjective(config.head)
        step_of = jax.jit(
            lambda s, b: train_step(s, b, config=config, objective=objective, rates=rates)
        )
        state = TrainState.create(config, params).to_mesh(mesh)
        for step in range(50):
            chosen = training_rows(step, rows=len(features), batch_size=16, seed=0)
            batch = batches(chosen)
            state, values = step_of(state, packed(chosen))
            loss = theirs(**_inputs(batch), labels=_long(batch["labels"])).loss
            apart.append(abs(float(values["loss"]) - loss.item()))
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(theirs.parameters(), rule.clip_norm)
            rate = rule.schedule.rate(jax.numpy.int32(step), config=rule, total_steps=50)
            for group in optimizer.param_groups:
                group["lr"] = float(rate)
            optimizer.step()
    print(f"\nfine-tuning, 50 steps: losses at most {np.max(apart):.1e} apart")
    assert np.max(apart) < 1e-3


def _placed(batch, mesh):
    """Returns a batch and the numbers of its rows where those of a run lie: masks lie as the
    numbers do.
    """
    rows_B = jnp.arange(len(batch["input_ids"]), dtype=jnp.uint32)
    return jax.device_put((batch, rows_B), sharding.batch_sharding(mesh))


@pytest.mark.parametrize(("hidden", "attention"), [(0.1, 0.0), (0.0, 0.1)])
def test_gradients_under_dropout_are_those_of_torch(tmp_path, hidden, attention):
    """Compares, for each tensor, the mean gradient over 600 masks and its variation between masks.

    Two samples of masks have means as far apart as the variances say, and no further.
    """
    draws, size = 600, 16
    data = _sst2(tmp_path, length=48)
    model = dataclasses.replace(
        tiny_tasks.MODEL,
        hidden_dropout_prob=hidden,
        attention_probs_dropout_prob=attention,
        # Scores that differ, without which attention's own gradients are hardly there.
        initializer_range=0.3,
    )
    head = data.task.head()
    params, theirs = _both_sides(tmp_path, model, head)
    features, rows = data.train.features, np.arange(size)
    packed, apart = PackedBatches(features, size=size)(rows), Batches(features, size=size)(rows)
    mesh = _one_device()
    packed, rows_B = _placed(packed, mesh)

    @jax.jit
    def gradient(step, packed, rows_B):
        key = DropoutKey.create(seed=0, step=step, rows_B=rows_B)

        def loss(params):
            compute = ComputeConfig(dtype="float32")
            outputs = bert.apply(params, packed, config=model, head=head, compute=compute, key=key)
            sums = TaskObjective(head).sums(outputs, packed)
            return sums["task_loss"] / sums["task_count"]

        return jax.grad(loss)(params)

    ours, torchs = [], []
    with jax.set_mesh(mesh):
        for step in range(draws):
            ours.append(BERT_FAMILY.to_tensors(gradient(jnp.int32(step), packed, rows_B)))
    for _ in range(draws):
        theirs.zero_grad()
        theirs(**_inputs(apart), labels=_long(apart["labels"])).loss.backward()
        torchs.append({name: p.grad.numpy().copy() for name, p in theirs.named_parameters()})
    distances, variances = {}, {}
    for name in torchs[0]:
        if name.endswith("key.bias"):  # zero but for rounding (encoder.py)
            continue
        both = [np.stack([np.asarray(draw[name]) for draw in side]) for side in (ours, torchs)]
        spread = [found.var(axis=0, ddof=1).sum() for found in both]
        distance = np.square(both[0].mean(axis=0) - both[1].mean(axis=0)).sum()
        distances[name], variances[name] = distance / (sum(spread) / draws), spread[0] / spread[1]
    worst = max(distances, key=distances.__getitem__)
    middle = float(np.median(list(distances.values())))
    print(f"\ngradients: {middle:.2f} of the expected distance, {worst} {distances[worst]:.2f}")
    print(f"variances: {min(variances.values()):.2f} to {max(variances.values()):.2f} of torch's")
    assert middle < 1.5
    assert distances[worst] < 4, worst
    np.testing.assert_allclose(list(variances.values()), 1, atol=0.25)


def test_vectors_of_every_layer_are_those_of_transformers(tmp_path):
    from transformers import AutoTokenizer, BertModel

    encoder = tiny_tasks.encoder(tmp_path / "encoder")
    lines = ["the cat lives in rome .", "an owl"]
    (tmp_path / "texts.txt").write_text("\n".join(lines) + "\n")
    layers = (0, 1, -1)
    found = embed(encoder, tmp_path / "texts.txt", layers=layers, pooling="none", length=16)
    words = AutoTokenizer.from_pretrained(encoder)(lines, return_tensors="pt", padding=True)
    with torch.no_grad():
        theirs = BertModel.from_pretrained(encoder).eval()(**words, output_hidden_states=True)
    joined = torch.cat([theirs.hidden_states[layer] for layer in layers], dim=-1)
    expected = joined[words["attention_mask"].bool()].numpy()
    np.testing.assert_allclose(found["vectors"], expected, atol=1e-5)
