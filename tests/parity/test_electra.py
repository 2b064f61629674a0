"""ELECTRA against transformers on torch: logits, gradients, and the classes of tasks."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.config import ComputeConfig, HeadConfig
from bert_jax.interchange import electra_pair, huggingface
from bert_jax.model import bert
from bert_jax.model.heads.replaced_token import GENERATOR_HEAD, generator_params
from bert_jax.model.sampling import sample
from bert_jax.objectives.replaced_token import REPLACED_TOKEN, corrupt
from bert_jax.registry import FAMILIES
from tests.models import random_params, vocabulary
from tests.objectives.test_replaced_token import TINY, batch_of, tiny_config

torch = pytest.importorskip("torch", reason="needs the 'parity' extra")
pytestmark = pytest.mark.parity

_FLOAT32 = ComputeConfig(dtype="float32")
_MODEL = dataclasses.replace(
    TINY, num_hidden_layers=2, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
)


def placed(batch: dict[str, np.ndarray]) -> dict[str, jax.Array]:
    return jax.tree.map(jnp.asarray, batch)


def samples_of(params, batch, model):
    outputs = bert.apply(
        generator_params(params, model), batch, config=model.generator(), head=GENERATOR_HEAD,
        compute=_FLOAT32,
    )  # fmt: skip
    return sample(
        outputs["mlm_logits"],
        keys=(batch["rtd_noise_1"], batch["rtd_noise_2"]),
        vocab_size=model.vocab_size,
    ), outputs["mlm_logits"]


def their_gradients(model: Any) -> dict[str, np.ndarray]:
    return {n: p.grad.numpy() for n, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("sharing", ["all", "embeddings", "none"])
@pytest.mark.parametrize("embedding_size", [0, 12])
def test_both_models_and_every_gradient(sharing, embedding_size, tmp_path):
    from tests.electra_reference import pair

    model = dataclasses.replace(_MODEL, embedding_sharing=sharing, embedding_size=embedding_size)
    config = tiny_config(model=model)
    params, batch = random_params(model, config.head), placed(batch_of())
    samples, masked_logits = jax.jit(lambda p: samples_of(p, batch, model))(params)
    theirs = pair(tmp_path, params, model, config.head)
    out = theirs.loss(jax.device_get(batch), np.asarray(samples))
    used = np.asarray(batch["mlm_weights"]) > 0
    np.testing.assert_allclose(
        np.asarray(masked_logits)[used], out["mlm"].detach().numpy(), atol=1e-5, rtol=0
    )
    corrupted, _ = corrupt(batch, samples)
    found = bert.apply(
        params, batch | {"input_ids": corrupted}, config=model, head=config.head, compute=_FLOAT32
    )["replaced_logits"]
    is_token = np.asarray(batch["sequence_ids"]) > 0
    np.testing.assert_allclose(
        np.asarray(found)[is_token], out["replaced"].detach().numpy()[is_token], atol=1e-5, rtol=0
    )

    def loss(params):
        sums = REPLACED_TOKEN.forward(params, batch, config=config, key=None)
        return REPLACED_TOKEN.loss(sums, REPLACED_TOKEN.counts(batch))

    value, gradients = jax.jit(jax.value_and_grad(loss))(params)
    assert float(value) == pytest.approx(out["loss"].item(), rel=1e-5)
    out["loss"].backward()
    expected = [their_gradients(network) for network in (theirs.discriminator, theirs.generator)]
    largest = max(np.abs(g).max() for network in expected for g in network.values())
    networks = electra_pair.split(model, config.head, gradients)
    for network, references in zip(networks, expected, strict=True):
        ours = FAMILIES["electra"].names_with(network.head.parts).to_tensors(network.params)
        ours.pop("generator_lm_head.weight", None)
        assert set(ours) == set(references) - {"generator_lm_head.weight"}
        for name, gradient in ours.items():
            assert np.abs(gradient - references[name]).max() <= 1e-5 * largest, name


_TASKS = {
    "ForSequenceClassification": HeadConfig(
        parts=("pooler", "sequence_classifier"), labels=("a", "b", "c"), pooler_act="gelu"
    ),
    "ForTokenClassification": HeadConfig(
        parts=("token_classifier",), labels=("O", "B"), pooler_act="gelu"
    ),
    "ForQuestionAnswering": HeadConfig(parts=("span_classifier",), pooler_act="gelu"),
    "Model": HeadConfig(parts=(), pooler_act="gelu"),
}


@pytest.mark.parametrize("kind", _TASKS)
@pytest.mark.parametrize("embedding_size", [0, 12])
def test_the_classes_of_tasks(kind, embedding_size, tmp_path):
    import transformers

    head = _TASKS[kind]
    model = dataclasses.replace(_MODEL, embedding_size=embedding_size)
    model = model.with_generator_of(type(model)())
    params, batch = random_params(model, head), placed(batch_of())
    tokenizer = vocabulary(tmp_path / "words", size=model.vocab_size)
    huggingface.write(tmp_path / "hf", params, model, head=head, tokenizer=tokenizer)
    cls = getattr(transformers, f"Electra{kind}")
    theirs, report = cls.from_pretrained(
        tmp_path / "hf", attn_implementation="eager", output_loading_info=True
    )
    assert not any(report.values()), report
    theirs, given = theirs.double().eval(), batch_of()
    out = theirs(
        **{
            "input_ids": torch.tensor(given["input_ids"], dtype=torch.long),
            "token_type_ids": torch.tensor(given["token_type_ids"], dtype=torch.long),
            "attention_mask": torch.tensor(given["sequence_ids"], dtype=torch.long),
        }
    )
    expected = {
        "ForSequenceClassification": lambda: out.logits,
        "ForTokenClassification": lambda: out.logits,
        "ForQuestionAnswering": lambda: torch.stack([out.start_logits, out.end_logits], -1),
        "Model": lambda: out.last_hidden_state,
    }[kind]()
    weights = np.random.default_rng(0).standard_normal(expected.shape)
    if kind != "ForSequenceClassification":
        weights *= (given["sequence_ids"] > 0)[..., None]

    def ours(params):
        found = bert.apply(params, batch, config=model, head=head, compute=_FLOAT32)
        output = next((v for k, v in found.items() if k.endswith("logits")), None)
        output = found["last_hidden_state"] if output is None else output
        return (output * weights).sum(), output

    gradients, output = jax.jit(jax.grad(ours, has_aux=True))(params)
    used = weights != 0
    np.testing.assert_allclose(
        np.asarray(output)[used], expected.detach().numpy()[used], atol=1e-5, rtol=0
    )
    (expected * torch.tensor(weights)).sum().backward()
    references = their_gradients(theirs)
    found = FAMILIES["electra"].names_with(head.parts).to_tensors(gradients)
    if kind == "Model":
        found = {name.removeprefix("electra."): tensor for name, tensor in found.items()}
    assert set(found) == set(references)
    largest = max(np.abs(g).max() for g in references.values())
    for name, gradient in found.items():
        assert np.abs(gradient - references[name]).max() <= 1e-5 * largest, name

    # As transformers saves it, it is the same model here.
    theirs.float().save_pretrained(tmp_path / "saved")
    vocabulary(tmp_path / "saved", size=model.vocab_size)
    again = huggingface.read(tmp_path / "saved")
    assert (again.model, again.head) == (model, head)
