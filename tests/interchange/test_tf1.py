"""TF1 checkpoints: read as TF1's Saver writes them, written as it restores them, bit for bit."""

import dataclasses
import json

import jax
import numpy as np
import pytest
import tensorflow as tf

from bert_jax.config import HeadConfig
from bert_jax.data.tokenizer.tokenizer import load_tokenizer
from bert_jax.errors import UsageError
from bert_jax.interchange import tf1
from bert_jax.interchange.name_map import Foreign
from tests.models import HEADS, SIZES, assert_same, random_params, vocabulary

_CLASSES = sorted(HEADS.keys() - {"ForTokenClassification"})
_STEP = 12345


def written(folder, name="ForPreTraining", size="small", *, step=_STEP):
    """A directory of ours, and its parameters."""
    model, head = SIZES[size], HEADS[name]
    params = random_params(model, head)
    foreign = Foreign(model, head, params, step)
    tf1.write(folder / "tf1", foreign, tokenizer=vocabulary(folder / "words"))
    return folder / "tf1", params


def variables(prefix) -> dict[str, np.ndarray]:
    reader = tf.train.load_checkpoint(str(prefix))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def save_like_tf1(prefix, values: dict[str, np.ndarray]) -> None:
    """In a graph and a session, by the Saver of a TF1 run."""
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        for name, value in values.items():
            v1.get_variable(name, initializer=value, use_resource=False)
        session.run(v1.global_variables_initializer())
        v1.train.Saver().save(session, str(prefix), write_meta_graph=False)


def restore_like_tf1(prefix, like: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        made = {
            name: v1.get_variable(name, shape=v.shape, dtype=v.dtype, use_resource=False)
            for name, v in like.items()
        }
        v1.train.Saver().restore(session, str(prefix))
        return session.run(made)


# --- names ---------------------------------------------------------------------------------------

# As google-research/bert writes them in run_classifier.py and run_squad.py; the names of
# run_pretraining.py are in `test_what_tf1_saves_is_read_and_written_again_bit_for_bit`.
_NAMES = {
    "sequence_classifier.kernel": "output_weights",
    "sequence_classifier.bias": "output_bias",
    "span_classifier.kernel": "cls/squad/output_weights",
}


@pytest.mark.parametrize("ours", _NAMES)
def test_names_are_those_of_the_original(ours):
    assert tf1.TABLE.entry(tuple(ours.split("."))).name == _NAMES[ours]


# --- out and in ----------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", _CLASSES)
def test_written_and_read_is_the_same(tmp_path, name, size):
    directory, params = written(tmp_path, name, size)
    for path in (directory, directory / "bert_model.ckpt"):
        back = tf1.read(path)
        assert (back.model, back.head, back.step) == (SIZES[size], HEADS[name], _STEP)
        assert_same(back.params, params)
    words = load_tokenizer(tmp_path / "words")
    assert load_tokenizer(directory).hash == words.hash


def test_what_tf1_saves_is_read_and_written_again_bit_for_bit(tmp_path):
    """Shapes and transposes by their own rules: no table of ours makes this checkpoint."""
    draw = np.random.default_rng(0)
    width, inner, rows, layers = 24, 40, 64, 2
    shapes = {
        "bert/embeddings/word_embeddings": (rows, width),
        "bert/embeddings/position_embeddings": (20, width),
        "bert/embeddings/token_type_embeddings": (2, width),
        "bert/pooler/dense/kernel": (width, width),
        "bert/pooler/dense/bias": (width,),
        "cls/predictions/output_bias": (rows,),
        "cls/predictions/transform/dense/kernel": (width, width),
        "cls/predictions/transform/dense/bias": (width,),
        "cls/seq_relationship/output_weights": (2, width),
        "cls/seq_relationship/output_bias": (2,),
    }
    norms = ["bert/embeddings/LayerNorm", "cls/predictions/transform/LayerNorm"]
    for layer in range(layers):
        prefix = f"bert/encoder/layer_{layer}"
        for module, (inputs, outputs) in {
            "attention/self/query": (width, width),
            "attention/self/key": (width, width),
            "attention/self/value": (width, width),
            "attention/output/dense": (width, width),
            "intermediate/dense": (width, inner),
            "output/dense": (inner, width),
        }.items():
            shapes |= {f"{prefix}/{module}/kernel": (inputs, outputs)}
            shapes |= {f"{prefix}/{module}/bias": (outputs,)}
        norms += [f"{prefix}/attention/output/LayerNorm", f"{prefix}/output/LayerNorm"]
    shapes |= {f"{norm}/{leaf}": (width,) for norm in norms for leaf in ("beta", "gamma")}
    values = {
        name + slot: draw.standard_normal(shape).astype(np.float32)
        for name, shape in shapes.items()
        for slot in ("", "/adam_m", "/adam_v")
    } | {"global_step": np.int64(77)}

    theirs = vocabulary(tmp_path / "theirs")
    save_like_tf1(theirs / "model.ckpt-77", values)
    described = {
        "hidden_act": "gelu",
        "hidden_size": width,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "max_position_embeddings": 20,
        "vocab_size": rows,
        "pooler_fc_size": 24,
    }
    (theirs / "bert_config.json").write_text(json.dumps(described))
    foreign = tf1.read(theirs)
    assert foreign.head == HeadConfig() and foreign.step == 77
    assert foreign.model.hidden_act == "gelu_new", "the original's gelu is the tanh form"
    word = foreign.params["encoder"]["embeddings"]["word"]["embedding"]
    np.testing.assert_array_equal(word, values["bert/embeddings/word_embeddings"])
    # The vectors of one head are neighbours in their outputs.
    query = foreign.params["encoder"]["layer_1"]["query"]["kernel"]
    kernel = values["bert/encoder/layer_1/attention/self/query/kernel"]
    np.testing.assert_array_equal(query, kernel)

    # The slots of the optimizer are left out.
    values = {name: value for name, value in values.items() if "/adam_" not in name}
    tf1.write(tmp_path / "ours", foreign, tokenizer=theirs)
    for again in (
        variables(tmp_path / "ours/bert_model.ckpt"),
        restore_like_tf1(tmp_path / "ours/bert_model.ckpt", values),
    ):
        assert again.keys() == values.keys()
        for name, value in values.items():
            assert again[name].dtype == value.dtype and again[name].shape == value.shape
            assert again[name].tobytes() == value.tobytes(), name


def test_the_directory_is_a_model_dir_of_tf1(tmp_path):
    directory, _ = written(tmp_path)
    assert tf.train.latest_checkpoint(str(directory)) == str(directory / "bert_model.ckpt")
    assert sorted(p.name for p in directory.iterdir()) == [
        "bert_config.json",
        "bert_model.ckpt.data-00000-of-00001",
        "bert_model.ckpt.index",
        "checkpoint",
        "vocab.txt",
    ]


def test_exact_gelu_comes_back(tmp_path):
    directory, _ = written(tmp_path, size="wider")
    described = json.loads((directory / "bert_config.json").read_text())
    assert described["hidden_act"] == "gelu" and "layer_norm_eps" not in described
    assert tf1.read(directory).model.hidden_act == "gelu"


def test_without_a_step(tmp_path):
    directory, params = written(tmp_path, step=0)
    found = variables(directory / "bert_model.ckpt")
    assert "global_step" not in found and len(found) == len(jax.tree.leaves(params))
    assert tf1.read(directory).step == 0


def test_classes_are_counted_where_they_have_no_names(tmp_path):
    directory, _ = written(tmp_path, "ForSequenceClassification")
    path = directory / "bert_config.json"
    described = json.loads(path.read_text())
    assert described.pop("labels") == ["neutral", "für", "contra"]
    path.write_text(json.dumps(described))
    assert tf1.read(directory).head.labels == ("LABEL_0", "LABEL_1", "LABEL_2")


def test_one_of_several_checkpoints(tmp_path):
    directory, _ = written(tmp_path)
    values = variables(directory / "bert_model.ckpt") | {"global_step": np.int64(99)}
    save_like_tf1(directory / "model.ckpt-99", values)
    assert tf1.read(directory).step == 99, "as their list says, which the Saver wrote anew"
    assert tf1.read(directory / "bert_model.ckpt").step == _STEP
    (directory / "checkpoint").unlink()
    with pytest.raises(UsageError, match=r"several checkpoints; name one of .*ckpt, .*ckpt-99"):
        tf1.read(directory)


# --- what is wrong -------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [np.array([1, 2]), np.float32(1.5), np.int64(-3), np.int64(2**40)])
def test_a_step_that_is_none(tmp_path, step):
    directory, _ = written(tmp_path)
    values = variables(directory / "bert_model.ckpt") | {"global_step": step}
    save_like_tf1(directory / "bert_model.ckpt", values)
    with pytest.raises(UsageError, match=r"global_step is .*; expected one number"):
        tf1.read(directory)


@pytest.mark.parametrize("file", ["index", "data-00000-of-00001"])
def test_truncated_files(tmp_path, file):
    directory, _ = written(tmp_path)
    path = directory / f"bert_model.ckpt.{file}"
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(UsageError, match=r"bert_model\.ckpt"):
        tf1.read(directory)


def test_a_flipped_byte(tmp_path):
    directory, _ = written(tmp_path)
    path = directory / "bert_model.ckpt.data-00000-of-00001"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(UsageError, match=r"bert_model\.ckpt cannot be read: .*"):
        tf1.read(directory)


@pytest.mark.parametrize(
    "text, message",
    [
        (None, "bert_config.json: No such file or directory; put the model's bert_config.json"),
        ("{", "is not JSON"),
        ("[]", "is not a config"),
        ('{"hidden_act": "relu"}', "hidden_act 'relu' is not gelu"),
        ('{"hidden_size": 5}', "does not divide hidden_size 5"),
    ],
)
def test_a_config_that_cannot_be_used(tmp_path, text, message):
    directory, _ = written(tmp_path)
    path = directory / "bert_config.json"
    path.unlink() if text is None else path.write_text(text)
    with pytest.raises(UsageError) as caught:
        tf1.read(directory)
    assert message in str(caught.value)


def test_what_the_original_cannot_compute_is_not_written(tmp_path):
    words = vocabulary(tmp_path / "words")
    small = SIZES["small"]
    model = dataclasses.replace(small, layer_norm_eps=1e-5)
    wrong = Foreign(model, HeadConfig(), random_params(model, HeadConfig()))
    with pytest.raises(UsageError, match="layer_norm_eps is 1e-05, but the TF1 code"):
        tf1.write(tmp_path / "tf1", wrong, tokenizer=words)
    tokens = HEADS["ForTokenClassification"]
    wrong = Foreign(small, tokens, random_params(small, tokens))
    with pytest.raises(UsageError, match="token classifier; use `format` hf"):
        tf1.write(tmp_path / "tf1", wrong, tokenizer=words)
    # That accents stay is nothing that a vocab.txt can say.
    config = {"do_lower_case": True, "strip_accents": False}
    path = words / "tokenizer_config.json"
    kept = path.read_text() if path.is_file() else None
    (words / "tokenizer.json").unlink(missing_ok=True)
    path.write_text(json.dumps(config))
    right = Foreign(small, HeadConfig(), random_params(small, HeadConfig()))
    with pytest.raises(UsageError, match="tokens that a vocab\\.txt cannot express"):
        tf1.write(tmp_path / "tf1", right, tokenizer=words)
    path.write_text(kept or json.dumps({"do_lower_case": True}))
    tf1.write(tmp_path / "words" / "tf1", right, tokenizer=words)
    assert [p.name for p in tmp_path.iterdir()] == ["words"]
