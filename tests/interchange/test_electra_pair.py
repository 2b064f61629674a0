"""ELECTRA's two directories: written and read again, bit for bit; what cannot be; a task's head."""

import dataclasses
import json

import pytest

from bert_jax.config import HeadConfig, ModelConfig
from bert_jax.errors import UsageError
from bert_jax.interchange import huggingface
from bert_jax.model.heads.replaced_token import GENERATOR_HEAD, generator_params
from tests.models import assert_same, random_params, vocabulary
from tests.objectives.test_replaced_token import TINY, tiny_config

_HEAD = tiny_config().head


@pytest.mark.parametrize("sharing", ["all", "embeddings", "none"])
def test_two_directories_and_back(sharing, tmp_path):
    model = dataclasses.replace(TINY, embedding_sharing=sharing)
    params = random_params(model, _HEAD)
    tokenizer = vocabulary(tmp_path / "words", size=97)
    huggingface.write(tmp_path / "hf", params, model, head=_HEAD, tokenizer=tokenizer)
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert config["architectures"] == ["ElectraForPreTraining"] and config["embedding_size"] == 12
    found = huggingface.read(tmp_path / "hf")
    assert (found.model, found.head) == (model, _HEAD)
    assert_same(found.params, params)

    # The generator alone, and both where nothing is said of sharing: what is equal is shared.
    inside = tmp_path / "hf" / "generator"
    alone = huggingface.read(inside)
    assert (alone.model, alone.head) == (model.generator(), GENERATOR_HEAD)
    assert_same(alone.params, generator_params(params, model))
    config = json.loads((inside / "config.json").read_text())
    assert config.pop("embedding_sharing") == sharing
    (inside / "config.json").write_text(json.dumps(config))
    assert huggingface.read(tmp_path / "hf").model == model
    if sharing == "none":
        (inside / "config.json").write_text(json.dumps(config | {"embedding_sharing": "all"}))
        with pytest.raises(UsageError, match="embedding_sharing is all, but the two models'"):
            huggingface.read(tmp_path / "hf")


@pytest.mark.parametrize("size", [0, 12])
def test_a_generator_that_is_not_this_models(size, tmp_path):
    tokenizer = vocabulary(tmp_path / "words", size=97)
    params = random_params(TINY, _HEAD)
    huggingface.write(tmp_path / "hf", params, TINY, head=_HEAD, tokenizer=tokenizer)
    other = dataclasses.replace(
        TINY.generator(), num_attention_heads=2, embedding_size=size, vocab_size=97
    )
    inside = tmp_path / "hf" / "generator"
    for path in inside.iterdir():
        path.unlink()
    huggingface.write(
        inside, random_params(other, GENERATOR_HEAD), other, head=GENERATOR_HEAD,
        tokenizer=tokenizer, model_type="electra",
    )  # fmt: skip
    with pytest.raises(UsageError, match="not a generator of this model: num_attention_heads is 2"):
        huggingface.read(tmp_path / "hf")


@pytest.mark.parametrize(
    ("model", "head", "kind", "message"),
    [
        ({}, HeadConfig(parts=("mlm",)), "bert", r"model\.embedding_size is 12, which this"),
        ({"hidden_act": "gelu_new"}, HeadConfig(parts=("mlm",)), None, "hidden_act is gelu_new"),
        ({}, HeadConfig(parts=("pooler", "sequence_classifier")), "electra", "pooler_act is tanh"),
        ({}, HeadConfig(), "electra", "head.parts pooler, nsp"),
        (
            {"embedding_size": 0},
            HeadConfig(parts=("pooler", "sequence_classifier"), pooler_act="gelu"),
            "bert",
            r"head\.pooler_act is gelu, which .* set head\.pooler_act=tanh",
        ),
    ],
)
def test_what_a_format_cannot_say(model, head, kind, message, tmp_path):
    shape = dataclasses.replace(TINY, **model).with_generator_of(ModelConfig())
    with pytest.raises(UsageError, match=message):
        huggingface.write(
            tmp_path / "hf", random_params(shape, head), shape, head=head,
            tokenizer=vocabulary(tmp_path / "words"), model_type=kind,
        )  # fmt: skip
    assert not (tmp_path / "hf").exists()
