"""ModernBERT, EuroBERT and UltraBERT: the results and files of transformers, and bad configs."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bert_jax.config import ComputeConfig, HeadConfig, ModelConfig
from bert_jax.errors import UsageError
from bert_jax.interchange import huggingface, huggingface_config
from bert_jax.model import bert
from bert_jax.model.layer_spec import layer_specs
from bert_jax.registry import FAMILIES
from tests.golden import make_eurobert, make_modernbert, make_ultrabert
from tests.golden.make_modernbert import HEAD, MODEL, documents, params
from tests.models import apply, assert_same, edit_config, vocabulary

_FLOAT32 = ComputeConfig(dtype="float32")
_EUROBERT, _ULTRABERT = make_eurobert.MODEL, make_ultrabert.MODEL
MODELS = {"modernbert": MODEL, "eurobert": _EUROBERT, "ultrabert": _ULTRABERT}
GOLDEN = {
    "modernbert": dict(np.load(make_modernbert.FILE)),
    "eurobert": dict(np.load(make_eurobert.FILE)),
    "ultrabert": dict(np.load(make_ultrabert.FILE)),
}
# The versions of transformers that know a family.
each_golden = pytest.mark.parametrize(
    ("family", "version"),
    [("modernbert", "4"), ("modernbert", "5"), ("eurobert", "5"), ("ultrabert", "5")],
)
each_family = pytest.mark.parametrize("family", MODELS)


def row_of(*texts: np.ndarray, length: int) -> dict[str, np.ndarray]:
    """Returns one row with these documents, and padding after them."""
    sizes = [len(text) for text in texts]
    left = length - sum(sizes)
    arrays = {
        "input_ids": np.concatenate([*texts, np.zeros(left)]),
        "position_ids": np.concatenate([*map(np.arange, sizes), np.zeros(left)]),
        "sequence_ids": np.repeat([*range(1, len(texts) + 1), 0], [*sizes, left]),
        "token_type_ids": np.zeros(length),
        "mlm_positions": np.arange(length),
    }
    return {name: array[None].astype(np.int32) for name, array in arrays.items()}


def logits_of(params, row, model=MODEL):
    outputs = apply(params, row, config=model, head=HEAD, compute=_FLOAT32)
    return outputs["mlm_logits"][0]


def written(folder, model=MODEL, head=HEAD, tree=None, **options):
    tree = params(model) if tree is None else tree
    words = vocabulary(folder / "words")
    huggingface.write(folder / "hf", tree, model, head=head, tokenizer=words, **options)
    return folder / "hf"


# --- what they compute ---------------------------------------------------------------------------


@each_golden
def test_logits_equal_transformers(family, version):
    """One document that fills a row; three that share a row, each as it is alone."""
    model, golden = MODELS[family], GOLDEN[family]
    first, *packed = documents()
    alone = logits_of(params(model), row_of(first, length=64), model)
    together = logits_of(params(model), row_of(*packed, length=96), model)
    ends = np.cumsum([len(text) for text in packed])
    for number, ours in enumerate([alone, *np.split(together, ends)[:-1]]):
        theirs = golden[f"{version}.logits.{number}"]
        np.testing.assert_allclose(ours, theirs, atol=1e-5, rtol=0)


@each_family
def test_gradients_equal_transformers(family):
    model, golden, row = MODELS[family], GOLDEN[family], row_of(documents()[0], length=64)
    run = jax.jit(jax.grad(lambda p: jnp.mean(jnp.sin(logits_of(p, row, model)))))
    tensors = FAMILIES[family].to_tensors(run(params(model)))
    for version in "45" if family == "modernbert" else "5":
        named = {key for key in golden if key.startswith(f"{version}.gradient.")}
        assert named == {f"{version}.gradient.{name}" for name in tensors}
        for name, ours in tensors.items():
            theirs = golden[f"{version}.gradient.{name}"]
            largest = golden[f"{version}.largest.{name}"]
            bound = 1e-5 * largest
            np.testing.assert_allclose(
                make_modernbert.sample(ours), theirs, atol=bound, rtol=0, err_msg=name
            )
            assert abs(np.abs(ours).max() - largest) <= bound, name


def test_initial_deviations_are_those_of_the_published_recipe():
    """0.02 truncated at two deviations, which is 0.01759; the output maps over sqrt(2 x 22)."""
    model = dataclasses.replace(MODEL, num_hidden_layers=22, hidden_size=128, vocab_size=2048)
    tree = bert.init_params(model, HEAD, seed=0)
    layers = [tree["encoder"][f"layer_{number}"] for number in range(22)]
    # A head as wide as theirs: 128 x 128 numbers are too few for one percent.
    wide = dataclasses.replace(model, num_hidden_layers=1, hidden_size=768, vocab_size=512)
    inward = ("query", "key", "value", "gate", "intermediate")
    outward = ("attention_output", "output")
    for arrays, expected, cut in (
        ([layer[name]["kernel"] for layer in layers for name in inward], 0.01759, 0.04),
        ([layer[name]["kernel"] for layer in layers for name in outward], 0.00265, 0.04 / 44**0.5),
        ([tree["encoder"]["embeddings"]["word"]["embedding"]], 0.01759, 0.04),
        ([bert.init_params(wide, HEAD, seed=0)["mlm"]["transform"]["kernel"]], 0.01759, 0.04),
    ):
        drawn = np.concatenate([np.ravel(array) for array in arrays])
        assert np.sqrt(np.mean(drawn**2)) == pytest.approx(expected, rel=0.01)
        assert np.abs(drawn).max() <= cut


# --- directories ---------------------------------------------------------------------------------


@each_golden
def test_what_transformers_writes_is_read_and_written_again(family, version, tmp_path):
    golden, model = GOLDEN[family], MODELS[family]
    directory = written(tmp_path, model)
    tensors = load_file(directory / "model.safetensors")
    assert sorted(tensors) == [*golden[f"{version}.tensors"]]
    (directory / "config.json").write_text(str(golden[f"{version}.config"]))
    back = huggingface.read(directory)
    assert (back.model, back.head) == (model, HEAD)
    assert_same(back.params, params(model))
    (tmp_path / "again").mkdir()
    again = written(tmp_path / "again", back.model, tree=back.params)
    assert_same(load_file(again / "model.safetensors"), tensors)
    edit_config(directory, architectures=None)
    assert huggingface.read(directory).head == HEAD


def test_both_forms_of_a_config_are_written(tmp_path):
    described = json.loads((written(tmp_path) / "config.json").read_text())
    full, sliding = "full_attention", "sliding_attention"
    assert described["layer_types"] == [full, sliding, sliding, full]
    assert described["rope_parameters"][full]["rope_theta"] == 1_000
    assert described["rope_parameters"][sliding]["rope_theta"] == 100
    assert (described["global_rope_theta"], described["local_rope_theta"]) == (1_000, 100)
    assert (described["global_attn_every_n_layers"], described["local_attention"]) == (3, 16)
    assert described["architectures"] == ["ModernBertForMaskedLM"]
    ids = [described[f"{name}_token_id"] for name in ("pad", "cls", "bos", "sep", "eos")]
    assert ids == [0, 2, 2, 3, 3]
    names = json.loads((tmp_path / "hf/tokenizer_config.json").read_text())["model_input_names"]
    assert "token_type_ids" not in names


def test_the_configs_of_the_others(tmp_path):
    described = json.loads((written(tmp_path, _EUROBERT) / "config.json").read_text())
    assert described["architectures"] == ["EuroBertForMaskedLM"]
    assert (described["num_key_value_heads"], described["head_dim"]) == (2, 16)
    assert described["rope_parameters"] == {"rope_type": "default", "rope_theta": 1_000}
    assert None not in described.values()
    (tmp_path / "ultra").mkdir()
    described = json.loads((written(tmp_path / "ultra", _ULTRABERT) / "config.json").read_text())
    theirs = json.loads(str(GOLDEN["ultrabert"]["5.config"]))
    assert described.pop("torch_dtype") and described.items() <= theirs.items()


_SHAPES = {
    "every layer global": {
        "attention_window": 0,
        "global_attention_every_n_layers": 0,
        "local_rope_theta": 0.0,
    },
    "one theta": {"local_rope_theta": 0.0},
    "the first layer alone": {"global_attention_every_n_layers": 9},
    "biases": {"linear_bias": True, "norm_bias": True},
    "no bias of the decoder": {"decoder_bias": False},
    "an untied decoder": {"tie_word_embeddings": False},
    "tanh": {"hidden_act": "gelu_new"},
    "the mean of all tokens": {"classifier_pooling": "mean"},
}


@pytest.mark.parametrize("name", _SHAPES)
def test_other_shapes_go_both_ways(name, tmp_path):
    model = dataclasses.replace(MODEL, **_SHAPES[name])
    directory = written(tmp_path, model)
    back = huggingface.read(directory)
    assert (back.model, back.head) == (model, HEAD)
    assert_same(back.params, params(model))
    # And from the newer keys alone.
    every = 9 if name == "the first layer alone" else None
    older = {"global_rope_theta": None, "local_rope_theta": None}
    edit_config(directory, global_attn_every_n_layers=every, **older)
    assert huggingface.read(directory).model == model


@each_family
def test_a_body_without_a_head_has_no_prefix(family, tmp_path):
    model, head = MODELS[family], HeadConfig(parts=())
    tree = {"encoder": params(model)["encoder"]}
    directory = written(tmp_path, model, head=head, tree=tree)
    assert not any(n.startswith("model.") for n in load_file(directory / "model.safetensors"))
    back = huggingface.read(directory)
    assert (back.model, back.head.parts) == (model, ())
    assert_same(back.params, tree)


_LABELS = ("no", "yes", "perhaps")
_TEXTS = HeadConfig(parts=("pooler", "sequence_classifier"), labels=_LABELS, pooler_act="gelu")
_WORDS = HeadConfig(parts=("token_classifier",), labels=_LABELS)
_ANSWERS = HeadConfig(parts=("span_classifier",))
_CLASSIFIERS = [
    *(("modernbert", head, f"ModernBertFor{task}") for task, head in make_modernbert.TASKS.items()),
    ("eurobert", _TEXTS, "EuroBertForSequenceClassification"),
    ("eurobert", _WORDS, "EuroBertForTokenClassification"),
    ("ultrabert", _WORDS, "UltrabertForTokenClassification"),
    ("ultrabert", _ANSWERS, "UltrabertForQuestionAnswering"),
]


@pytest.mark.parametrize(("family", "head", "name"), _CLASSIFIERS, ids=lambda x: str(x)[:40])
def test_classifiers_go_both_ways(family, head, name, tmp_path):
    model, tree = MODELS[family], params(MODELS[family], head)
    directory = written(tmp_path, model, head=head, tree=tree)
    described = json.loads((directory / "config.json").read_text())
    assert described["architectures"] == [name]
    assert described.get("num_labels", 0) == len(head.labels)
    back = huggingface.read(directory)
    same = ("parts", "labels", "transform")
    assert back.model == model
    assert [getattr(back.head, n) for n in same] == [getattr(head, n) for n in same]
    assert_same(back.params, tree)


@pytest.mark.parametrize(
    ("family", "poolings"),
    [
        ("modernbert", {"mean": "mean"}),
        ("eurobert", {"bos": "cls", "mean": "mean", "late": "late"}),
    ],
)
def test_poolings_of_a_classifier(family, poolings, tmp_path):
    directory = written(tmp_path, MODELS[family])
    for theirs, ours in poolings.items():
        edit_config(directory, classifier_pooling=theirs)
        assert huggingface.read(directory).model.classifier_pooling == ours


def test_old_names_of_tensors(tmp_path):
    """`save_pretrained` of transformers 5.24 undoes the renaming of `conversion_mapping.py`."""
    directory = written(tmp_path, _ULTRABERT)
    saved = {
        name.replace("model.", "ultrabert.", 1).replace("head.decoder.", "cls.", 1): tensor
        for name, tensor in load_file(directory / "model.safetensors").items()
    }
    assert {"cls.weight", "ultrabert.embed_tokens.weight", "head.linear1.weight"} <= saved.keys()
    save_file(saved, directory / "model.safetensors")
    assert_same(huggingface.read(directory).params, params(_ULTRABERT))


def test_old_configs_have_a_window_and_a_theta_per_layer(tmp_path):
    directory = written(tmp_path, _ULTRABERT)
    edit_config(
        directory, sliding_window=None, layer_types=None, rope_parameters=None,
        attention_windows=[8, 8, None, 8], rope_theta=[100.0, 100.0, 1e3, 100.0],
    )  # fmt: skip
    assert huggingface.read(directory).model == _ULTRABERT


@pytest.mark.parametrize(
    ("kinds", "every", "first"),
    [("LLGLLGLL", 3, 2), ("GLLGLLGL", 3, 0), ("LGLGLGLG", 2, 1), ("LLLG", 3, 3), ("LLL", 0, 0)],
)
def test_patterns_of_layers_are_read(kinds, every, first, tmp_path):
    names = {"L": "sliding_attention", "G": "full_attention"}
    theirs = {"model_type": "ultrabert", "num_hidden_layers": len(kinds)}
    theirs["layer_types"] = [names[kind] for kind in kinds]
    model = huggingface_config.model_of(theirs, tmp_path)
    assert (model.global_attention_every_n_layers, model.first_global_layer) == (every, first)
    assert "".join("G" if each.window is None else "L" for each in layer_specs(model)) == kinds


def test_dropout_is_the_runs(tmp_path, capsys):
    directory = written(tmp_path, dataclasses.replace(MODEL, hidden_dropout_prob=0.1))
    assert json.loads((directory / "config.json").read_text())["attention_dropout"] == 0
    edit_config(directory, attention_dropout=0.1)
    assert huggingface.read(directory).model == MODEL
    assert "attention_dropout ignored" in capsys.readouterr().err


# --- what is refused, by name --------------------------------------------------------------------

_FULL, _SLIDING = "full_attention", "sliding_attention"
_YARN = {_FULL: {"rope_type": "yarn", "rope_theta": 1e3}}
# The old name of the kind, which transformers still reads.
_LINEAR = {_FULL: {"type": "linear", "factor": 2.0}}
_UNREADABLE = {
    "modernbert": [
        ({"local_rope_theta": 50.0}, "local_rope_theta gives 50.0, but rope_parameters gives"),
        ({"global_attn_every_n_layers": 2}, "global_attn_every_n_layers gives 2, but layer_types"),
        (
            {"layer_types": [_SLIDING, _FULL] * 2, "global_attn_every_n_layers": None},
            "the supported patterns have .* layers 0, n, 2n",
        ),
        ({"layer_types": [_FULL]}, "layer_types is .* for each layer"),
        ({"rope_parameters": _YARN}, "rope_parameters.full_attention is .*yarn"),
        ({"rope_parameters": _LINEAR}, "rope_parameters.full_attention is .*linear"),
        ({"rope_scaling": {"factor": 2.0}}, "rope_scaling is .*, which is not supported"),
        ({"mlp_bias": True}, "mlp_bias is True, but attention_bias is False"),
        ({"classifier_activation": "silu"}, "classifier_activation is 'silu', but hidden_act"),
        ({"hidden_activation": "relu"}, "hidden_activation is 'relu'; expected one of"),
        ({"local_attention": 0}, "local_attention is 0; must be at least 1"),
        ({"classifier_pooling": "max"}, "classifier_pooling is 'max'; expected one of cls, mean"),
        ({"norm_eps": "small"}, "norm_eps is 'small'; expected float"),
        ({"norm_bias": 1}, "norm_bias is 1; expected bool"),
        ({"num_hidden_layers": True}, "num_hidden_layers is True; expected int"),
    ],
    "eurobert": [
        ({"num_key_value_heads": 3}, "num_key_value_heads is 3, which does not divide"),
        ({"head_dim": 32}, "head_dim"),
        ({"mlp_bias": True}, "mlp_bias is True, which is not supported"),
        ({"rope_theta": 5.0}, "rope_theta gives 5.0, but rope_parameters gives 1000.0"),
        ({"rope_parameters": {"rope_type": "llama3"}}, "rope_parameters is .*llama3"),
        ({"rope_parameters": {"type": "linear", "factor": 2.0}}, "rope_parameters is .*linear"),
        ({"rope_scaling": {"rope_theta": 5.0}}, "rope_scaling gives 5.0, but rope_parameters"),
        ({"classifier_pooling": "cls"}, "classifier_pooling is 'cls'; expected one of bos, mean"),
    ],
    "ultrabert": [
        ({"layer_types": [{}] * 4}, "layer_types is .* for each layer"),
        # Each layer is written out.
        ({"layer_types": None, "num_hidden_layers": 10**7}, "num_hidden_layers is 10,000,000"),
        ({"layer_types": [_FULL] * 2 + [_SLIDING] * 2}, "the supported patterns have .* layers f"),
        ({"sliding_window": 0}, "sliding_window"),
        ({"prediction_head_size": "wide"}, "prediction_head_size is 'wide'; expected int"),
        ({"rope_scaling": {"type": "linear"}}, "rope_scaling is .*, which is not supported"),
        ({"rope_parameters": None, "rope_theta": [1.0, 2.0, 3.0, 1.0]}, "one for each kind"),
    ],
}


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [(family, *case) for family, cases in _UNREADABLE.items() for case in cases],
)
def test_a_config_that_is_not_computed(family, changes, message, tmp_path):
    directory = written(tmp_path, MODELS[family])
    edit_config(directory, **changes)
    with pytest.raises(UsageError, match=message) as caught:
        huggingface.read(directory)
    assert "config.json" in str(caught.value) and "\n" not in str(caught.value)


_BARE = HeadConfig(parts=())
_INEXPRESSIBLE = [
    ("modernbert", {"first_norm": True}, _BARE, r"model\.first_norm is true"),
    ("modernbert", {"type_vocab_size": 2}, _BARE, r"model\.type_vocab_size is 2"),
    ("modernbert", {"norm": "rmsnorm"}, _BARE, r"model\.norm is rmsnorm"),
    ("modernbert", {"feed_forward": "dense"}, _BARE, r"model\.feed_forward is dense"),
    ("modernbert", {"embedding_norm": False}, _BARE, r"model\.embedding_norm is false"),
    ("modernbert", {"embedding_size": 32}, _BARE, r"model\.embedding_size is 32"),
    ("modernbert", {"classifier_pooling": "late"}, _BARE, r"model\.classifier_pooling is late"),
    (
        "modernbert", {"global_attention_every_n_layers": 0}, _BARE,
        r"model\.global_attention_every_n_layers is 0, but the first layer of a ModernBERT is",
    ),
    (
        "modernbert", {}, dataclasses.replace(make_modernbert.TASKS["TokenClassification"],
                                              transform=False),
        r"head\.transform is false.*set head\.transform=true",
    ),
    ("eurobert", {}, _ANSWERS, "head.parts span_classifier"),
    ("ultrabert", {}, _TEXTS, "head.parts .*sequence_classifier"),
    ("ultrabert", {"attention_window": 15}, _BARE, r"model\.attention_window is 15"),
    ("ultrabert", {"masked_lm_inner_size": 0}, _BARE, r"model\.masked_lm_inner_size 0"),
]  # fmt: skip


@pytest.mark.parametrize(("family", "changes", "head", "message"), _INEXPRESSIBLE)
def test_a_model_that_a_config_cannot_express(family, changes, head, message):
    model = dataclasses.replace(MODELS[family], **changes)
    with pytest.raises(UsageError, match=message):
        FAMILIES[family].require_expressible(model, head)


def test_no_other_family_expresses_its_layers():
    for name in ("eurobert", "modernbert"):
        with pytest.raises(UsageError, match=r"model\.first_global_layer is 2"):
            FAMILIES[name].require_expressible(_ULTRABERT, HEAD)


# --- the published ones --------------------------------------------------------------------------


def count(model: ModelConfig, head: HeadConfig) -> int:
    """Returns the number of parameters. All layers but the first are alike: two are counted."""
    two, three = (
        bert.parameter_count(
            bert.abstract_params(dataclasses.replace(model, num_hidden_layers=n), head)
        )
        for n in (2, 3)
    )
    return two + (model.num_hidden_layers - 2) * (three - two)


_SIZES = ("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads",
          "vocab_size", "num_key_value_heads")  # fmt: skip


@pytest.mark.parametrize(
    ("family", "shape", "with_head", "body"),
    [
        ("modernbert", (22, 768, 1152, 12, 50_368), 149_655_232, 149_014_272),
        ("modernbert", (28, 1024, 2624, 16, 50_368), 395_881_664, 394_781_696),
        ("modernbert", (22, 768, 1152, 12, 256_000), 307_786_240, 306_939_648),
        ("eurobert", (12, 768, 3072, 12, 128_256, 12), 310_266_624, 211_766_016),
        ("eurobert", (32, 2304, 6144, 18, 128_256, 6), 2_403_092_736, 2_107_590_912),
    ],
)
def test_parameter_counts_are_the_published_ones(family, shape, with_head, body):
    sizes = dict(zip(_SIZES, shape, strict=False))
    model = dataclasses.replace(MODELS[family], **sizes)
    assert (count(model, HEAD), count(model, HeadConfig(parts=()))) == (with_head, body)
