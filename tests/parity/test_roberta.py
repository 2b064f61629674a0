"""RoBERTa beside transformers on torch: logits, gradients, and what its classes read."""

import dataclasses

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from bert_jax.config import ComputeConfig, HeadConfig, ModelConfig
from bert_jax.data.tokenizer.training import train_tokenizer
from bert_jax.interchange import huggingface, huggingface_config
from bert_jax.model import bert, sharding
from bert_jax.objectives.mlm import MLM
from bert_jax.registry import FAMILIES
from tests.batches import random_batch
from tests.interchange.test_huggingface import assert_same_outputs
from tests.interchange.test_roberta import CLASSES, written
from tests.models import random_params, vocabulary

torch = pytest.importorskip("torch", reason="needs the 'parity' extra")
transformers = pytest.importorskip("transformers", reason="needs the 'parity' extra")
pytestmark = pytest.mark.parity

_PAD = 1
_HEAD = HeadConfig(parts=("mlm",))
_MODEL = ModelConfig(
    vocab_size=1009,
    hidden_size=48,
    num_hidden_layers=3,
    num_attention_heads=4,
    intermediate_size=96,
    hidden_act="gelu",
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
    max_position_embeddings=64,
    type_vocab_size=1,
    layer_norm_eps=1e-5,
)


def one_device():
    return sharding.make_mesh(fsdp=1, tensor=1, devices=jax.devices()[:1])


def their_model(model: ModelConfig = _MODEL, *, model_type: str = "roberta"):
    """Their class with random weights, biases and norms included."""
    described = huggingface_config.config_of(model, _HEAD, pad=_PAD, model_type=model_type)
    described.pop("model_type")
    config = transformers.AutoConfig.for_model(model_type, **described)
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    theirs = transformers.AutoModelForMaskedLM.from_config(config).eval()
    assert type(theirs).__name__ == described["architectures"][0]
    for name, parameter in theirs.named_parameters():
        if not parameter.requires_grad:  # RoFormer's sines
            continue
        is_scale = name.lower().endswith(("layernorm.weight", "layer_norm.weight"))
        torch.nn.init.normal_(parameter, mean=float(is_scale), std=0.1)
    return theirs


def batch_of(seed: int, *, rows: int = 6, length: int = 32) -> dict[str, np.ndarray]:
    """A random batch of one segment; padding has RoBERTa's id, from which it counts positions."""
    batch = random_batch(
        rows=rows, length=length, predictions=5, vocab_size=_MODEL.vocab_size, seed=seed
    )
    batch["input_ids"] = np.where(batch["sequence_ids"] == 1, batch["input_ids"], _PAD)
    batch["token_type_ids"] = np.zeros_like(batch["token_type_ids"])
    return {name: array for name, array in batch.items() if not name.startswith("nsp")}


def their_loss(theirs, batch):
    """Their outputs; their labels are -100 where nothing counts."""
    labels = np.full(batch["input_ids"].shape, -100)
    rows, places = np.nonzero(batch["mlm_weights"])
    labels[rows, batch["mlm_positions"][rows, places]] = batch["mlm_targets"][rows, places]
    return theirs(
        input_ids=torch.tensor(batch["input_ids"], dtype=torch.long),
        attention_mask=torch.tensor(batch["sequence_ids"], dtype=torch.long),
        labels=torch.tensor(labels, dtype=torch.long),
    )


@pytest.mark.parametrize("act", ["gelu", "gelu_new", "silu"])
def test_the_classifier_of_a_roformer(tmp_path, act):
    model = dataclasses.replace(
        _MODEL, position_embedding_type="rotary_interleaved", hidden_act=act, type_vocab_size=2
    )
    asked = HeadConfig(parts=("pooler", "sequence_classifier"), labels=("a", "b", "c"))
    head = huggingface.with_classifier(model, _HEAD, asked)
    params, batch = random_params(model, head), batch_of(0)
    words = vocabulary(tmp_path / "words", size=model.vocab_size)
    huggingface.write(tmp_path / "hf", params, model, head=head, tokenizer=words)
    theirs, report = transformers.AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "hf", attn_implementation="eager", output_loading_info=True
    )
    assert not any(report.values()), report
    expected = theirs.eval()(
        input_ids=torch.tensor(batch["input_ids"], dtype=torch.long),
        attention_mask=torch.tensor(batch["sequence_ids"], dtype=torch.long),
    ).logits
    batch = {name: jax.numpy.asarray(array) for name, array in batch.items()}
    compute = ComputeConfig(dtype="float32")
    ours = bert.apply(params, batch, config=model, head=head, compute=compute)
    logits = next(value for name, value in ours.items() if name.endswith("logits"))
    np.testing.assert_allclose(logits, expected.detach().numpy(), atol=2e-5, rtol=0)


@pytest.mark.parametrize(
    ("model_type", "changes"),
    [
        ("roberta", {}),
        ("roberta-prelayernorm", {"norm_placement": "pre"}),
        ("roformer", {"position_embedding_type": "rotary_interleaved"}),
    ],
)
def test_logits_gradients_and_the_way_back(tmp_path, model_type, changes):
    """Random weights of theirs: read, computed, written."""
    family = FAMILIES[model_type]
    theirs = their_model(model_type=model_type)
    theirs.save_pretrained(tmp_path / "theirs")
    # 261 ids; the embedding may have more rows.
    train_tokenizer("bpe", ["a b"], vocab_size=261).save(tmp_path / "words")
    foreign = huggingface.read(tmp_path / "theirs")
    assert foreign.model == dataclasses.replace(_MODEL, **changes)
    assert foreign.head == _HEAD
    batch = batch_of(0)

    def loss(params):
        outputs = bert.apply(
            params,
            batch,
            config=foreign.model,
            head=foreign.head,
            compute=ComputeConfig(dtype="float32"),
        )
        return MLM.metrics(MLM.sums(outputs, batch))["loss"], outputs

    with jax.set_mesh(one_device()):
        (our_loss, outputs), gradients = jax.jit(jax.value_and_grad(loss, has_aux=True))(
            foreign.params
        )
    found = their_loss(theirs.double(), batch)
    found.loss.backward()
    picked = np.take_along_axis(
        found.logits.detach().numpy(), batch["mlm_positions"][:, :, None], axis=1
    )
    apart = np.abs(np.asarray(outputs["mlm_logits"]) - picked).max()
    assert np.ptp(picked) > 1, "logits that do not differ prove nothing"
    assert apart < 1e-5 and abs(float(our_loss) - found.loss.item()) < 1e-5
    ours = family.to_tensors(gradients, pad=_PAD)
    references = {n: p.grad.numpy() for n, p in theirs.named_parameters() if p.requires_grad}
    assert set(ours) == set(references)
    largest = max(np.abs(g).max() for g in references.values())
    worst = max(np.abs(ours[name] - g).max() for name, g in references.items())
    print(f"\nlogits {apart:.1e} apart; gradients {worst / largest:.1e} of the largest")
    assert worst < 1e-5 * largest

    huggingface.write(
        tmp_path / "ours",
        foreign.params,
        foreign.model,
        head=foreign.head,
        tokenizer=tmp_path / "words",
    )
    back, given = (load_file(tmp_path / d / "model.safetensors") for d in ("ours", "theirs"))
    table = f"{family.base}.embeddings.position_embeddings.weight"
    if family.sinusoids:
        sines = back.pop(family.sinusoids), given.pop(family.sinusoids)
        np.testing.assert_allclose(*sines, atol=1e-6)
    else:
        assert not back[table][:2].any()  # of the rows that no token uses nothing is kept
        back[table], given[table] = back[table][2:], given[table][2:]
    assert back.keys() == given.keys()
    for name, tensor in given.items():
        assert back[name].tobytes() == tensor.tobytes(), name


@pytest.mark.parametrize("name", CLASSES)
def test_what_we_write_is_their_class(tmp_path, name):
    """Random weights of ours, with every head."""
    train_tokenizer("bpe", [" the bear eats"] * 3, vocab_size=300).save(tmp_path / "words")
    written(tmp_path / "hf", tmp_path / "words", name)
    kind = getattr(transformers, f"Roberta{name}")
    theirs, report = kind.from_pretrained(tmp_path / "hf", output_loading_info=True)
    assert not any(report[problem] for problem in ("missing_keys", "unexpected_keys"))
    assert_same_outputs(tmp_path / "hf", name, theirs, pad=_PAD)
