"""UltraBERT: as transformers computes and writes it, and each wrong reading."""

import dataclasses
import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bert_jax.config import HeadConfig, ModelConfig
from bert_jax.errors import UsageError
from bert_jax.interchange import huggingface
from bert_jax.interchange.ultrabert import FAMILY
from bert_jax.model import bert
from bert_jax.model.layer_spec import layer_specs
from bert_jax.registry import FAMILIES
from tests.golden import make_ultrabert
from tests.golden.make_modernbert import HEAD, documents, params
from tests.golden.make_ultrabert import MODEL
from tests.interchange.test_eurobert import the_other_order
from tests.interchange.test_modernbert import (
    assert_gradients,
    assert_logits,
    edit,
    logits_of,
    no_last_norm,
    row_of,
    written,
)
from tests.models import assert_same


@pytest.fixture(scope="module")
def golden():
    return dict(np.load(make_ultrabert.FILE))


def test_logits_equal_transformers(golden):
    assert_logits(golden, "5", MODEL)


def test_gradients_equal_transformers(golden):
    assert_gradients(golden, "5", MODEL, FAMILY)


def _with(**changes):
    return lambda patch, tree: (dataclasses.replace(MODEL, **changes), tree)


def other_heads(patch, tree):
    return the_other_order(patch) and MODEL, tree


def embedding_norm(patch, tree):
    tree["encoder"]["embeddings"]["layer_norm"] = {"scale": np.ones(64, np.float32)}
    return dataclasses.replace(MODEL, embedding_norm=True), tree


def last_norm(patch, tree):
    return no_last_norm(patch, tree) and MODEL, tree


READINGS = {
    "radius halved": _with(attention_window=8),
    "window + 1 on either side": _with(attention_window=18),
    "kinds shifted by one": _with(first_global_layer=1),
    "kinds shifted by two": _with(first_global_layer=0),
    "thetas swapped": _with(rope_theta=100.0, local_rope_theta=1_000.0),
    "thetas equal": _with(local_rope_theta=0.0),
    "default thetas": _with(rope_theta=2_560_000.0, local_rope_theta=10_000.0),
    "interleaved rotation": _with(position_embedding_type="rotary_interleaved"),
    "heads of keys repeated in the other order": other_heads,
    "a norm of the embeddings": embedding_norm,
    "no last norm": last_norm,
    "layernorm": _with(norm="layernorm", norm_bias=False),
    "the blocks' activation in the head": _with(masked_lm_act="hidden_act"),
    "GELU in the blocks": _with(hidden_act="gelu"),
}


@pytest.mark.parametrize("name", READINGS)
def test_a_wrong_reading_is_seen(golden, name, monkeypatch):
    # Structures are kept by config, which does not say that a part of the code is another one.
    monkeypatch.setattr(bert, "_structure", bert._structure.__wrapped__)
    model, tree = READINGS[name](monkeypatch, params(MODEL))
    ours = logits_of(tree, row_of(documents()[0], length=64), model)
    assert np.abs(ours - golden["5.logits.0"]).max() >= 5e-4


def test_what_transformers_writes_is_read_and_written_again(golden, tmp_path):
    directory = written(tmp_path, MODEL)
    tensors = load_file(directory / "model.safetensors")
    assert sorted(tensors) == [*golden["5.tensors"]]
    described = json.loads((directory / "config.json").read_text())
    assert described["architectures"] == ["UltrabertForMaskedLM"]
    theirs = json.loads(str(golden["5.config"]))
    assert {name: theirs.get(name) for name in described if name != "torch_dtype"} == {
        name: value for name, value in described.items() if name != "torch_dtype"
    }
    (directory / "config.json").write_text(str(golden["5.config"]))
    back = huggingface.read(directory)
    assert (back.model, back.head) == (MODEL, HEAD)
    assert_same(back.params, params(MODEL))


def test_names_that_its_classes_save(tmp_path):
    """`save_pretrained` of transformers 5.24 undoes the renaming of `conversion_mapping.py`."""
    directory = written(tmp_path, MODEL)
    saved = {
        name.replace("model.", "ultrabert.", 1).replace("head.decoder.", "cls.", 1): tensor
        for name, tensor in load_file(directory / "model.safetensors").items()
    }
    assert {"cls.weight", "ultrabert.embed_tokens.weight", "head.linear1.weight"} <= saved.keys()
    save_file(saved, directory / "model.safetensors")
    back = huggingface.read(directory)
    assert (back.model, back.head) == (MODEL, HEAD)
    assert_same(back.params, params(MODEL))


def test_checkpoints_from_before_the_class_say_each_layer(golden, tmp_path):
    """`attention_windows` and a list as `rope_theta`, which its config reads still."""
    directory = written(tmp_path, MODEL)
    before = json.loads((directory / "config.json").read_text())
    for name in ("sliding_window", "layer_types", "rope_parameters"):
        del before[name]
    before |= {"attention_windows": [8, 8, None, 8], "rope_theta": [100.0, 100.0, 1e3, 100.0]}
    (directory / "config.json").write_text(json.dumps(before))
    assert huggingface.read(directory).model == MODEL


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layer_types": ["full_attention"] * 3}, "layer_types is .*for each layer"),
        ({"layer_types": [{}] * 4}, "layer_types is .*for each layer"),
        # The layers were written out, until the memory was full.
        ({"layer_types": None, "num_hidden_layers": 10**7}, "num_hidden_layers is 10,000,000"),
        (
            {"layer_types": ["full_attention"] * 2 + ["sliding_attention"] * 2},
            "only patterns are read in which layers f",
        ),
        ({"sliding_window": 0}, "sliding_window is below 1"),
        ({"prediction_head_size": "wide"}, "prediction_head_size is 'wide'; expected int"),
        (
            {"rope_parameters": {"full_attention": {"rope_type": "yarn"}}},
            "rope_parameters has .*yarn.* for full_attention",
        ),
        (
            {"rope_parameters": {"full_attention": {"type": "linear", "factor": 2.0}}},
            "rope_parameters has .*linear.* for full_attention",
        ),
        ({"rope_scaling": {"type": "linear"}}, "rope_scaling is .*, which is not supported"),
        ({"rope_parameters": None, "rope_theta": [1.0, 2.0, 3.0, 1.0]}, "one for each kind"),
        ({"mlp_bias": True}, "mlp_bias is true"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(changes, message, tmp_path):
    directory = written(tmp_path, MODEL)
    edit(directory, **changes)
    with pytest.raises(UsageError, match=message):
        huggingface.read(directory)


def test_another_family_refuses_what_it_cannot_say():
    for name in ("eurobert", "modernbert"):
        with pytest.raises(UsageError, match=r"model\.first_global_layer is 2"):
            FAMILIES[name].require_expressible(MODEL, HEAD)
    for changes, message in (
        ({"attention_window": 15}, r"model\.attention_window is 15"),
        ({"masked_lm_inner_size": 0}, r"model\.masked_lm_inner_size is 0"),
    ):
        with pytest.raises(UsageError, match=message):
            FAMILY.require_expressible(dataclasses.replace(MODEL, **changes), HeadConfig(parts=()))


@pytest.mark.parametrize(
    ("kinds", "every", "first"),
    [("LLGLLGLL", 3, 2), ("GLLGLLGL", 3, 0), ("LGLGLGLG", 2, 1), ("LLLG", 3, 3), ("LLL", 0, 0)],
)
def test_patterns_of_layers_are_read(kinds, every, first, tmp_path):
    names = {"L": "sliding_attention", "G": "full_attention"}
    model = FAMILY.dialect.to_ours(
        {"layer_types": [names[kind] for kind in kinds], "num_hidden_layers": len(kinds)}, tmp_path
    )
    assert model["global_attention_every_n_layers"] == every
    assert model["first_global_layer"] == first
    found = ModelConfig(
        num_hidden_layers=len(kinds),
        **{name: value for name, value in model.items() if "global" in name or "window" in name},
    )
    assert "".join("G" if each.window is None else "L" for each in layer_specs(found)) == kinds


def test_its_classifier_of_texts_is_not_exported():
    """It has no map before it. Those of tokens and of answers are (test_task_heads.py)."""
    head = HeadConfig(parts=("pooler", "sequence_classifier"), labels=("a", "b"), pooler_act="gelu")
    assert huggingface.refusal(MODEL, HEAD) == ""
    assert "sequence_classifier" in huggingface.refusal(MODEL, head)


@pytest.mark.parametrize(
    ("part", "theirs"),
    [("token_classifier", "TokenClassification"), ("span_classifier", "QuestionAnswering")],
)
def test_classifiers_go_both_ways(part, theirs, tmp_path):
    labels = ("no", "yes", "perhaps") if part == "token_classifier" else ()
    head = HeadConfig(parts=(part,), labels=labels)
    tree = params(MODEL, head)
    directory = written(tmp_path, MODEL, head=head, tree=tree)
    described = json.loads((directory / "config.json").read_text())
    assert described["architectures"] == [f"UltrabertFor{theirs}"]
    back = huggingface.read(directory)
    assert (back.model, back.head.parts, back.head.labels) == (MODEL, head.parts, head.labels)
    assert_same(back.params, tree)
