"""Fine-tuning without dropout, and vectors, beside transformers on torch."""

import jax
import numpy as np
import pytest

from bert_jax.config import ComputeConfig, OptimizerConfig, PhaseConfig, TrainConfig
from bert_jax.data import tokenizer as tokenizers
from bert_jax.data.features import Batches, training_rows
from bert_jax.data.packing import PackedBatches
from bert_jax.interchange import huggingface
from bert_jax.model import heads, sharding
from bert_jax.tasks.embed import embed
from bert_jax.tasks.load import Sources, base_spec, load
from bert_jax.training.optimizer import learning_rate
from bert_jax.training.state import TrainState
from bert_jax.training.task_step import layer_rates, train_step
from tests import tiny_tasks

torch = pytest.importorskip("torch", reason="needs the 'parity' extra")
pytestmark = pytest.mark.parity


def test_the_losses_are_those_of_transformers(tmp_path):
    from transformers import BertForSequenceClassification

    encoder = tiny_tasks.encoder(tmp_path / "encoder")
    words = tokenizers.load(encoder)
    sources = Sources(data=str(tiny_tasks.sst2(tmp_path / "sst2")))
    data = load(base_spec("sst2"), sources, words, length=16)
    rule = OptimizerConfig(learning_rate=1e-3, warmup_steps=5, bias_correction=True)
    phase = PhaseConfig(sequence_length=16, steps=50, global_batch_size=16, max_predictions=1)
    config = TrainConfig(
        model=tiny_tasks.MODEL,
        head=data.task.head(),
        compute=ComputeConfig(dtype="float32"),
        optimizer=rule,
        phases=(phase,),
    )
    params = heads.init_params(config.model, config.head, seed=0)
    huggingface.write(tmp_path / "hf", params, config.model, tokenizer=encoder, head=config.head)
    theirs = BertForSequenceClassification.from_pretrained(tmp_path / "hf").train()
    named = list(theirs.named_parameters())
    groups = [
        {"params": [p for n, p in named if is_plain == ("LayerNorm" in n or n.endswith("bias"))],
         "weight_decay": 0.0 if is_plain else rule.weight_decay}
        for is_plain in (True, False)
    ]  # fmt: skip
    optimizer = torch.optim.AdamW(groups, betas=(rule.beta1, rule.beta2), eps=rule.epsilon)

    mesh = sharding.make_mesh(fsdp=1, tensor=1, devices=jax.devices()[:1])
    features, apart = data.train.encoded.features, []
    batches, packed = Batches(features, size=16), PackedBatches(features, size=16)
    with jax.set_mesh(mesh):
        rates = layer_rates(params, decay=1.0, frozen_layers=0)
        step_of = jax.jit(lambda s, b: train_step(s, b, config=config, rates=rates))
        state = TrainState.create(config, params).place(mesh)
        for step in range(50):
            chosen = training_rows(step, rows=len(features), batch_size=16, seed=0)
            batch = batches(chosen)
            state, values = step_of(state, packed(chosen))
            loss = theirs(
                input_ids=torch.from_numpy(batch["input_ids"]).long(),
                token_type_ids=torch.from_numpy(batch["token_type_ids"]).long(),
                attention_mask=torch.from_numpy(batch["sequence_ids"]).long(),
                labels=torch.from_numpy(batch["labels"]).long(),
            ).loss
            apart.append(abs(float(values["loss"]) - loss.item()))
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(theirs.parameters(), rule.clip_norm)
            rate = learning_rate(jax.numpy.int32(step), config=rule, total_steps=50)
            for group in optimizer.param_groups:
                group["lr"] = float(rate)
            optimizer.step()
    print(f"\nfine-tuning, 50 steps: losses at most {np.max(apart):.1e} apart")
    assert np.max(apart) < 1e-3


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
