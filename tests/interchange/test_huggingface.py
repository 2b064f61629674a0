"""Hugging Face directories of every class: names, out and in again, faults, and their logits."""

import json
import re
import shutil
import struct

import jax
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bert_jax.__main__ import main
from bert_jax.config import ComputeConfig, HeadConfig, ModelConfig
from bert_jax.data.tokenizer.tokenizer import load_tokenizer
from bert_jax.errors import NonFinite, UsageError
from bert_jax.inference.fill_mask import fill_mask
from bert_jax.interchange import family, huggingface
from bert_jax.model import bert, sharding
from bert_jax.pretrained.load import load_checkpoint
from bert_jax.registry import FAMILIES
from tests.models import (
    HEADS,
    SIZES,
    assert_same,
    batch,
    edit_config,
    random_params,
    their_fields,
    vocabulary,
)

each_class = pytest.mark.parametrize("name", HEADS)
each_size = pytest.mark.parametrize("size", SIZES)


def written(folder, name, size="small", **options):
    """A directory with random parameters, and the parameters; `name` may be a head."""
    model, head = SIZES[size], name if isinstance(name, HeadConfig) else HEADS[name]
    params = random_params(model, head)
    words = vocabulary(folder / "words")
    huggingface.write(folder / "hf", params, model, head=head, tokenizer=words, **options)
    return folder / "hf", params


@pytest.fixture
def copied(tmp_path, exported):
    """The exported directory, to be damaged."""
    return shutil.copytree(exported, tmp_path / "hf")


def rewrite(directory, change):
    tensors = load_file(directory / "model.safetensors")
    save_file(change(tensors) or tensors, directory / "model.safetensors")


def our_outputs(directory) -> dict[str, np.ndarray]:
    foreign = huggingface.read(directory)
    mesh = sharding.make_mesh(fsdp=1, tensor=1, devices=jax.devices()[:1])
    with jax.set_mesh(mesh):
        outputs = jax.jit(
            lambda params, arrays: bert.apply(
                params,
                arrays,
                config=foreign.model,
                head=foreign.head,
                compute=ComputeConfig(dtype="float32"),
                hidden_states=True,
            )
        )(foreign.params, batch(foreign.model))
        return jax.device_get(outputs)


# --- out and in ----------------------------------------------------------------------------------


@each_size
@each_class
def test_written_and_read_is_the_same(tmp_path, name, size):
    directory, params = written(tmp_path, name, size)
    described = json.loads((directory / "config.json").read_text())
    assert described["architectures"] == [f"Bert{name}"]
    back = huggingface.read(directory)
    assert (back.model, back.head) == (SIZES[size], HEADS[name])
    assert_same(back.params, params)
    # And a second time, byte for byte.
    words = vocabulary(tmp_path / "words")
    huggingface.write(tmp_path / "2", back.params, back.model, head=back.head, tokenizer=words)
    for file in ("model.safetensors", "config.json", "tokenizer.json", "vocab.txt"):
        assert (tmp_path / "2" / file).read_bytes() == (directory / file).read_bytes()


def test_bare_models_have_no_prefix_and_may_have_no_pooler(tmp_path):
    directory, params = written(tmp_path, HeadConfig(parts=()))
    assert "embeddings.word_embeddings.weight" in load_file(directory / "model.safetensors")
    back = huggingface.read(directory)
    assert back.head.parts == ()
    assert_same(back.params, params)
    # Without our word for it, a pooler is missing.
    edit_config(directory, add_pooling_layer=None)
    with pytest.raises(UsageError, match=r"missing bert\.pooler\.dense\.bias \[24\]; missing bert"):
        huggingface.read(directory)
    allowed = huggingface.read(directory, allow_missing_heads=True)
    assert allowed.head.parts == () and len(allowed.missing) == 2


def test_labels_keep_their_names_and_order(tmp_path):
    directory, _ = written(tmp_path, "ForSequenceClassification")
    described = json.loads((directory / "config.json").read_text())
    assert described["id2label"] == {"0": "neutral", "1": "für", "2": "contra"}
    assert described["label2id"]["contra"] == 2
    edit_config(directory, id2label={"2": "contra", "0": "neutral", "1": "für"})
    assert huggingface.read(directory).head.labels == ("neutral", "für", "contra")


@pytest.mark.parametrize("label", [None, "similarity"])
def test_a_regression_has_one_output(tmp_path, label):
    head = HeadConfig(
        parts=("pooler", "sequence_classifier"), labels=() if label is None else (label,)
    )
    directory, _ = written(tmp_path, head)
    described = json.loads((directory / "config.json").read_text())
    assert described["problem_type"] == "regression" and len(described["id2label"]) == 1
    assert huggingface.read(directory).head == head


@pytest.mark.parametrize("name", ["ForSequenceClassification", "ForTokenClassification"])
def test_which_classifier_without_a_class(tmp_path, name):
    directory, params = written(tmp_path, name)
    edit_config(directory, architectures=None)
    back = huggingface.read(directory)
    assert back.head == HEADS[name]
    assert_same(back.params, params)


def test_masked_lm_of_the_hub_keep_their_other_head(tmp_path):
    """bert-base-uncased calls itself BertForMaskedLM and holds all of BertForPreTraining."""
    directory, params = written(tmp_path, "ForPreTraining")
    edit_config(directory, architectures=["BertForMaskedLM"])
    back = huggingface.read(directory)
    assert back.head == HeadConfig()
    assert_same(back.params, params)


# --- files ---------------------------------------------------------------------------------------


def test_several_files(tmp_path):
    directory, params = written(tmp_path, "ForPreTraining", max_file_bytes=20_000)
    files = sorted(p.name for p in directory.glob("*.safetensors"))
    assert len(files) > 2 and files[0] == f"model-00001-of-{len(files):05}.safetensors"
    index = json.loads((directory / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"].values()) == set(files)
    assert index["metadata"]["total_size"] == sum(x.nbytes for x in jax.tree.leaves(params))
    assert_same(huggingface.read(directory).params, params)


@pytest.mark.parametrize(
    "damage, message",
    [
        (lambda d: next(d.glob("*00002-of*")).unlink(), "00002-of-.* cannot be read: No such file"),
        (lambda d: (d / "model.safetensors.index.json").write_text("{"), "not an index of files"),
        (
            lambda d: (d / "model.safetensors.index.json").write_text(
                '{"weight_map": {"a": "../../secret.safetensors"}}'
            ),
            "'../../secret.safetensors' is not a valid file name inside",
        ),
        (
            lambda d: next(d.glob("*00002-of*")).write_bytes(
                next(d.glob("*00001-of*")).read_bytes()
            ),
            "lists tensors that its files lack: ",
        ),
    ],
    ids=["lost", "no JSON", "elsewhere", "swapped"],
)
def test_damaged_sets_of_files(tmp_path, damage, message):
    directory, _ = written(tmp_path, "ForPreTraining", max_file_bytes=20_000)
    damage(directory)
    with pytest.raises(UsageError, match=message):
        huggingface.read(directory)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_both_ways(tmp_path, dtype):
    directory, params = written(tmp_path, "ForPreTraining", dtype=dtype)
    assert json.loads((directory / "config.json").read_text())["torch_dtype"] == dtype
    kind = np.float16 if dtype == "float16" else ml_dtypes.bfloat16
    rounded = jax.tree.map(lambda x: x.astype(kind).astype(np.float32), params)
    back = huggingface.read(directory).params
    assert_same(back, rounded)
    words = vocabulary(tmp_path / "words")
    huggingface.write(tmp_path / "2", back, SIZES["small"], tokenizer=words, dtype=dtype)
    weights = [(d / "model.safetensors").read_bytes() for d in (directory, tmp_path / "2")]
    assert weights[0] == weights[1]
    assert {t.dtype for t in load_file(directory / "model.safetensors").values()} == {
        np.dtype(kind)
    }


def test_what_half_precision_cannot_hold(tmp_path):
    params = random_params(SIZES["small"], HeadConfig())
    params["nsp"]["bias"][1] = 1e6
    words = vocabulary(tmp_path / "words")
    with pytest.raises(
        UsageError, match=r"cls\.seq_relationship\.bias has values beyond the range"
    ):
        huggingface.write(tmp_path / "hf", params, SIZES["small"], tokenizer=words, dtype="float16")
    assert {p.name for p in tmp_path.iterdir()} == {"words"}


def test_integers_are_no_weights(tmp_path):
    directory, _ = written(tmp_path, "ForPreTraining")
    rewrite(directory, lambda t: {n: x.astype(np.int8) for n, x in t.items()})
    with pytest.raises(UsageError, match="bias is of type int8, expected floating point"):
        huggingface.read(directory)


# --- heads that are not there --------------------------------------------------------------------


def test_a_head_that_is_not_whole(tmp_path):
    directory, params = written(tmp_path, "ForPreTraining")

    def cut(tensors):
        return {n: t for n, t in tensors.items() if n != "cls.seq_relationship.bias"}

    rewrite(directory, cut)
    with pytest.raises(UsageError) as caught:
        huggingface.read(directory)
    assert "missing cls.seq_relationship.bias [2]" in str(caught.value)
    assert "`allow_missing_heads` reads the rest" in str(caught.value)
    allowed = huggingface.read(directory, allow_missing_heads=True)
    assert allowed.missing == ("cls.seq_relationship.bias [2]",)
    assert allowed.head.parts == ("pooler", "mlm")
    assert_same(allowed.params, {part: params[part] for part in ("encoder", "pooler", "mlm")})


def test_the_encoder_is_never_left_out(tmp_path):
    directory, _ = written(tmp_path, "ForSequenceClassification")
    lost = "bert.encoder.layer.1.output.dense.bias"
    rewrite(directory, lambda tensors: {n: t for n, t in tensors.items() if n != lost})
    with pytest.raises(UsageError, match=re.escape(f"missing {lost} [24]")) as caught:
        huggingface.read(directory, allow_missing_heads=True)
    assert "allow_missing_heads" not in str(caught.value)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"id2label": {"0": "a", "2": "b"}}, "id2label must number its labels 0 to 1"),
        ({"id2label": ["a", "b"]}, "id2label must map numbers to labels"),
        ({"id2label": {"0": "a", "1": "b"}}, r"is \[3, 24\], expected \[2, 24\]"),
        ({"id2label": {"0": "a", "1": "a", "2": "b"}}, "each label once"),
        ({"problem_type": "multi_label_classification"}, "is not supported"),
        ({"problem_type": "regression"}, "a regression with 3 outputs"),
        ({"is_decoder": True}, "is_decoder is True, which is not supported"),
        ({"architectures": ["BertForMultipleChoice"]}, "has BertForMultipleChoice, which is not"),
        ({"num_labels": 0, "id2label": None}, "num_labels is 0; expected 1 to"),
        ({"num_labels": 2, "id2label": None}, r"is \[3, 24\], expected \[2, 24\]"),
        ({"hidden_size": 32}, r"is \[64, 24\], expected \[64, 32\]"),
    ],
)
def test_configs_that_do_not_fit(tmp_path, changes, message):
    directory, _ = written(tmp_path, "ForSequenceClassification")
    edit_config(directory, **changes)
    with pytest.raises(UsageError, match=message):
        huggingface.read(directory)


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


def test_an_index_that_was_left_behind(copied, exported):
    """transformers removes the files that one replaces, and leaves their index."""
    index = {"weight_map": {"bert.pooler.dense.bias": "model-00001-of-00002.safetensors"}}
    (copied / "model.safetensors.index.json").write_text(json.dumps(index))
    assert_same(huggingface.read(copied).params, huggingface.read(exported).params)


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
        huggingface.read(copied)
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
        huggingface.read(copied)
    assert len(str(caught.value)) < 3000


@pytest.mark.parametrize("keep", [0, 4, 0.3, 0.99])
def test_truncated_tensors(copied, keep):
    path = copied / "model.safetensors"
    data = path.read_bytes()
    path.write_bytes(data[: int(keep if keep > 1 else keep * len(data))])
    with pytest.raises(UsageError, match=r"model\.safetensors cannot be read"):
        huggingface.read(copied)


def test_a_type_that_numpy_lacks_is_named(copied):
    """As a model in eight bits has."""
    header = json.dumps({"a": {"dtype": "F8_E4M3", "shape": [2], "data_offsets": [0, 2]}}).encode()
    content = struct.pack("<Q", len(header)) + header + b"\0\0"
    (copied / "model.safetensors").write_bytes(content)
    with pytest.raises(UsageError, match="tensors of type float8_e4m3fn"):
        huggingface.read(copied)


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

# Our output -> what their class calls it.
_OUTPUTS = {
    "ForPreTraining": {"mlm_logits": "prediction_logits", "nsp_logits": "seq_relationship_logits"},
    "ForMaskedLM": {"mlm_logits": "logits"},
    "ForNextSentencePrediction": {"nsp_logits": "logits"},
    "ForSequenceClassification": {"sequence_logits": "logits"},
    "ForTokenClassification": {"token_logits": "logits"},
    "ForQuestionAnswering": {"span_logits": ("start_logits", "end_logits")},
    "Model": {"last_hidden_state": "last_hidden_state", "pooled": "pooler_output"},
}


def assert_same_outputs(directory, name, theirs, *, pad=0):
    torch = pytest.importorskip("torch")
    ours, arrays = our_outputs(directory), batch(SIZES["small"])
    real = arrays["sequence_ids"] == 1
    ids = np.where(real, arrays["input_ids"], pad)
    arguments = {"input_ids": ids, "attention_mask": real}
    if theirs.config.type_vocab_size > 1:
        arguments["token_type_ids"] = arrays["token_type_ids"]
    with torch.no_grad():
        found = theirs.eval()(
            **{k: torch.tensor(v, dtype=torch.long) for k, v in arguments.items()}
        )
    for our_name, their_name in _OUTPUTS[name].items():
        if isinstance(their_name, tuple):
            expected = np.stack([found[part].numpy() for part in their_name], axis=-1)
        else:
            expected = found[their_name].numpy()
        mine = ours[our_name].reshape(expected.shape)
        if mine.ndim == 3:
            mine, expected = mine[real], expected[real]
        np.testing.assert_allclose(mine, expected, atol=1e-4, rtol=0)
        assert np.ptp(expected) > 0.2, "logits that do not differ prove nothing"


@pytest.mark.parity
@each_size
@each_class
def test_their_class_gives_our_logits(tmp_path, name, size):
    pytest.importorskip("torch", reason="needs the 'parity' extra")
    import transformers

    directory, _ = written(tmp_path, name, size)
    kind = getattr(transformers, f"Bert{name}")
    theirs, report = kind.from_pretrained(directory, output_loading_info=True)
    assert not any(report[problem] for problem in ("missing_keys", "unexpected_keys"))
    assert_same_outputs(directory, name, theirs)
    if labels := HEADS[name].labels:
        assert tuple(theirs.config.id2label.values()) == labels


@pytest.mark.parity
@each_size
@each_class
def test_what_their_class_saves_is_read(tmp_path, name, size):
    """Their random weights in, out, and in again: bits, and logits."""
    torch = pytest.importorskip("torch", reason="needs the 'parity' extra")
    import transformers

    torch.manual_seed(0)
    labels = HEADS[name].labels
    options = {"id2label": dict(enumerate(labels))} if labels else {}
    config = transformers.BertConfig(**their_fields(SIZES[size]), **options)
    theirs = getattr(transformers, f"Bert{name}")(config)
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    theirs.save_pretrained(tmp_path / "theirs", max_shard_size="40KB")
    vocabulary(tmp_path / "theirs")
    back = huggingface.read(tmp_path / "theirs")
    assert (back.model, back.head) == (SIZES[size], HEADS[name])
    assert_same_outputs(tmp_path / "theirs", name, theirs)
    huggingface.write(
        tmp_path / "ours", back.params, back.model, head=back.head, tokenizer=tmp_path / "theirs"
    )
    written_again = load_file(tmp_path / "ours/model.safetensors")
    expected = {n: p.detach().numpy() for n, p in theirs.named_parameters()}
    assert written_again.keys() == expected.keys()
    for tensor, values in expected.items():
        assert written_again[tensor].tobytes() == values.tobytes(), tensor
    assert_same(huggingface.read(tmp_path / "ours").params, back.params)


@pytest.mark.parity
def test_their_pipeline_gives_our_words(exported):
    pytest.importorskip("torch", reason="needs the 'parity' extra")
    from transformers import pipeline

    text = "In winter the [MASK] of Ada sleeps in the stable."
    theirs = pipeline("fill-mask", model=str(exported), device="cpu")(text, top_k=5)
    loaded = load_checkpoint(exported)
    ((*ours,),) = fill_mask(loaded, load_tokenizer(exported), text, top=5)
    assert [c.token for c in ours] == [c["token_str"] for c in theirs]
    # They decode ids, which have small letters; our text is the one that was given.
    assert [c.text.lower() for c in ours] == [c["sequence"] for c in theirs]
    # Relative to the first: they also give a share to ids that are no token.
    for a, b in zip(ours, theirs, strict=True):
        ratio = a.probability / ours[0].probability
        assert ratio == pytest.approx(b["score"] / theirs[0]["score"], rel=1e-5)


def test_every_class_is_known():
    assert set(family.CLASSES) == set(HEADS)
