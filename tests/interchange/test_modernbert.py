"""ModernBERT: as both versions of transformers compute and write it, and each wrong reading."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from bert_jax.config import ComputeConfig, HeadConfig, ModelConfig
from bert_jax.errors import UsageError
from bert_jax.interchange import huggingface
from bert_jax.interchange.modernbert import FAMILY
from bert_jax.model import bert, encoder
from bert_jax.model.heads import masked_lm
from bert_jax.model.layer_spec import layer_specs
from tests.golden import make_eurobert, make_modernbert, make_ultrabert
from tests.golden.make_modernbert import HEAD, MODEL, documents, params
from tests.models import assert_same, vocabulary

VERSIONS = ("4", "5")
each_version = pytest.mark.parametrize("version", VERSIONS)
_FLOAT32 = ComputeConfig(dtype="float32")


@pytest.fixture(scope="module")
def golden():
    return dict(np.load(make_modernbert.FILE))


def row_of(*texts: np.ndarray, length: int) -> dict[str, np.ndarray]:
    """One row with these documents, and padding behind them."""
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
    outputs = bert.apply(params, row, config=model, head=HEAD, compute=_FLOAT32)
    return outputs["mlm_logits"][0]


def assert_logits(golden, version, model):
    """One document that fills a row; three that share one, each beside what it is alone."""
    first, *packed = documents()
    alone = logits_of(params(model), row_of(first, length=64), model)
    together = logits_of(params(model), row_of(*packed, length=96), model)
    ends = np.cumsum([len(text) for text in packed])
    for number, ours in enumerate([alone, *np.split(together, ends)[:-1]]):
        theirs = golden[f"{version}.logits.{number}"]
        np.testing.assert_allclose(ours, theirs, atol=1e-5, rtol=0)


def assert_gradients(golden, versions, model, family):
    row = row_of(documents()[0], length=64)
    run = jax.jit(jax.grad(lambda p: jnp.mean(jnp.sin(logits_of(p, row, model)))))
    tensors = huggingface.to_tensors(run(params(model)), family)
    for version in versions:
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


# --- what it computes ----------------------------------------------------------------------------


@each_version
def test_logits_equal_transformers(golden, version):
    assert_logits(golden, version, MODEL)


@pytest.mark.parametrize("maker", [make_modernbert, make_eurobert, make_ultrabert])
def test_a_document_does_not_see_its_neighbours(maker):
    """In this family and in the two that are packed alike."""
    _, *packed = documents()
    model, row = maker.MODEL, row_of(*packed, length=96)
    before = np.asarray(logits_of(params(model), row, model))
    packed[1] = (packed[1] + 1) % 60
    after = np.asarray(logits_of(params(model), row_of(*packed, length=96), model))
    assert (before[:40] == after[:40]).all() and (before[64:] == after[64:]).all()
    assert (before[40:64] != after[40:64]).all(axis=1).all()


def test_gradients_equal_transformers(golden):
    assert_gradients(golden, VERSIONS, MODEL, FAMILY)


def changed(**changes):
    return lambda patch, tree: (dataclasses.replace(MODEL, **changes), tree)


def edited(edit):
    def reading(patch, tree):
        edit(tree)
        return MODEL, tree

    return reading


def first_norm(patch, tree):
    tree["encoder"]["layer_0"]["attention_norm"] = {"scale": np.ones(64, np.float32)}
    return dataclasses.replace(MODEL, first_norm=True), tree


def no_embedding_norm(patch, tree):
    del tree["encoder"]["embeddings"]["layer_norm"]
    return dataclasses.replace(MODEL, embedding_norm=False), tree


def no_last_norm(patch, tree):
    begin = encoder.Encoder.__init__

    def without(self, *args, **options):
        begin(self, *args, **options)
        self.final_norm = None

    patch.setattr(encoder.Encoder, "__init__", without)
    del tree["encoder"]["final_norm"]
    return MODEL, tree


def shifted(by):
    def reading(patch, tree):
        def specs(model):
            found = layer_specs(model)
            kinds = found[by:] + found[:by]
            return tuple(
                dataclasses.replace(kind, has_attention_norm=own.has_attention_norm)
                for kind, own in zip(kinds, found, strict=True)
            )

        patch.setattr(encoder, "layer_specs", specs)
        return MODEL, tree

    return reading


def tanh_in(module):
    def reading(patch, tree):
        exact = module.activation
        patch.setattr(module, "activation", lambda name, x: exact("gelu_new", x))
        return MODEL, tree

    return reading


def swapped_halves(tree):
    for number in range(4):
        layer = tree["encoder"][f"layer_{number}"]
        layer["gate"], layer["intermediate"] = layer["intermediate"], layer["gate"]


READINGS = {
    "a norm in layer 0": first_norm,
    "kinds shifted by one": shifted(1),
    "kinds shifted by two": shifted(2),
    "a wider window": changed(attention_window=18),
    "a narrower window": changed(attention_window=14),
    "the window on each side": changed(attention_window=32),
    "no norm of the embeddings": no_embedding_norm,
    "no last norm": no_last_norm,
    "no bias of the decoder": edited(lambda tree: tree["mlm"]["bias"].fill(0)),
    "the halves swapped": edited(swapped_halves),
    "tanh in the blocks": tanh_in(encoder),
    "tanh in the head": tanh_in(masked_lm),
    "the thetas swapped": changed(rope_theta=100.0, local_rope_theta=1_000.0),
    "one theta": changed(local_rope_theta=0.0),
    "the default thetas": changed(rope_theta=160_000.0, local_rope_theta=10_000.0),
    "interleaved rotation": changed(position_embedding_type="rotary_interleaved"),
}


@pytest.mark.parametrize("name", READINGS)
def test_a_wrong_reading_is_seen(golden, name, monkeypatch):
    # Structures are kept by config, which does not say that a part of the code is another one.
    monkeypatch.setattr(bert, "_structure", bert._structure.__wrapped__)
    model, tree = READINGS[name](monkeypatch, params())
    ours = logits_of(tree, row_of(documents()[0], length=64), model)
    assert np.abs(ours - golden["5.logits.0"]).max() >= 5e-4


def test_initial_deviations_are_those_of_the_published_recipe():
    """0.02 cut at two deviations, which is 0.01759; the output maps over sqrt(2 x 22)."""
    model = dataclasses.replace(MODEL, num_hidden_layers=22, hidden_size=128, vocab_size=2048)
    tree = bert.init_params(model, HEAD, seed=0)
    layers = [tree["encoder"][f"layer_{number}"] for number in range(22)]

    def deviation(arrays):
        drawn = np.concatenate([np.ravel(array) for array in arrays])
        return np.sqrt(np.mean(drawn**2)), np.abs(drawn).max()

    inward, outward = (
        ("query", "key", "value", "gate", "intermediate"),
        (
            "attention_output",
            "output",
        ),
    )
    inner, cut = deviation(layer[name]["kernel"] for layer in layers for name in inward)
    assert inner == pytest.approx(0.01759, rel=0.01) and cut <= 0.04
    outer, cut = deviation(layer[name]["kernel"] for layer in layers for name in outward)
    assert outer == pytest.approx(0.00265, rel=0.01) and cut <= 0.04 / 44**0.5
    table, cut = deviation([tree["encoder"]["embeddings"]["word"]["embedding"]])
    assert table == pytest.approx(0.01759, rel=0.01) and cut <= 0.04
    # A head that is as wide as theirs: one of 128 x 128 draws too few for one in a hundred.
    wide = dataclasses.replace(model, num_hidden_layers=1, hidden_size=768, vocab_size=512)
    tree = bert.init_params(wide, HEAD, seed=0)
    head, cut = deviation([tree["mlm"]["transform"]["kernel"]])
    assert head == pytest.approx(0.01759, rel=0.01) and cut <= 0.04


@each_version
@pytest.mark.parametrize("task", make_modernbert.TASKS)
def test_heads_of_tasks_equal_transformers(golden, task, version):
    head = make_modernbert.TASKS[task]
    tree, row = params(head=head), row_of(documents()[0], length=64)
    outputs = bert.apply(tree, row, config=MODEL, head=head, compute=_FLOAT32)
    (name,) = (name for name in outputs if name.endswith("_logits"))
    np.testing.assert_allclose(outputs[name][0], golden[f"{version}.{task}"], atol=1e-5, rtol=0)


# --- directories ---------------------------------------------------------------------------------


def written(folder, model=MODEL, head=HEAD, tree=None, **options):
    tree = params(model) if tree is None else tree
    words = vocabulary(folder / "words")
    huggingface.write(folder / "hf", tree, model, head=head, tokenizer=words, **options)
    return folder / "hf"


def edit(directory, **changes):
    """None removes a field."""
    path = directory / "config.json"
    described = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({k: v for k, v in described.items() if v is not None}))


@each_version
def test_what_transformers_writes_is_read_and_written_again(golden, version, tmp_path):
    directory = written(tmp_path)
    tensors = load_file(directory / "model.safetensors")
    assert sorted(tensors) == [*golden[f"{version}.tensors"]]
    (directory / "config.json").write_text(str(golden[f"{version}.config"]))
    back = huggingface.read(directory)
    assert (back.model, back.head) == (MODEL, HEAD)
    assert_same(back.params, params())
    (tmp_path / "again").mkdir()
    again = written(tmp_path / "again", back.model, tree=back.params)
    assert_same(load_file(again / "model.safetensors"), tensors)


def test_both_dialects_are_written(tmp_path):
    described = json.loads((written(tmp_path) / "config.json").read_text())
    assert described["layer_types"] == [
        "full_attention",
        "sliding_attention",
        "sliding_attention",
        "full_attention",
    ]
    assert described["rope_parameters"]["full_attention"]["rope_theta"] == 1_000
    assert described["rope_parameters"]["sliding_attention"]["rope_theta"] == 100
    assert (described["global_rope_theta"], described["local_rope_theta"]) == (1_000, 100)
    assert (described["global_attn_every_n_layers"], described["local_attention"]) == (3, 16)
    assert described["architectures"] == ["ModernBertForMaskedLM"]
    ids = [described[f"{name}_token_id"] for name in ("pad", "cls", "bos", "sep", "eos")]
    assert ids == [0, 2, 2, 3, 3]
    names = json.loads((tmp_path / "hf/tokenizer_config.json").read_text())["model_input_names"]
    assert "token_type_ids" not in names


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
    "a decoder of its own": {"tie_word_embeddings": False},
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
    # And from the newer fields alone.
    edit(
        directory,
        global_attn_every_n_layers=9 if name == "the first layer alone" else None,
        global_rope_theta=None,
        local_rope_theta=None,
    )
    assert huggingface.read(directory).model == model


def test_a_body_without_a_head_has_no_prefix(tmp_path):
    head = HeadConfig(parts=())
    tree = {"encoder": params()["encoder"]}
    directory = written(tmp_path, head=head, tree=tree)
    assert "layers.0.attn.Wqkv.weight" in load_file(directory / "model.safetensors")
    back = huggingface.read(directory)
    assert (back.model, back.head) == (MODEL, head)
    assert_same(back.params, tree)


@pytest.mark.parametrize("task", make_modernbert.TASKS)
def test_heads_of_tasks_go_both_ways(task, tmp_path):
    head = make_modernbert.TASKS[task]
    tree = params(head=head)
    directory = written(tmp_path, head=head, tree=tree)
    described = json.loads((directory / "config.json").read_text())
    assert described["architectures"] == [f"ModernBertFor{task}"]
    assert described.get("num_labels", 0) == len(head.labels)
    names = {name for name in load_file(directory / "model.safetensors") if "model." not in name}
    assert names == {
        "head.dense.weight",
        "head.norm.weight",
        "classifier.weight",
        "classifier.bias",
    }
    back = huggingface.read(directory)
    assert (back.model, back.head) == (MODEL, head)
    assert_same(back.params, tree)
    bare = dataclasses.replace(head, transform=False)
    (tmp_path / "bare").mkdir()
    with pytest.raises(UsageError, match=r"head\.transform is False.*set head\.transform=true"):
        written(tmp_path / "bare", head=bare, tree={})
    edit(directory, classifier_pooling="mean")
    assert huggingface.read(directory).model.classifier_pooling == "mean"


def test_moments_travel(tmp_path):
    moments = (params(), jax.tree.map(np.abs, params()))
    back = huggingface.read(written(tmp_path, moments=moments, step=7))
    assert back.step == 7 and back.moments is not None
    assert_same(back.moments[1], moments[1])


_PLAIN = {"rope_type": "default", "rope_theta": 1_000.0}
_REFUSED = {
    "local_rope_theta is 50.0, but rope_parameters says 100.0": {"local_rope_theta": 50.0},
    "global_attn_every_n_layers is 2, but layer_types says 3": {"global_attn_every_n_layers": 2},
    "only patterns are read in which layers 0, n, 2n": {
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "global_attn_every_n_layers": None,
    },
    "layer_types is .*; expected one for each layer": {"layer_types": ["full_attention"]},
    "rope_parameters has .*yarn.* for full_attention": {
        "rope_parameters": {"full_attention": _PLAIN | {"rope_type": "yarn"}}
    },
    "rope_parameters has .*linear.* for full_attention": {
        "rope_parameters": {"full_attention": {"type": "linear", "rope_theta": 1_000.0}}
    },
    "rope_scaling is .*, which is not supported": {"rope_scaling": {"factor": 2.0}},
    "mlp_bias is True, and attention_bias False": {"mlp_bias": True},
    "classifier_activation is silu, and hidden_activation gelu": {"classifier_activation": "silu"},
    "hidden_activation 'relu' is not one of": {
        "hidden_activation": "relu",
        "classifier_activation": "relu",
    },
    "local_attention is 0; at least 1": {"local_attention": 0},
    "classifier_pooling is 'max'; expected cls or mean": {"classifier_pooling": "max"},
    "norm_eps is 'small'; expected float": {"norm_eps": "small"},
    "norm_bias is 1; expected bool": {"norm_bias": 1},
    "num_hidden_layers is True; expected int": {"num_hidden_layers": True, "layer_types": None},
}


@pytest.mark.parametrize("message", _REFUSED)
def test_what_is_not_computed_is_refused_by_name(message, tmp_path):
    directory = written(tmp_path)
    edit(directory, **_REFUSED[message])
    with pytest.raises(UsageError, match=message) as caught:
        huggingface.read(directory)
    assert "config.json" in str(caught.value) and "\n" not in str(caught.value)


def test_dropout_is_the_runs_to_say(tmp_path, capsys):
    directory = written(tmp_path, dataclasses.replace(MODEL, hidden_dropout_prob=0.1))
    assert json.loads((directory / "config.json").read_text())["attention_dropout"] == 0
    edit(directory, attention_dropout=0.1)
    assert huggingface.read(directory).model == MODEL
    assert "attention_dropout is not read; dropout is the run's to say" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"first_norm": True}, r"model\.first_norm is True, which this format does not support"),
        ({"type_vocab_size": 2}, r"model\.type_vocab_size is 2"),
        ({"norm": "rmsnorm"}, r"model\.norm is rmsnorm"),
        ({"feed_forward": "dense"}, r"model\.feed_forward is dense"),
        ({"embedding_norm": False}, r"model\.embedding_norm is False"),
        ({"embedding_size": 32}, r"model\.embedding_size is 32"),
        ({"classifier_pooling": "late"}, r"model\.classifier_pooling is late, which ModernBERT"),
        (
            {"global_attention_every_n_layers": 0},
            r"model\.global_attention_every_n_layers is 0, and ModernBERT's first layer is global",
        ),
    ],
)
def test_what_its_config_cannot_say_is_not_written(changes, message, tmp_path):
    model = dataclasses.replace(MODEL, **changes)
    with pytest.raises(UsageError, match=message):
        written(tmp_path, model, model_type="modernbert")
    assert not (tmp_path / "hf").exists()


# --- the published ones --------------------------------------------------------------------------


def count(model: ModelConfig, head: HeadConfig) -> int:
    """All layers but the first are alike: those of two are counted."""
    two, three = (
        bert.parameter_count(
            bert.abstract_params(dataclasses.replace(model, num_hidden_layers=n), head)
        )
        for n in (2, 3)
    )
    return two + (model.num_hidden_layers - 2) * (three - two)


@pytest.mark.parametrize(
    ("shape", "with_head", "body"),
    [
        ((22, 768, 1152, 12), 149_655_232, 149_014_272),
        ((28, 1024, 2624, 16), 395_881_664, 394_781_696),
        ((7, 256, 384, 4), 16_913_600, None),
        ((10, 384, 576, 6), 32_081_344, None),
        ((19, 512, 768, 8), 68_457_664, None),
        ((28, 1792, 3840, 28), 1_031_314_112, None),
        ((22, 384, 1152, 6, 256_000), 140_897_536, 140_493_696),
        ((22, 768, 1152, 12, 256_000), 307_786_240, 306_939_648),
    ],
)
def test_parameter_counts_are_the_published_ones(shape, with_head, body):
    layers, width, inner, heads, *words = shape
    model = dataclasses.replace(
        MODEL,
        num_hidden_layers=layers,
        hidden_size=width,
        intermediate_size=inner,
        num_attention_heads=heads,
        vocab_size=(*words, 50_368)[0],
    )
    assert count(model, HEAD) == with_head
    # Of the body alone where that is published, too.
    assert body in (None, with_head - width * (width + 1) - model.vocab_size)


def test_a_body_is_all_but_the_head():
    assert count(MODEL, HEAD) - count(MODEL, HeadConfig(parts=())) == 64 * (64 + 1) + 64
