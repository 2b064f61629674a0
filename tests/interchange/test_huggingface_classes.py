"""Every class of Hugging Face's BERT and RoBERTa: out and in again, and logits in their library."""

import json
import re

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bert_jax.config import ComputeConfig, HeadConfig
from bert_jax.errors import UsageError
from bert_jax.interchange import family, huggingface
from bert_jax.model import bert, sharding
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


def test_two_classes_without_names(tmp_path):
    """Their writer leaves out the names it would give itself."""
    head = HeadConfig(parts=("pooler", "sequence_classifier"), labels=("LABEL_0", "LABEL_1"))
    directory, _ = written(tmp_path, head)
    edit_config(directory, id2label=None, label2id=None)
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
    import ml_dtypes

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


def test_every_class_is_known():
    assert set(family.CLASSES) == set(HEADS)
