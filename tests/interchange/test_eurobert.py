"""EuroBERT: as transformers computes and writes it, and each wrong reading."""

import dataclasses
import json

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from bert_jax.config import HeadConfig
from bert_jax.errors import UsageError
from bert_jax.interchange import huggingface
from bert_jax.interchange.eurobert import FAMILY
from bert_jax.model.mixers import self_attention
from tests.golden import make_eurobert
from tests.golden.make_eurobert import MODEL
from tests.golden.make_modernbert import HEAD, documents, params
from tests.interchange.test_modernbert import (
    assert_gradients,
    assert_logits,
    count,
    edit,
    logits_of,
    row_of,
    written,
)
from tests.models import assert_same


@pytest.fixture(scope="module")
def golden():
    return dict(np.load(make_eurobert.FILE))


def test_logits_equal_transformers(golden):
    assert_logits(golden, "5", MODEL)


def test_gradients_equal_transformers(golden):
    assert_gradients(golden, "5", MODEL, FAMILY)


def the_other_order(patch):
    patch.setattr(self_attention, "repeat_heads", lambda x, heads: jnp.tile(x, (1, 2, 1, 1)))
    return MODEL


READINGS = {
    "heads of keys repeated in the other order": the_other_order,
    "another theta": lambda patch: dataclasses.replace(MODEL, rope_theta=10_000.0),
    "layernorm": lambda patch: dataclasses.replace(MODEL, norm="layernorm", norm_bias=False),
    "gelu": lambda patch: dataclasses.replace(MODEL, hidden_act="gelu"),
    "interleaved rotation": lambda patch: dataclasses.replace(
        MODEL, position_embedding_type="rotary_interleaved"
    ),
}


@pytest.mark.parametrize("name", READINGS)
def test_a_wrong_reading_is_seen(golden, name, monkeypatch):
    model = READINGS[name](monkeypatch)
    ours = logits_of(params(MODEL), row_of(documents()[0], length=64), model)
    assert np.abs(ours - golden["5.logits.0"]).max() >= 5e-4


def test_what_transformers_writes_is_read_and_written_again(golden, tmp_path):
    directory = written(tmp_path, MODEL)
    tensors = load_file(directory / "model.safetensors")
    assert sorted(tensors) == [*golden["5.tensors"]]
    (directory / "config.json").write_text(str(golden["5.config"]))
    back = huggingface.read(directory)
    assert (back.model, back.head) == (MODEL, HEAD)
    assert_same(back.params, params(MODEL))
    edit(directory, architectures=None)
    assert huggingface.read(directory).head == HEAD


def test_a_body_without_a_head_has_no_prefix(tmp_path):
    head = HeadConfig(parts=())
    tree = {"encoder": params(MODEL)["encoder"]}
    directory = written(tmp_path, MODEL, head=head, tree=tree)
    assert "embed_tokens.weight" in load_file(directory / "model.safetensors")
    assert_same(huggingface.read(directory).params, tree)


@pytest.mark.parametrize(("theirs", "ours"), [("bos", "cls"), ("mean", "mean"), ("late", "late")])
def test_classifiers_go_both_ways(theirs, ours, tmp_path):
    model = dataclasses.replace(MODEL, classifier_pooling=ours)
    texts = HeadConfig(
        parts=("pooler", "sequence_classifier"), labels=("no", "yes", "perhaps"), pooler_act="gelu"
    )
    tree = params(model, texts)
    directory = written(tmp_path, model, head=texts, tree=tree)
    described = json.loads((directory / "config.json").read_text())
    assert described["classifier_pooling"] == theirs
    assert described["architectures"] == ["EuroBertForSequenceClassification"]
    back = huggingface.read(directory)
    assert (back.model, back.head) == (model, texts)
    assert_same(back.params, tree)


def test_answers_have_no_class_there(tmp_path):
    with pytest.raises(UsageError, match="this format has no name for span_classifier"):
        written(tmp_path, MODEL, head=HeadConfig(parts=("span_classifier",)), tree={})


def test_its_config(tmp_path):
    described = json.loads((written(tmp_path, MODEL) / "config.json").read_text())
    assert described["architectures"] == ["EuroBertForMaskedLM"]
    assert (described["num_key_value_heads"], described["head_dim"]) == (2, 16)
    assert described["rope_parameters"] == {"rope_type": "default", "rope_theta": 1_000}
    assert None not in described.values()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_key_value_heads": 3}, "num_key_value_heads is 3, no divisor of"),
        ({"head_dim": 32}, "head_dim is 32"),
        ({"mlp_bias": True}, "mlp_bias is true"),
        ({"rope_theta": 5.0}, r"rope_theta is 5\.0, but rope_parameters says 1000\.0"),
        ({"rope_parameters": {"rope_type": "llama3"}}, "rope_parameters is .*llama3"),
        # As it was called before, and as transformers reads it still.
        ({"rope_parameters": {"type": "linear", "factor": 2.0}}, "rope_parameters is .*linear"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_scaling is .*linear"),
        ({"rope_scaling": {"rope_theta": 5.0}}, r"rope_theta is 5\.0, but rope_parameters says"),
        ({"hidden_act": "relu"}, "hidden_act 'relu' is not one of"),
        ({"classifier_pooling": "cls"}, "classifier_pooling is 'cls'; expected one of bos, mean"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps is 'small'; expected float"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(changes, message, tmp_path):
    directory = written(tmp_path, MODEL)
    edit(directory, **changes)
    with pytest.raises(UsageError, match=message):
        huggingface.read(directory)


@pytest.mark.parametrize(
    ("shape", "with_head", "body"),
    [
        ((12, 768, 3072, 12, 12), 310_266_624, 211_766_016),
        ((26, 1152, 4096, 18, 6), 755_625_600, 607_874_688),
        ((32, 2304, 6144, 18, 6), 2_403_092_736, 2_107_590_912),
    ],
)
def test_parameter_counts_are_the_published_ones(shape, with_head, body):
    layers, width, inner, heads, grouped = shape
    model = dataclasses.replace(
        MODEL,
        vocab_size=128_256,
        num_hidden_layers=layers,
        hidden_size=width,
        intermediate_size=inner,
        num_attention_heads=heads,
        num_key_value_heads=grouped,
    )
    assert count(model, HEAD) == with_head
    assert with_head - width * model.vocab_size == body
