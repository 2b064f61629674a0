"""Hugging Face directories: every name once, every bit back, equal logits in their library."""

import json
import struct

import jax
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bert_jax.__main__ import main
from bert_jax.config import HeadConfig, ModelConfig
from bert_jax.data.tokenizer.tokenizer import load_tokenizer
from bert_jax.errors import NonFinite, UsageError
from bert_jax.inference.fill_mask import fill_mask
from bert_jax.interchange import huggingface
from bert_jax.model import bert, sharding
from bert_jax.pretrained.load import load_checkpoint
from bert_jax.registry import FAMILIES
from tests.models import assert_same, edit_config

_TEXT = "In winter the [MASK] of Ada sleeps in the stable."


@pytest.fixture(scope="module")
def on_one_device():
    mesh = sharding.make_mesh(fsdp=1, tensor=1, devices=jax.devices()[:1])
    with jax.set_mesh(mesh):
        yield mesh


@pytest.fixture
def copied(tmp_path, exported):
    """The exported directory, to be damaged."""
    import shutil

    return shutil.copytree(exported, tmp_path / "hf")


# --- names ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("layers", [1, 2, 12])
def test_every_parameter_has_one_name(layers):
    config, head = ModelConfig(num_hidden_layers=layers), HeadConfig()
    names = FAMILIES["bert"].names.names(config, head)
    assert len(names) == len(jax.tree.leaves(bert.abstract_params(config))) == 16 * layers + 14
    assert len(set(names.values())) == len(names)
    query = names["encoder", f"layer_{layers - 1}", "attention_output", "kernel"]
    assert query == f"bert.encoder.layer.{layers - 1}.attention.output.dense.weight"
    assert names["mlm", "bias"] == "cls.predictions.bias"
    norm = names["encoder", "layer_0", "output_norm", "scale"]
    assert norm == "bert.encoder.layer.0.output.LayerNorm.weight"


# --- other people's habits -----------------------------------------------------------------------


def rewrite(directory, change) -> None:
    """`change` gets the tensors, to edit in place."""
    tensors = load_file(directory / "model.safetensors")
    change(tensors)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})


def read(directory):
    return huggingface.read(directory).params


def test_an_index_that_was_left_behind(copied, exported):
    """transformers removes the files that one replaces, and leaves their index."""
    index = {"weight_map": {"bert.pooler.dense.bias": "model-00001-of-00002.safetensors"}}
    (copied / "model.safetensors.index.json").write_text(json.dumps(index))
    assert_same(read(copied), read(exported))


@pytest.mark.parametrize(
    "theirs, ours", [("gelu", "gelu"), ("gelu_pytorch_tanh", "gelu_new"), ("gelu_new", "gelu_new")]
)
def test_activations_by_their_names(copied, theirs, ours):
    edit_config(copied, hidden_act=theirs)
    assert huggingface.read(copied).model.hidden_act == ours


# --- errors --------------------------------------------------------------------------------------


def test_every_wrong_tensor_is_listed(copied):
    def spoil(tensors):
        del tensors["cls.predictions.bias"]
        del tensors["bert.encoder.layer.1.attention.self.key.weight"]
        tensors["bert.pooler.dense.weight"] = np.zeros((32, 31), np.float32)
        tensors["classifier.weight"] = np.zeros((2, 32), np.float32)

    rewrite(copied, spoil)
    with pytest.raises(UsageError) as caught:
        read(copied)
    message = str(caught.value)
    assert "missing cls.predictions.bias [240]" in message
    assert "missing bert.encoder.layer.1.attention.self.key.weight [32, 32]" in message
    assert "bert.pooler.dense.weight is [32, 31], expected [32, 32]" in message
    assert "unexpected classifier.weight" in message
    assert message.count(";") == 3, "nothing else is wrong"


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_numbers_that_are_none_are_refused(copied, tmp_path, dtype, capsys):
    """They went into exports, and a run that began from them left each update out."""

    def spoil(tensors):
        tensors |= {name: tensor.astype(dtype) for name, tensor in tensors.items()}
        tensors["cls.predictions.bias"][3] = np.nan
        tensors["bert.pooler.dense.weight"][1, 2] = np.inf

    rewrite(copied, spoil)
    given = [str(copied), "--output-dir", str(tmp_path / "out")]
    assert main(["export", *given]) == NonFinite.exit_code == 6
    message = capsys.readouterr().err
    assert f"{copied} has numbers that are not finite, in 2 tensors: " in message
    assert "cls.predictions.bias" in message and "bert.pooler.dense.weight" in message
    assert not (tmp_path / "out").exists()


def test_of_many_wrong_tensors_the_first_are_named(copied):
    """One wrong number makes hundreds of them; a message of pages hides what it says."""
    edit_config(copied, num_hidden_layers=9, hidden_size=64)
    with pytest.raises(UsageError, match="and 146 more") as caught:
        read(copied)
    assert len(str(caught.value)) < 3000


@pytest.mark.parametrize("keep", [0, 4, 0.3, 0.99])
def test_truncated_tensors(copied, keep):
    path = copied / "model.safetensors"
    data = path.read_bytes()
    path.write_bytes(data[: int(keep if keep > 1 else keep * len(data))])
    with pytest.raises(UsageError, match=r"model\.safetensors cannot be read"):
        read(copied)


def test_a_type_that_numpy_lacks_is_named(copied):
    """As a model in eight bits has."""
    header = json.dumps({"a": {"dtype": "F8_E4M3", "shape": [2], "data_offsets": [0, 2]}}).encode()
    content = struct.pack("<Q", len(header)) + header + b"\0\0"
    (copied / "model.safetensors").write_bytes(content)
    with pytest.raises(UsageError, match="tensors of type float8_e4m3fn"):
        read(copied)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"model_type": "gpt2"}, "model_type is 'gpt2'; supported: bert, roberta, xlm-roberta, "),
        ({"position_embedding_type": "rotary"}, "position_embedding_type is 'rotary'; expected"),
        ({"hidden_act": "relu"}, "hidden_act is 'relu'; expected one of gelu, gelu_new"),
        ({"num_attention_heads": 5}, "does not divide hidden_size 32"),
        ({"hidden_size": "wide"}, "hidden_size is 'wide'; expected int"),
    ],
)
def test_a_config_that_is_no_bert_of_ours(copied, changes, message):
    edit_config(copied, **changes)
    with pytest.raises(UsageError) as caught:
        huggingface.read(copied)
    assert message in str(caught.value)


@pytest.mark.parametrize("text, message", [(None, "No such file"), ("{", "is not JSON")])
def test_a_config_that_cannot_be_read(copied, text, message):
    path = copied / "config.json"
    path.unlink() if text is None else path.write_text(text)
    with pytest.raises(UsageError, match=message):
        huggingface.read(copied)


# --- against transformers ------------------------------------------------------------------------


@pytest.mark.parity
def test_their_pipeline_gives_our_words(exported, on_one_device):
    pytest.importorskip("torch", reason="needs the 'parity' extra")
    from transformers import pipeline

    theirs = pipeline("fill-mask", model=str(exported), device="cpu")(_TEXT, top_k=5)
    loaded = load_checkpoint(exported, mesh=on_one_device)
    ((*ours,),) = fill_mask(loaded, load_tokenizer(exported), _TEXT, top=5)
    assert [c.token for c in ours] == [c["token_str"] for c in theirs]
    # They decode ids, which have small letters; our text is the one that was given.
    assert [c.text.lower() for c in ours] == [c["sequence"] for c in theirs]
    # Relative to the first: they also give a share to ids that are no token.
    for a, b in zip(ours, theirs, strict=True):
        ratio = a.probability / ours[0].probability
        assert ratio == pytest.approx(b["score"] / theirs[0]["score"], rel=1e-5)
